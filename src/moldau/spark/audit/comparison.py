"""The comparison of the rows of all replicas, on Spark. The result is small: one group per way to differ.

Rows of different replicas belong together if they are batches with the same base offset, or, on compacted topics, the
latest records of the same key. Such a set of rows has a signature: which replicas are in it, which of them are equal,
and which are damaged. Per partition and signature, only the set with the lowest offset and the number of sets are
returned to the driver.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.client.record import TopicPartition
from moldau.spark.audit.groups import BATCH, RECORD, Group, ReplicaValue
from moldau.spark.audit.plan import PlannedPartition
from moldau.spark.audit.replica_rows import SCHEMA, ReplicaTask, read_replicas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class ReplicaComparison:
    """Reads all replicas once. The rows are kept until `close`, so that they can be grouped again."""

    def __init__(
        self,
        spark: "SparkSession",
        partitions: Sequence[PlannedPartition],
        connection: Mapping[str, Any],
        stall_timeout_ms: int,
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._stall_timeout_ms = stall_timeout_ms
        tasks = [
            ReplicaTask(each, rank, connection, stall_timeout_ms)
            for each in partitions
            if each.start < each.end
            for rank in range(len(each.brokers))
        ]
        self.has_tasks = bool(tasks)
        counts = spark.createDataFrame(
            [(each.topic, each.partition, len(each.brokers)) for each in partitions],
            "topic STRING, partition INT, replicas INT",
        )
        self._sets = _matching_rows(self._read(tasks), counts).persist()

    def _read(self, tasks: Sequence[ReplicaTask]) -> "DataFrame":
        # One row and Spark partition per task, because a task reads one replica.
        numbers = self._spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return numbers.mapInArrow(partial(read_replicas, list(tasks)), SCHEMA)

    def groups(self) -> list[Group]:
        return self._collect(self._sets)

    def regroup(self, log_starts: Mapping[TopicPartition, int], newer: Iterable[PlannedPartition] = ()) -> list[Group]:
        """Groups the rows again, without unequal sets whose reason is that the log changes during the audit.

        Retention deletes batches below `log_starts`. Compaction removes records of keys that have newer ones: those in
        the ranges of `newer`, which follow the audited ones and are read from the leaders.
        """
        from pyspark.sql import functions as F

        starts = self._spark.createDataFrame(
            [(each.topic, each.partition, offset) for each, offset in log_starts.items()],
            "topic STRING, partition INT, log_start BIGINT",
        )
        sets = self._sets.join(F.broadcast(starts), ["topic", "partition"], "left")
        is_changed = F.col("offset") < F.coalesce("log_start", F.lit(0))
        tasks = [
            ReplicaTask(each, 0, self._connection, self._stall_timeout_ms) for each in newer if each.start < each.end
        ]
        if tasks:
            keys = self._read(tasks).where(F.col("kind") == RECORD).select("topic", "partition", "key").distinct()
            sets = sets.join(keys.withColumn("is_newer", F.lit(True)), ["topic", "partition", "key"], "left")
            is_changed = is_changed | F.col("is_newer").isNotNull()
        is_data = F.col("kind").isin(BATCH, RECORD)
        return self._collect(sets.where(~(is_data & ~F.col("is_equal") & is_changed)))

    def close(self) -> None:
        self._sets.unpersist()

    def _collect(self, sets: "DataFrame") -> list[Group]:
        from pyspark.sql import functions as F

        lowest = F.min_by(F.struct("offset", "key", "values"), "offset").alias("lowest")
        grouped = sets.groupBy("topic", "partition", "kind", "is_equal", "signature").agg(
            lowest, F.count("*").alias("set_count"), F.sum("size").alias("size")
        )
        return [
            Group(
                TopicPartition(row.topic, row.partition),
                row.kind,
                row.lowest.offset,
                None if row.lowest.key is None else bytes(row.lowest.key),
                tuple(ReplicaValue(*each) for each in row.lowest["values"]),
                row.set_count,
                row.size or 0,
                row.is_equal and row.kind in (BATCH, RECORD),
            )
            for row in grouped.collect()
        ]


def _matching_rows(rows: "DataFrame", counts: "DataFrame") -> "DataFrame":
    """Returns the sets of rows that belong together, with their signatures. `counts` has the number of replicas."""
    from pyspark.sql import functions as F

    value = F.struct("rank", "replica", "offset", "digest", "problem")
    others = rows.where(F.col("kind") != RECORD)
    records = rows.where(F.col("kind") == RECORD)
    digest = F.concat_ws(
        "/",
        F.col("offset").cast("string"),
        F.coalesce(F.unix_micros("timestamp").cast("string"), F.lit("-")),
        F.coalesce(F.md5("value"), F.lit("-")),
        F.coalesce(F.md5(F.to_json("headers")), F.lit("-")),
    )
    latest = (
        records.withColumn("digest", digest)
        .withColumn("is_tombstone", F.col("value").isNull())
        .groupBy("topic", "partition", "kind", "rank", "replica", "key")
        .agg(F.max_by(F.struct("offset", "digest", "problem", "is_tombstone"), "offset").alias("latest"))
        # A deleted key counts as missing, because compaction removes the tombstone at some time.
        .where(~F.col("latest.is_tombstone"))
        .select("topic", "partition", "kind", "rank", "replica", "key", "latest.*")
    )
    by_key = latest.groupBy("topic", "partition", "kind", "key").agg(
        F.max("offset").alias("offset"), F.lit(0).cast("bigint").alias("size"), F.collect_list(value).alias("values")
    )
    by_offset = others.groupBy("topic", "partition", "kind", "offset").agg(
        F.lit(None).cast("binary").alias("key"), F.max("size").alias("size"), F.collect_list(value).alias("values")
    )
    columns: list[Column | str] = [
        "topic",
        "partition",
        "kind",
        "offset",
        "key",
        "size",
        F.array_sort("values").alias("values"),
    ]
    sets = by_offset.select(*columns).unionByName(by_key.select(*columns))
    digests = F.array_distinct(F.transform("values", lambda each: each.digest))
    signature = F.transform(
        "values",
        lambda each: F.concat_ws(
            ":", each.replica.cast("string"), F.array_position(digests, each.digest).cast("string"), each.problem
        ),
    )
    is_equal = (
        (F.size("values") == F.col("replicas"))
        & (F.size(digests) == 1)
        & F.forall("values", lambda each: each.problem.isNull())
    )
    found: DataFrame = (
        sets.join(F.broadcast(counts), ["topic", "partition"])
        .withColumn("signature", F.concat_ws(",", signature))
        .withColumn("is_equal", is_equal)
    )
    return found
