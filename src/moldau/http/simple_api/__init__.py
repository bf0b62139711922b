"""The simple HTTP API: topics, records and the quorum, with partitions that count from 1."""
