"""TLS and SASL for client connections."""
