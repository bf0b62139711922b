"""Observability: structured logging."""
