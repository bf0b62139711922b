"""Streaming queries that lose their driver, workers and broker, and the rules for their output."""
