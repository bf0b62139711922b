"""Kafka's wire format: frames, request headers, and messages of every API and version."""
