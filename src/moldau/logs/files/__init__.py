"""Logs in files, in the layout of Kafka: a directory per partition, segments with an offset index and a time index."""
