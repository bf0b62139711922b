"""Kafka's snapshot format: batches of metadata records between a header and a footer. Pure.

Offsets inside a snapshot start at 0. The file name is the snapshot's id: its end offset in the metadata log, and the
epoch of the last record before that offset. Every batch in the snapshot has this epoch.
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
"""The maximum size of a batch. It is small, so that other tasks can run between the batches of a large snapshot."""

KRAFT_VERSION = 1
"""The first version with voters records in the log and in snapshots."""


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    id: SnapshotId
    voters: tuple[VoterNode, ...]
    """The voters at the end of the snapshot; empty if the log had no voters record."""
    values: Sequence[bytes]
    """The encoded metadata records."""
    timestamp_ms: int
    """The wall-clock time when the snapshot was written."""
    leader_id: int = NO_LEADER
    """The leader of the snapshot's epoch; NO_LEADER if unknown. Metadata records do not contain the leader."""


def encode_snapshot(contents: SnapshotContents) -> Iterator[bytes]:
    """Yields the snapshot batch by batch."""
    offset = 0
    for records, is_control in _batches(contents):
        yield build_batch(records, base_offset=offset, leader_epoch=contents.id.epoch, control=is_control)
        offset += len(records)


def decode_snapshot(snapshot: SnapshotId, data: bytes) -> SnapshotContents:
    """Returns the contents of a snapshot. Raises CorruptRecordError if it is incomplete or damaged."""
    decoder = SnapshotDecoder(snapshot)
    for batch in split_snapshot(snapshot, data):
        decoder.add(batch)
    return decoder.contents()


def split_snapshot(snapshot: SnapshotId, data: bytes) -> Iterator[Batch]:
    """Yields the batches of a snapshot. Raises CorruptRecordError if one is damaged."""
    try:
        yield from split(data)
    except MoldauError as error:
        raise _damaged(snapshot, error) from error


def snapshot_name(snapshot: SnapshotId) -> str:
    """Returns the file name without its suffix."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}"


def voters_record(voters: Sequence[VoterNode]) -> control.Voters:
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
        VoterNode(voter.id, voter.directory_id, tuple(VoterEndpoint(*endpoint) for endpoint in voter.endpoints))
        for voter in record.voters
    )


def _batches(contents: SnapshotContents) -> Iterator[tuple[Sequence[Record], bool]]:
    """Yields the records of each batch, and whether it is a control batch."""
    timestamp = contents.timestamp_ms
    header: list[control.ControlRecord] = [control.SnapshotHeader(timestamp)]
    if contents.voters:
        header += [control.KRaftVersion(KRAFT_VERSION), voters_record(contents.voters)]
    if contents.leader_id != NO_LEADER:
        header.append(control.LeaderChange(contents.leader_id, (), ()))
    yield [control_record(each, timestamp) for each in header], True
    records: list[Record] = []
    size = 0
    for value in contents.values:
        if records and size + len(value) > BATCH_BYTES_MAX:
            yield records, False
            records, size = [], 0
        records.append(Record(timestamp=timestamp, value=value))
        size += len(value)
    if records:
        yield records, False
    yield [control_record(control.SnapshotFooter(), timestamp)], True


def control_record(message: control.ControlRecord, timestamp: int) -> Record:
    return Record(timestamp=timestamp, key=control.encode_key(message), value=control.encode_value(message))


class SnapshotDecoder:
    """Decodes a snapshot batch by batch. Methods raise CorruptRecordError."""

    def __init__(self, snapshot: SnapshotId) -> None:
        self._snapshot = snapshot
        self._timestamp: int | None = None
        self._voters: tuple[VoterNode, ...] = ()
        self._leader_id, self._next_offset, self._has_ended = NO_LEADER, 0, False
        self._values: list[bytes] = []

    def add(self, batch: Batch) -> None:
        try:
            self._add(batch)
        except MoldauError as error:
            raise _damaged(self._snapshot, error) from error

    def contents(self) -> SnapshotContents:
        """Returns the contents after the last batch."""
        if not self._has_ended or self._timestamp is None:
            raise _damaged(self._snapshot, "there is no footer")
        return SnapshotContents(self._snapshot, self._voters, tuple(self._values), self._timestamp, self._leader_id)

    def _add(self, batch: Batch) -> None:
        if not batch.has_valid_checksum():
            raise CorruptRecordError(f"the checksum of {batch!r} is wrong")
        if batch.base_offset != self._next_offset or batch.leader_epoch != self._snapshot.epoch:
            raise CorruptRecordError(f"{batch!r} has the wrong base offset or epoch")
        self._next_offset = batch.next_offset
        for record in iterate_records(batch):
            if self._has_ended:
                raise CorruptRecordError("there are records after the footer")
            if not batch.is_control:
                if record.value is None or self._timestamp is None:
                    raise CorruptRecordError(f"record {record.offset} has no value, or comes before the header")
                self._values.append(record.value)
                continue
            message = control.decode(record)
            if isinstance(message, control.SnapshotHeader) != (self._timestamp is None):
                raise CorruptRecordError("there is not exactly one header, at the start")
            match message:
                case control.SnapshotHeader():
                    self._timestamp = message.last_contained_timestamp
                case control.Voters():
                    self._voters = voters_from_record(message)
                case control.LeaderChange():
                    self._leader_id = message.leader_id
                case control.SnapshotFooter():
                    self._has_ended = True


def _damaged(snapshot: SnapshotId, reason: object) -> CorruptRecordError:
    return CorruptRecordError(f"the snapshot {snapshot_name(snapshot)} is damaged: {reason}")
