"""Kafka's wire format: frames, headers, and the messages of every API and version."""
