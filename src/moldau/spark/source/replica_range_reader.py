"""Reader of one offset range from the replica on a named broker (option `replica`).

Moldau and Kafka serve consumers from every replica, up to the high watermark that the replica knows.
"""

from moldau.client.consumer.completed_fetch import READ_COMMITTED, CompletedFetch, parse_batches
from moldau.observe.logging import get_logger
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.data_loss import report_data_loss
from moldau.spark.source.offset_ranges import OffsetRange
from moldau.spark.source.options import SourceOptions
from moldau.spark.source.replica_reader import ReplicaReader, ReplicaReadError

_log = get_logger("spark.source")


class ReplicaRangeReader:
    """Reads one range from one replica. Runs in the event loop thread."""

    def __init__(self, offset_range: OffsetRange, options: SourceOptions) -> None:
        assert options.fetch_options.replica is not None
        self._range = offset_range
        self._options = options
        self._broker = options.fetch_options.replica
        self._reader: ReplicaReader | None = None
        self._log_start: int | None = None
        """The start of the replica's log, if records before it were requested and this was reported."""

    async def next(self) -> CompletedFetch | None:
        """Returns the next batches, or None at the end of the range. Raises SparkSourceError and KafkaError."""
        partition, fetch = self._range.topic_partition, self._options.fetch_options
        reader = self._reader or await self._open()
        while True:
            requested = reader.position
            try:
                data = await reader.next()
            except ReplicaReadError as error:
                raise self._error(error.offset, error) from None
            if reader.log_start != self._log_start:
                self._log_start = reader.log_start
                self._report_loss(requested)
            if data is None:
                empty_from = max(requested, self._log_start or 0)
                if empty_from < self._range.end:
                    _log.warning(
                        f"{partition} on broker {self._broker} has no records from offset {empty_from} to "
                        f"{self._range.end}: the broker repeatedly returned none, although its log continues. They "
                        "were compacted, or the broker's storage is too slow"
                    )
                return None
            position = reader.position
            parsed = parse_batches(partition, data, position, fetch.isolation_level, self._range.end)
            if parsed.next_offset == position:
                raise self._error(position, parsed.error or "the broker returned batches that end before this offset")
            # The next response starts at a damaged batch, if there is one.
            reader.position = parsed.next_offset
            if parsed.batches:
                return CompletedFetch(
                    partition,
                    position,
                    parsed.next_offset,
                    parsed.batches,
                    data.high_watermark,
                    data.last_stable_offset,
                    data.log_start_offset,
                )

    async def close(self) -> None:
        """Does nothing: the event loop thread owns the connections."""

    async def _open(self) -> ReplicaReader:
        fetch = self._options.fetch_options
        self._reader = reader = ReplicaReader(
            await event_loop_thread().cluster(self._options.connection),
            self._broker,
            self._range.topic_partition,
            self._range.start,
            self._range.end,
            read_committed=fetch.isolation_level == READ_COMMITTED,
            fetch_bytes=fetch.partition_max_bytes,
            stall_timeout_ms=fetch.timeout_ms,
        )
        return reader

    def _report_loss(self, requested: int) -> None:
        what = (
            f"{self._range.topic_partition} on broker {self._broker} should be read from offset {requested} to "
            f"{self._range.end}, but its log starts at {self._log_start} there"
        )
        report_data_loss(self._options, what, f"continues at {self._log_start}")

    def _error(self, offset: int, cause: Exception | str) -> SparkSourceError:
        return SparkSourceError(
            f"{self._range.topic_partition} could not be read from broker {self._broker} at offset {offset}: {cause}. "
            "The broker is named by the option replica; without the option, leaders are read"
        )
