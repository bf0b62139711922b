"""Moldau: a Kafka-compatible event log written in Python."""

__version__ = "0.1.0"
