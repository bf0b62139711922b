"""Handlers for consumed records, with acknowledgement, retries and dead letters."""
