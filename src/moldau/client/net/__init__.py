"""Connections to brokers, cluster metadata, and retries."""
