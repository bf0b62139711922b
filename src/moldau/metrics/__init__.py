"""Metrics of a node in Prometheus' text format, with the names that existing dashboards of Kafka use."""
