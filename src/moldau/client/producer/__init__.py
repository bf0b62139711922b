"""The producer: partitioning, batching and sending."""
