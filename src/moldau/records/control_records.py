"""Control records. Brokers write them between the records of producers, and consumers skip them.

The key has a version and a type, two 16-bit numbers. The value is a message of that type.
"""

import enum
import io
import struct
from typing import Any, NamedTuple
from uuid import UUID

from moldau.errors import CorruptRecordError
from moldau.records.batch import Batch
from moldau.records.record import UNDECODABLE_ERRORS, Record, iterate_records
from moldau.wire.kio import (
    KRaftVersionRecord,
    SerialError,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    entity_reader,
    entity_writer,
    leader_change_v0,
    leader_change_v1,
    voters_record,
)

_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.Struct(">hi")
"""The value of an ABORT or COMMIT record: a version and the coordinator epoch. All other values are encoded by schemas,
which include the version."""
_VERSION = 0


class ControlRecordType(enum.IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class LeaderChangeVoter(NamedTuple):
    id: int
    directory_id: UUID | None = None


class LeaderChange(NamedTuple):
    """The start of a quorum leader's epoch. The epoch number is the leader epoch of the batch."""

    leader_id: int
    voters: tuple[LeaderChangeVoter, ...]
    granting_voters: tuple[LeaderChangeVoter, ...]


class EndTransaction(NamedTuple):
    """The end of a transaction of the batch's producer."""

    commit: bool
    coordinator_epoch: int


class SnapshotHeader(NamedTuple):
    last_contained_timestamp: int
    """The append time of the last record that the snapshot covers."""


class SnapshotFooter(NamedTuple):
    """The end of a complete snapshot."""


class KRaftVersion(NamedTuple):
    """The kraft.version of the quorum from this record on. Version 1 is the first in which voters can change."""

    version: int


class RecordedVoterEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


class RecordedVoter(NamedTuple):
    id: int
    directory_id: UUID | None
    endpoints: tuple[RecordedVoterEndpoint, ...]
    lowest_version: int = 0
    """The lowest quorum version that the voter supports."""
    highest_version: int = 1


class Voters(NamedTuple):
    """The voters of the quorum from this record on."""

    voters: tuple[RecordedVoter, ...]


class OtherControl(NamedTuple):
    """A control record of an unknown type."""

    type: int
    value: bytes | None


ControlRecord = LeaderChange | EndTransaction | SnapshotHeader | SnapshotFooter | KRaftVersion | Voters | OtherControl

_TYPES: dict[type[ControlRecord], ControlRecordType] = {
    LeaderChange: ControlRecordType.LEADER_CHANGE,
    SnapshotHeader: ControlRecordType.SNAPSHOT_HEADER,
    SnapshotFooter: ControlRecordType.SNAPSHOT_FOOTER,
    KRaftVersion: ControlRecordType.KRAFT_VERSION,
    Voters: ControlRecordType.KRAFT_VOTERS,
}


def control_type(key: bytes | None) -> int:
    """Returns the type in the key of a control record: a ControlRecordType, or an unknown number."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordError(f"a control record has the key {key!r}")
    _, number = _KEY.unpack_from(key)
    return int(number)


def decode(record: Record) -> ControlRecord:
    """Decodes a control record. Raises CorruptRecordError."""
    number = control_type(record.key)
    value = record.value or b""
    try:
        match number:
            case ControlRecordType.ABORT | ControlRecordType.COMMIT:
                _, coordinator_epoch = _END_TRANSACTION.unpack_from(value)
                return EndTransaction(number == ControlRecordType.COMMIT, coordinator_epoch)
            case ControlRecordType.LEADER_CHANGE:
                return _decode_leader_change(value)
            case ControlRecordType.SNAPSHOT_HEADER:
                return SnapshotHeader(_read(SnapshotHeaderRecord, value).last_contained_log_timestamp)
            case ControlRecordType.SNAPSHOT_FOOTER:
                _read(SnapshotFooterRecord, value)
                return SnapshotFooter()
            case ControlRecordType.KRAFT_VERSION:
                return KRaftVersion(_read(KRaftVersionRecord, value).k_raft_version)
            case ControlRecordType.KRAFT_VOTERS:
                return _decode_voters(value)
    except (struct.error, SerialError, ValueError) as error:
        raise CorruptRecordError(f"a control record of type {number} cannot be read: {error}") from None
    return OtherControl(number, record.value)


def end_of_transaction(batch: Batch) -> EndTransaction | None:
    """Returns the marker in a control batch; None for any other control record, and if compaction has removed it.

    Does not raise an error, because the batch is in the log, and its checksum is correct.
    """
    if not batch.count:
        return None
    try:
        record = next(iterate_records(batch))
        control = decode(record)
    except (*UNDECODABLE_ERRORS, StopIteration):
        return None
    return control if isinstance(control, EndTransaction) else None


def encode_key(control: ControlRecord) -> bytes:
    if isinstance(control, EndTransaction):
        number: int = ControlRecordType.COMMIT if control.commit else ControlRecordType.ABORT
    else:
        number = control.type if isinstance(control, OtherControl) else _TYPES[type(control)]
    return _KEY.pack(_VERSION, number)


def encode_value(control: ControlRecord) -> bytes | None:
    match control:
        case EndTransaction():
            return _END_TRANSACTION.pack(_VERSION, control.coordinator_epoch)
        case LeaderChange():
            return _encode_leader_change(control)
        case SnapshotHeader(timestamp):
            return _write(SnapshotHeaderRecord, version=_VERSION, last_contained_log_timestamp=timestamp)
        case SnapshotFooter():
            return _write(SnapshotFooterRecord, version=_VERSION)
        case KRaftVersion(version):
            return _write(KRaftVersionRecord, version=_VERSION, k_raft_version=version)
        case Voters():
            return _encode_voters(control)
        case OtherControl():
            return control.value


def _encode_leader_change(change: LeaderChange) -> bytes:
    """Encodes version 1 if directory ids are known, otherwise version 0."""
    version = 1 if any(voter.directory_id for voter in change.voters) else 0
    schema: Any = leader_change_v1 if version else leader_change_v0

    def voters(of: tuple[LeaderChangeVoter, ...]) -> tuple[Any, ...]:
        if version == 0:
            return tuple(schema.Voter(voter_id=voter.id) for voter in of)
        return tuple(schema.Voter(voter_id=voter.id, voter_directory_id=voter.directory_id) for voter in of)

    return _write(
        schema.LeaderChangeMessage,
        version=version,
        leader_id=change.leader_id,
        voters=voters(change.voters),
        granting_voters=voters(change.granting_voters),
    )


def _decode_leader_change(value: bytes) -> LeaderChange:
    version = int.from_bytes(value[:2], "big", signed=True)
    schema: Any = leader_change_v0 if version == 0 else leader_change_v1
    message = _read(schema.LeaderChangeMessage, value)

    def voters(of: Any) -> tuple[LeaderChangeVoter, ...]:
        return tuple(LeaderChangeVoter(voter.voter_id, getattr(voter, "voter_directory_id", None)) for voter in of)

    return LeaderChange(message.leader_id, voters(message.voters), voters(message.granting_voters))


def _encode_voters(voters: Voters) -> bytes:
    schema: Any = voters_record
    return _write(
        schema.VotersRecord,
        version=_VERSION,
        voters=tuple(
            schema.Voter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=tuple(
                    schema.Endpoint(name=at.listener, host=at.host, port=at.port) for at in voter.endpoints
                ),
                k_raft_version_feature=schema.KRaftVersionFeature(
                    min_supported_version=voter.lowest_version, max_supported_version=voter.highest_version
                ),
            )
            for voter in voters.voters
        ),
    )


def _decode_voters(value: bytes) -> Voters:
    message = _read(voters_record.VotersRecord, value)
    return Voters(
        tuple(
            RecordedVoter(
                voter.voter_id,
                voter.voter_directory_id,
                tuple(RecordedVoterEndpoint(at.name, at.host, at.port) for at in voter.endpoints),
                voter.k_raft_version_feature.min_supported_version,
                voter.k_raft_version_feature.max_supported_version,
            )
            for voter in message.voters
        )
    )


def _read(schema: Any, value: bytes) -> Any:
    message, _ = entity_reader(schema)(value, 0)
    return message


def _write(schema: Any, **fields: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, schema(**fields))
    return buffer.getvalue()
