"""Moldau in Spark: the data source `moldau` for PySpark, and a launcher that needs no system Java.

import moldau.spark

spark = moldau.spark.session()
spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders").load()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.spark.launcher.session import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    if name == "session":
        from moldau.spark.launcher.session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
