"""Logs in files, in Kafka's layout: a directory per partition, segments with an offset and a time index each."""
