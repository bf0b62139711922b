"""The module in which Spark finds `format("moldau")` without registration."""

from moldau.spark.datasource import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
