"""The records of the metadata log, in Kafka's format, so that Kafka's tools can read them.

The value of a record is a frame of `frame version, api key, version` (unsigned varints) and a body. Each class defines
one record type in the version that is written. A log with an unsupported version is rejected.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args
from uuid import UUID

from moldau.errors import CorruptRecordError, UnsupportedVersionError
from moldau.wire.kio import EntityType, SerialError, entity_reader, entity_writer
from moldau.wire.schema import FIRST_TAG

FRAME_VERSION = 1

NO_LEADER_CHANGE = -2
"""The leader in a PartitionChangeRecord that does not change the leader."""

NO_RECOVERY_STATE_CHANGE, RECOVERED, RECOVERING = -1, 0, 1
"""Values of leader_recovery_state; RECOVERING after an unclean election."""


def _wire(kafka_type: str, *, tag: int | None = None) -> dict[str, Any]:
    return {"kafka_type": kafka_type} if tag is None else {"kafka_type": kafka_type, "tag": tag}


class _Schema:
    """Class attributes that the codec requires. All metadata records are flexible."""

    __slots__ = ()
    __type__: ClassVar = EntityType.data
    __flexible__: ClassVar = True
    __version__: ClassVar[int] = 0
    """The version that is written."""
    __lowest__: ClassVar[int] = -1
    """The oldest version that can be read; -1 if only `__version__` can be read."""
    __api_key__: ClassVar[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint(_Schema):
    __version__: ClassVar[int] = 3
    name: str = field(metadata=_wire("string"))
    host: str = field(metadata=_wire("string"))
    port: int = field(metadata=_wire("uint16"))
    security_protocol: int = field(metadata=_wire("int16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeature(_Schema):
    __version__: ClassVar[int] = 3
    name: str = field(metadata=_wire("string"))
    min_supported_version: int = field(metadata=_wire("int16"))
    max_supported_version: int = field(metadata=_wire("int16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(_Schema):
    __api_key__: ClassVar[int] = 0
    __version__: ClassVar[int] = 3
    broker_id: int = field(metadata=_wire("int32"))
    is_migrating_zk_broker: bool = field(metadata=_wire("bool"), default=False)
    incarnation_id: UUID = field(metadata=_wire("uuid"))
    broker_epoch: int = field(metadata=_wire("int64"))
    end_points: tuple[BrokerEndpoint, ...] = field(default=())
    features: tuple[BrokerFeature, ...] = field(default=())
    rack: str | None = field(metadata=_wire("string"), default=None)
    fenced: bool = field(metadata=_wire("bool"), default=True)
    in_controlled_shutdown: bool = field(metadata=_wire("bool"), default=False)
    log_dirs: tuple[UUID | None, ...] = field(metadata=_wire("uuid", tag=0), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(_Schema):
    """Removes the registration of a broker."""

    __api_key__: ClassVar[int] = 1
    broker_id: int = field(metadata=_wire("int32"))
    broker_epoch: int = field(metadata=_wire("int64"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(_Schema):
    __api_key__: ClassVar[int] = 2
    name: str = field(metadata=_wire("string"))
    topic_id: UUID = field(metadata=_wire("uuid"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(_Schema):
    """A new partition. `directories` has one entry per replica; None is an unknown directory."""

    __api_key__: ClassVar[int] = 3
    __version__: ClassVar[int] = 2
    __lowest__: ClassVar[int] = 1
    partition_id: int = field(metadata=_wire("int32"))
    topic_id: UUID = field(metadata=_wire("uuid"))
    replicas: tuple[int, ...] = field(metadata=_wire("int32"))
    isr: tuple[int, ...] = field(metadata=_wire("int32"))
    removing_replicas: tuple[int, ...] = field(metadata=_wire("int32"), default=())
    adding_replicas: tuple[int, ...] = field(metadata=_wire("int32"), default=())
    leader: int = field(metadata=_wire("int32"))
    leader_recovery_state: int = field(metadata=_wire("int8", tag=0), default=0)
    leader_epoch: int = field(metadata=_wire("int32"))
    partition_epoch: int = field(metadata=_wire("int32"))
    directories: tuple[UUID | None, ...] = field(metadata=_wire("uuid"))
    eligible_leader_replicas: tuple[int, ...] | None = field(metadata=_wire("int32", tag=1), default=None)
    last_known_elr: tuple[int, ...] | None = field(metadata=_wire("int32", tag=2), default=None)
    unclean_epoch: int = field(metadata=_wire("int32", tag=FIRST_TAG), default=-1)
    """The leader epoch of the last unclean election. Kafka does not have this field. Snapshots need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(_Schema):
    """One setting of one resource. A value of None removes the setting."""

    __api_key__: ClassVar[int] = 4
    resource_type: int = field(metadata=_wire("int8"))
    resource_name: str = field(metadata=_wire("string"))
    name: str = field(metadata=_wire("string"))
    value: str | None = field(metadata=_wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(_Schema):
    """A change of a partition. If `leader` is set, a new leader epoch starts, even if the leader stays the same."""

    __api_key__: ClassVar[int] = 5
    __version__: ClassVar[int] = 2
    __lowest__: ClassVar[int] = 1
    partition_id: int = field(metadata=_wire("int32"))
    topic_id: UUID = field(metadata=_wire("uuid"))
    isr: tuple[int, ...] | None = field(metadata=_wire("int32", tag=0), default=None)
    leader: int = field(metadata=_wire("int32", tag=1), default=NO_LEADER_CHANGE)
    replicas: tuple[int, ...] | None = field(metadata=_wire("int32", tag=2), default=None)
    removing_replicas: tuple[int, ...] | None = field(metadata=_wire("int32", tag=3), default=None)
    adding_replicas: tuple[int, ...] | None = field(metadata=_wire("int32", tag=4), default=None)
    leader_recovery_state: int = field(metadata=_wire("int8", tag=5), default=-1)
    eligible_leader_replicas: tuple[int, ...] | None = field(metadata=_wire("int32", tag=6), default=None)
    last_known_elr: tuple[int, ...] | None = field(metadata=_wire("int32", tag=7), default=None)
    directories: tuple[UUID | None, ...] | None = field(metadata=_wire("uuid", tag=8), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(_Schema):
    __api_key__: ClassVar[int] = 9
    topic_id: UUID = field(metadata=_wire("uuid"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(_Schema):
    """The finalized level of a feature; level 0 removes the feature."""

    __api_key__: ClassVar[int] = 12
    name: str = field(metadata=_wire("string"))
    feature_level: int = field(metadata=_wire("int16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(_Schema):
    """All producer ids below `next_producer_id` are allocated."""

    __api_key__: ClassVar[int] = 15
    broker_id: int = field(metadata=_wire("int32"))
    broker_epoch: int = field(metadata=_wire("int64"), default=-1)
    next_producer_id: int = field(metadata=_wire("int64"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(_Schema):
    """A change of a broker's registration. For `fenced`, 1 fences the broker, -1 unfences it, 0 changes nothing."""

    __api_key__: ClassVar[int] = 17
    __version__: ClassVar[int] = 2
    broker_id: int = field(metadata=_wire("int32"))
    broker_epoch: int = field(metadata=_wire("int64"))
    fenced: int = field(metadata=_wire("int8", tag=0), default=0)
    in_controlled_shutdown: int = field(metadata=_wire("int8", tag=1), default=0)
    log_dirs: tuple[UUID | None, ...] = field(metadata=_wire("uuid", tag=2), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(_Schema):
    """Advances the offset and changes nothing else."""

    __api_key__: ClassVar[int] = 20


Record = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
)

RECORD_TYPES: tuple[type[Record], ...] = get_args(Record)


def _versions(kind: type[Record]) -> range:
    return range(kind.__version__ if kind.__lowest__ < 0 else kind.__lowest__, kind.__version__ + 1)


# The frame version, the api key and the record version are varints below 128, so each takes one byte.
_FRAME_SIZE = 3
_WRITERS: dict[type, tuple[bytes, Callable[[io.BytesIO, Any], None]]] = {
    kind: (bytes((FRAME_VERSION, kind.__api_key__, kind.__version__)), entity_writer(kind)) for kind in RECORD_TYPES
}
_READERS: dict[int, tuple[range, Callable[[bytes, int], tuple[Any, int]]]] = {
    kind.__api_key__: (_versions(kind), entity_reader(kind)) for kind in RECORD_TYPES
}


def encode(record: Record) -> bytes:
    """Returns the value of the record in the metadata log."""
    frame, write = _WRITERS[type(record)]
    out = io.BytesIO()
    out.write(frame)
    write(out, record)
    return out.getvalue()


def decode(value: bytes) -> Record:
    """Decodes a record's value. Its checksum must be verified first, because the codec trusts the element counts."""
    if len(value) < _FRAME_SIZE:
        raise CorruptRecordError(f"a metadata record of {len(value)} bytes is shorter than its frame")
    frame_version, api_key, version = value[0], value[1], value[2]
    if frame_version != FRAME_VERSION:
        raise UnsupportedVersionError(f"metadata records of frame version {frame_version} are not supported")
    known = _READERS.get(api_key)
    if known is None:
        raise UnsupportedVersionError(f"metadata records with api key {api_key} are not supported")
    if version not in known[0]:
        raise UnsupportedVersionError(
            f"metadata records with api key {api_key} are supported in version {known[0][-1]}, not {version}"
        )
    try:
        record: Record
        record, size = known[1](value, _FRAME_SIZE)
    except SerialError as error:
        raise CorruptRecordError(f"a metadata record of key {api_key} cannot be decoded: {error}") from error
    if _FRAME_SIZE + size != len(value):
        raise CorruptRecordError(f"a metadata record of key {api_key} has trailing bytes")
    return record
