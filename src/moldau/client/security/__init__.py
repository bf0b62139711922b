"""Client security: TLS and SASL."""
