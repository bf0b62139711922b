"""Streaming queries that lose their driver, their workers and their broker, and what they must have written."""
