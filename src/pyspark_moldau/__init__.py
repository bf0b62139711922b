"""Where Spark looks for `format("moldau")`: a module of this name needs no registration."""

from moldau.spark.datasource import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
