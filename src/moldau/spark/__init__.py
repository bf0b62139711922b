"""Moldau in Spark: the data source `moldau` for PySpark, and a launcher that needs no system Java.

import moldau.spark

spark = moldau.spark.session()
spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders").load()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.spark.launcher.session import session
    from moldau.spark.stream_start import prepare_streams

__all__ = ["prepare_streams", "session"]


def __getattr__(name: str) -> Any:
    if name == "session":
        from moldau.spark.launcher.session import session

        return session
    if name == "prepare_streams":
        from moldau.spark.stream_start import prepare_streams

        return prepare_streams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
