"""Kafka record batches: headers, records, codecs, validation."""
