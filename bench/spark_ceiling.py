"""Upper bound of the rows per second that Spark reads from a Python data source: one that builds its batch once and
fetches nothing.

python -m bench.spark_ceiling
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import moldau.spark
from moldau.columnar.columns import arrow_schema

CASES = ((100, 1_500_000), (1024, 300_000))
"""Bytes of a value, and rows."""
PARTITIONS = 4
BATCH_BYTES = 8 * 1024 * 1024
RUNS = 5
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class FixedDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing_fetched"

    def schema(self) -> str:
        return (
            "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return FixedBatchReader(int(self.options["size"]), int(self.options["rows"]) // PARTITIONS)


class FixedBatchReader(DataSourceReader):
    def __init__(self, size: int, rows: int) -> None:
        self._size, self._rows = size, rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = min(self._rows, BATCH_BYTES // self._size)
        numbers = np.zeros(count, np.int32)
        columns = {
            "key": pa.array([b"12345678"] * count, pa.binary()),
            "value": pa.array([bytes(self._size)] * count, pa.binary()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array(numbers),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array(np.zeros(count, np.int64)).cast(pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array(numbers),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=arrow_schema(COLUMNS))
        left = self._rows
        while left > 0:
            yield batch.slice(0, min(count, left))
            left -= count


def main() -> None:
    spark = moldau.spark.session(master="local[2]", quiet=True)
    spark.dataSource.register(FixedDataSource)
    for size, rows in CASES:
        frame = spark.read.format("nothing_fetched").options(size=size, rows=rows).load()
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            times.append(time.perf_counter() - started)
        print(f"{size} B: {rows / sorted(times)[RUNS // 2]:,.0f} rows/s")
    spark.stop()


if __name__ == "__main__":
    main()
