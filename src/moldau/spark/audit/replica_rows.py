"""The rows that a task reads from one replica: one per batch, or one per record if keys are compared.

`groups.py` has their kinds.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from moldau.client.consumer.completed_fetch import READ_COMMITTED, parse_batches
from moldau.client.errors import KafkaError
from moldau.columnar.decode import to_arrow_batches
from moldau.errors import MoldauError
from moldau.spark.audit.groups import BATCH, RECORD, START, STOP
from moldau.spark.audit.plan import PlannedPartition
from moldau.spark.errors import user_facing_errors
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.replica_reader import ReplicaReader, ReplicaReadError, stored_batches
from moldau.wire.codec import Message

CHECKSUM = "the checksum of the batch is wrong"

SCHEMA = (
    "topic STRING, partition INT, rank INT, replica INT, kind STRING, offset BIGINT, size BIGINT, key BINARY, "
    "value BINARY, timestamp TIMESTAMP, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, digest STRING, "
    "problem STRING"
)
_RECORD_COLUMNS = ("offset", "key", "value", "timestamp", "headers")
_ARROW_BYTES = 8 * 1024 * 1024

_ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("rank", pa.int32()),
        ("replica", pa.int32()),
        ("kind", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("digest", pa.string()),
        ("problem", pa.string()),
    ]
)


class ReplicaTask(NamedTuple):
    """One replica to read in one task."""

    partition: PlannedPartition
    rank: int
    """The position of the broker in the plan: 0 is the leader."""
    connection: Mapping[str, Any]
    """The arguments of `Cluster`."""
    stall_timeout_ms: int


def read_replicas(tasks: Sequence[ReplicaTask], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads the tasks whose numbers are in the first column of `numbers`."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _ReplicaRows(tasks[number]).read()


class _ReplicaRows:
    def __init__(self, task: ReplicaTask) -> None:
        self._task = task
        self._partition = task.partition.topic_partition
        self._broker = task.partition.brokers[task.rank]

    def read(self) -> Iterator[pa.RecordBatch]:
        with user_facing_errors(str(self._task.connection["bootstrap"])):
            yield from self._read()

    def _read(self) -> Iterator[pa.RecordBatch]:
        task, planned, thread = self._task, self._task.partition, event_loop_thread()
        cluster = thread.run(thread.cluster(task.connection))
        reader = ReplicaReader(
            cluster,
            self._broker,
            self._partition,
            planned.start,
            planned.end,
            read_committed=planned.by_key,
            stall_timeout_ms=task.stall_timeout_ms,
        )
        parse = self._record_rows if planned.by_key else self._batch_rows
        try:
            while (data := thread.run(reader.next())) is not None:
                yield from parse(reader, data)
        except ReplicaReadError as error:
            yield self._note(STOP, error.offset, str(error))
        if reader.log_start is not None:
            yield self._note(START, reader.log_start, None)

    def _batch_rows(self, reader: ReplicaReader, data: Message) -> Iterator[pa.RecordBatch]:
        end = self._task.partition.end
        offsets: list[int] = []
        sizes: list[int] = []
        digests: list[str] = []
        problems: list[str | None] = []
        failure: ReplicaReadError | None = None
        try:
            for batch in stored_batches(data.records, reader.position):
                if reader.position >= end:
                    break
                if batch.base_offset >= end:
                    raise ReplicaReadError(reader.position, f"the batch there has the base offset {batch.base_offset}")
                reader.position = batch.next_offset
                offsets.append(batch.base_offset)
                sizes.append(batch.size)
                digests.append(hashlib.blake2b(batch.data, digest_size=16).hexdigest())
                problems.append(None if batch.has_valid_checksum() else CHECKSUM)
        except ReplicaReadError as error:
            failure = error
        if offsets:
            yield self._rows(BATCH, len(offsets), offset=offsets, size=sizes, digest=digests, problem=problems)
        elif failure is None:
            failure = ReplicaReadError(reader.position, "the broker returned bytes that are no batch")
        if failure is not None:
            raise failure

    def _record_rows(self, reader: ReplicaReader, data: Message) -> Iterator[pa.RecordBatch]:
        start, end = reader.position, self._task.partition.end
        parsed = parse_batches(self._partition, data, start, READ_COMMITTED, end)
        error: KafkaError | MoldauError | None = parsed.error
        try:
            for part in to_arrow_batches(
                *self._partition,
                parsed.batches,
                start=start,
                end=end,
                columns=_RECORD_COLUMNS,
                arrow_batch_bytes=_ARROW_BYTES,
            ):
                yield self._rows(RECORD, part.num_rows, **dict(zip(_RECORD_COLUMNS, part.columns, strict=True)))
        except MoldauError as failure:
            error = failure
        if error is not None:
            # Stop, because the keys in the damaged batch are unknown.
            raise ReplicaReadError(parsed.next_offset, f"a batch is damaged: {error}")
        if parsed.next_offset == start:
            raise ReplicaReadError(start, "the broker returned batches that end before this offset")
        reader.position = parsed.next_offset

    def _note(self, kind: str, offset: int, problem: str | None) -> pa.RecordBatch:
        return self._rows(kind, 1, offset=[offset], problem=[problem])

    def _rows(self, kind: str, count: int, **columns: Any) -> pa.RecordBatch:
        """Returns rows with these columns and the names of the replica; other columns are null."""
        constants = {
            "topic": self._partition.topic,
            "partition": self._partition.partition,
            "rank": self._task.rank,
            "replica": self._broker,
            "kind": kind,
        }
        arrays = []
        for field in _ARROW_SCHEMA:
            if field.name in constants:
                arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), count))
            elif field.name in columns:
                column = columns[field.name]
                array = column if isinstance(column, pa.Array) else pa.array(column, field.type)
                arrays.append(array.cast(field.type))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
