"""Reader of one offset range in a task. The event loop thread fetches batches while the task decodes earlier ones."""

import asyncio
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.client.consumer.fetcher import CompletedFetch, Fetcher, LogTruncationError
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.columnar.decode import to_arrow_batches
from moldau.errors import MoldauError
from moldau.observe.logging import get_logger
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.columns import SourceColumn
from moldau.spark.source.data_loss import report_data_loss
from moldau.spark.source.offset_ranges import OffsetRange
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.replica_range_reader import ReplicaRangeReader

ARROW_BYTES = 8 * 1024 * 1024
"""Approximate size of an Arrow batch for Spark."""

_IDLE_CHECK_MS = 2_000
"""After this time without records, the reader checks whether the partition still exists."""
_UNKNOWN_PARTITION_MS = 3_000
"""A partition that is unknown for this long is treated as deleted. Brokers learn of a new partition in less time."""
_REFRESH_TIMEOUT_MS = 1_000
_LOG_OFFSETS_TIMEOUT_MS = 10_000
"""The timeouts of the Metadata and ListOffsets requests that find the cause of a timed-out read."""
_RETRY_BACKOFF_MS = 100
"""The delay before a retry if an offset was reported as out of range although the log contains it."""

_log = get_logger("spark.source")


def read_range(
    offset_range: OffsetRange, options: SourceOptions, columns: Sequence[SourceColumn], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yields the records of the range as Arrow batches."""
    names = [column.name for column in columns]
    target = to_arrow_schema(schema, timezone="UTC")
    is_replica_named = options.fetch_options.replica is not None
    reader = ReplicaRangeReader(offset_range, options) if is_replica_named else RangeReader(offset_range, options)
    thread = event_loop_thread()
    try:
        while (fetched := thread.run(reader.next())) is not None:
            try:
                for part in to_arrow_batches(
                    offset_range.topic,
                    offset_range.partition,
                    fetched.batches,
                    start=fetched.position,
                    end=offset_range.end,
                    columns=names,
                    arrow_batch_bytes=ARROW_BYTES,
                ):
                    yield to_spark_batch(part, columns, target, offset_range)
            except MoldauError as error:
                raise SparkSourceError(
                    f"{offset_range.topic_partition} at {options.bootstrap} has a batch that cannot be "
                    f"decoded, at or after offset {fetched.position}: {error}"
                ) from None
    finally:
        thread.run(reader.close())


def to_spark_batch(
    part: pa.RecordBatch, columns: Sequence[SourceColumn], target: pa.Schema, offset_range: OffsetRange
) -> pa.RecordBatch:
    """Converts a batch to the types and nullability that Spark expects. Decodes columns requested as STRING."""
    arrays = []
    for array, column in zip(part.columns, columns, strict=True):
        try:
            arrays.append(array.cast(pa.string()) if column.is_text else array)
        except pa.ArrowInvalid:
            raise SparkSourceError(
                f"the schema requests {column.name} as STRING, but {offset_range} has one that is not UTF-8; "
                "request BINARY and decode it in the query"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=target)


class RangeReader:
    """Reads one range from the leader of its partition. Runs in the event loop thread."""

    def __init__(self, offset_range: OffsetRange, options: SourceOptions) -> None:
        self._range = offset_range
        self._options = options
        self._partition = offset_range.topic_partition
        self._position = offset_range.start
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._failure: KafkaError | None = None
        """An error that came with the batches that `next` returned last. The next call of `next` handles the error."""
        self._idle_since_s = 0.0
        self._is_rest_skipped = False
        """Whether the rest of the range was lost and the loss has been reported."""

    async def next(self) -> CompletedFetch | None:
        """Returns the next batches, or None at the end of the range. Raises SparkSourceError and KafkaError."""
        # Restart the idle time, because the time that Spark spent since the last call does not count as idle.
        self._idle_since_s = self._now_s()
        fetcher = self._fetcher or await self._open()
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                await self._handle_error(fetcher, failure)
            elif self._is_rest_skipped or self._position >= self._range.end:
                return None
            elif not (fetched_partitions := await fetcher.next(_IDLE_CHECK_MS)):
                await self._check_partition()
            else:
                # There is one entry, because one partition is assigned.
                (fetched,) = fetched_partitions
                self._failure = fetched.error
                if fetched.is_empty:
                    _log.warning(
                        f"{self._partition} at {self._options.bootstrap} has no records from offset "
                        f"{self._position} to {self._range.end}: its leader repeatedly returned none, "
                        "although its log continues. They were compacted, or the broker's storage is too slow"
                    )
                if fetched.next_offset > self._position:
                    self._position = fetched.next_offset
                    self._idle_since_s = self._now_s()
                if fetched.batches:
                    return fetched

    async def close(self) -> None:
        if self._fetcher is None:
            return
        assert self._cluster is not None
        fetcher, self._fetcher = self._fetcher, None
        fetcher.assign({})
        event_loop_thread().idle_fetchers[self._cluster, self._options.fetch_options].append(fetcher)

    async def _open(self) -> Fetcher:
        """Assigns the range to a fetcher that no other reader uses, because tasks of one process may be interleaved."""
        thread, fetch = event_loop_thread(), self._options.fetch_options
        self._cluster = cluster = await thread.cluster(self._options.connection)
        idle = thread.idle_fetchers[cluster, fetch]
        if not idle:
            fetcher = Fetcher(
                cluster,
                max_bytes=fetch.max_bytes,
                partition_max_bytes=fetch.partition_max_bytes,
                buffered_bytes_max=2 * fetch.max_bytes,
                isolation_level=fetch.isolation_level,
            )
            thread.fetchers.append(fetcher)
            idle.append(fetcher)
        self._fetcher = fetcher = idle.pop()
        fetcher.assign({self._partition: self._range.start}, {self._partition: self._range.end})
        if cluster.partition_info(self._partition) is None:
            await self._check_partition()
        return fetcher

    async def _handle_error(self, fetcher: Fetcher, error: KafkaError) -> None:
        """Handles an offset out of range: reports lost records and continues after them. Raises other errors."""
        if error.code != ErrorCode.offset_out_of_range:
            raise error
        first, last = await self._log_offsets()
        if isinstance(error, LogTruncationError) or self._position > last:
            self._skip_rest(f"its log was truncated and ends at {last}")
        elif self._position < first:
            self._report(f"its log starts at {first}", f"continues at {first}")
            self._position = first
            fetcher.seek(self._partition, first)
        else:
            # The log has this position. Retry, because the error may have come from a broker that is not the leader.
            if self._remaining_ms() <= 0:
                raise self._timeout_error(str(error))
            await asyncio.sleep(_RETRY_BACKOFF_MS / 1000)
            fetcher.seek(self._partition, self._position)

    async def _check_partition(self) -> None:
        """Finds out why no records arrive: no leader, a deleted partition or a truncated log."""
        assert self._cluster is not None
        left_ms = self._remaining_ms()
        try:
            await self._cluster.refresh([self._range.topic], timeout_ms=max(_REFRESH_TIMEOUT_MS, left_ms))
            if self._cluster.partition_info(self._partition) is None:
                code = self._cluster.topic_errors.get(self._range.topic, ErrorCode.unknown_topic_or_partition)
                is_long = left_ms <= self._options.fetch_options.timeout_ms - _UNKNOWN_PARTITION_MS
                if code == ErrorCode.unknown_topic_or_partition and is_long:
                    self._skip_rest("it no longer exists")
                    return
            if left_ms <= 0:
                _, last = await self._log_offsets()
                if last < self._range.end:
                    self._skip_rest(f"its log ends at {last}")
                    return
        except KafkaError as error:
            if left_ms <= 0:
                raise self._timeout_error(str(error)) from None
        if left_ms <= 0:
            raise self._timeout_error("it exists but returns no records")

    async def _log_offsets(self) -> tuple[int, int]:
        """Returns the earliest offset and the end offset of the partition."""
        assert self._cluster is not None
        level = self._options.fetch_options.isolation_level
        first, last = await asyncio.gather(
            *(
                list_offsets(
                    self._cluster, {self._partition: each}, isolation_level=level, timeout_ms=_LOG_OFFSETS_TIMEOUT_MS
                )
                for each in (EARLIEST, LATEST)
            )
        )
        return first[self._partition].offset, last[self._partition].offset

    def _skip_rest(self, cause: str) -> None:
        self._report(cause, "skips the rest of it")
        self._is_rest_skipped = True

    def _report(self, cause: str, action: str) -> None:
        what = (
            f"{self._partition} at {self._options.bootstrap} should be read from offset "
            f"{self._position} to {self._range.end}, but {cause}"
        )
        report_data_loss(self._options, what, action)

    def _timeout_error(self, cause: str) -> SparkSourceError:
        assert self._cluster is not None
        leader = self._cluster.known_leader_of(self._partition)
        broker = self._cluster.brokers.get(leader)
        leader_text = "has no leader" if broker is None else f"is led by broker {leader} at {broker.host}:{broker.port}"
        timeout_s = self._options.fetch_options.timeout_ms / 1000
        return SparkSourceError(
            f"{self._partition} could not be read from offset {self._position} for {timeout_s:g} "
            f"s: it {leader_text} ({cause}). Check that the broker is up and that this machine reaches "
            "its address; kafkaConsumer.pollTimeoutMs sets the timeout"
        )

    def _remaining_ms(self) -> int:
        """Returns how many more milliseconds the partition may stay idle before the read fails."""
        return self._options.fetch_options.timeout_ms - round((self._now_s() - self._idle_since_s) * 1000)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
