"""A snapshot of the metadata as bytes, in Kafka's format: batches of records between a header and a footer. Pure.

Its records are numbered from 0 on and say nothing of the log's offsets; which part of the log they stand for is
in the snapshot's name. Each batch is of the epoch of the last record that the snapshot stands for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moldau.errors import CorruptRecordError, MoldauError
from moldau.raft.messages import NO_LEADER, SnapshotId, VoterEndpoint, VoterNode
from moldau.records import control_records as control
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records

BATCH_BYTES_MAX = 64 * 1024
"""Small, so that others get their turn while a large snapshot is written."""

KRAFT_VERSION = 1
"""The first in which voters are kept in the log and its snapshots."""


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    id: SnapshotId
    voters: tuple[VoterNode, ...]
    """Those of the log up to the snapshot's end; empty where no record had named any."""
    values: Sequence[bytes]
    """The metadata records, as their writer encoded them."""
    timestamp_ms: int
    """Wall time at which the last record that the snapshot stands for was appended."""
    leader_id: int = NO_LEADER
    """Who led in the snapshot's epoch: the records of the metadata do not say."""


def encode(contents: SnapshotContents) -> Iterator[bytes]:
    """The snapshot, batch by batch."""
    offset = 0
    for batch in _batches(contents):
        yield build_batch(
            batch.records, base_offset=offset, leader_epoch=contents.id.epoch, control=batch.control
        )
        offset += len(batch.records)


def decode(snapshot: SnapshotId, data: bytes) -> SnapshotContents:
    """Raises CorruptRecordError for what is not a whole snapshot, every bit of it as it was written."""
    reading = _SnapshotReader(snapshot)
    try:
        for batch in split(data):
            reading.read_batch(batch)
        return reading.finish()
    except MoldauError as error:
        raise CorruptRecordError(f"the snapshot {snapshot_name(snapshot)} is not whole: {error}") from error


def snapshot_name(snapshot: SnapshotId) -> str:
    """Its name without the suffix: the offset it ends at, and the epoch of the last record before that."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}"


def voters_record(voters: Sequence[VoterNode]) -> control.Voters:
    """The control record that names these voters."""
    return control.Voters(
        tuple(
            control.RecordedVoter(
                voter.node_id,
                voter.directory_id,
                tuple(control.RecordedVoterEndpoint(*endpoint) for endpoint in voter.endpoints),
            )
            for voter in voters
        )
    )


def voters_from_record(record: control.Voters) -> tuple[VoterNode, ...]:
    return tuple(
        VoterNode(
            voter.id, voter.directory_id, tuple(VoterEndpoint(*endpoint) for endpoint in voter.endpoints)
        )
        for voter in record.voters
    )


@dataclass(frozen=True, slots=True)
class _SnapshotBatch:
    records: Sequence[Record]
    control: bool = False


def _batches(contents: SnapshotContents) -> Iterator[_SnapshotBatch]:
    timestamp = contents.timestamp_ms
    opening: list[control.ControlRecord] = [control.SnapshotHeader(timestamp)]
    if contents.voters:
        opening += [control.KRaftVersion(KRAFT_VERSION), voters_record(contents.voters)]
    if contents.leader_id != NO_LEADER:
        opening.append(control.LeaderChange(contents.leader_id, (), ()))
    yield _SnapshotBatch([_control_record(each, timestamp) for each in opening], control=True)
    records: list[Record] = []
    size = 0
    for value in contents.values:
        if records and size + len(value) > BATCH_BYTES_MAX:
            yield _SnapshotBatch(records)
            records, size = [], 0
        records.append(Record(timestamp=timestamp, value=value))
        size += len(value)
    if records:
        yield _SnapshotBatch(records)
    yield _SnapshotBatch([_control_record(control.SnapshotFooter(), timestamp)], control=True)


def _control_record(message: control.ControlRecord, timestamp: int) -> Record:
    return Record(timestamp=timestamp, key=control.encode_key(message), value=control.encode_value(message))


class _SnapshotReader:
    """What has been read of a snapshot so far."""

    def __init__(self, snapshot: SnapshotId) -> None:
        self._snapshot = snapshot
        self._timestamp: int | None = None
        self._voters: tuple[VoterNode, ...] = ()
        self._leader_id = NO_LEADER
        self._values: list[bytes] = []
        self._next_offset = 0
        self._has_ended = False

    def read_batch(self, batch: Batch) -> None:
        if not batch.has_valid_checksum():
            raise CorruptRecordError(f"the checksum of {batch!r} is wrong")
        if batch.base_offset != self._next_offset or batch.leader_epoch != self._snapshot.epoch:
            raise CorruptRecordError(f"{batch!r} does not belong where it stands")
        self._next_offset = batch.next_offset
        for record in iterate_records(batch):
            if self._has_ended:
                raise CorruptRecordError("something stands behind its footer")
            if batch.is_control:
                self._read_control(control.decode(record))
            elif record.value is None or self._timestamp is None:
                raise CorruptRecordError(f"the record {record.offset} has no value, or no header before it")
            else:
                self._values.append(record.value)

    def _read_control(self, message: control.ControlRecord) -> None:
        if isinstance(message, control.SnapshotHeader) != (self._timestamp is None):
            raise CorruptRecordError("it does not begin with its only header")
        match message:
            case control.SnapshotHeader():
                self._timestamp = message.last_contained_timestamp
            case control.Voters():
                self._voters = voters_from_record(message)
            case control.LeaderChange():
                self._leader_id = message.leader_id
            case control.SnapshotFooter():
                self._has_ended = True

    def finish(self) -> SnapshotContents:
        if not self._has_ended or self._timestamp is None:
            raise CorruptRecordError("it has no footer")
        return SnapshotContents(
            self._snapshot, self._voters, tuple(self._values), self._timestamp, self._leader_id
        )
