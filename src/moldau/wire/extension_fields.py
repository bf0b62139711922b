"""Fields that Moldau adds to Kafka's messages between its own nodes, as tagged fields: whoever does not know a tag
passes over it, and where a field is missing its default stands.

Kafka counts its tags up from 0; these are far above.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar
from uuid import UUID

FIRST_TAG = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReadyReplica:
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition_index: int = field(metadata={"kafka_type": "int32"})
    reason: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequestFields:
    former_incarnation_ids: tuple[UUID | None, ...] = field(
        metadata={"kafka_type": "uuid", "tag": FIRST_TAG}, default=()
    )
    """The lives that the broker's disk has seen last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequestFields:
    not_ready: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG}, default=())
    """Replicas that the broker could not open, and why: whoever waits for their topic is told."""
    not_writable: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG + 1}, default=())
    """Replicas that are whole and refuse what is new for the moment, and why. Whoever does not know the field leaves
    them as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponseFields:
    confirmed_age_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """How long before the heartbeat came a majority of the quorum had last confirmed the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponseFields:
    metadata_offset: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """How far the controller's metadata was when it answered: a node that waits until it has come as far shows its
    client what the client has just changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseFields:
    silent_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """For how long the voter had heard of no leader: the leases that a former one gave are older than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchRequestFields:
    heard_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The `sent_ms` of the newest answer that a replica of the metadata log has had of its leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchResponseFields:
    sent_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """When the leader of the quorum answered, by its own clock."""


EXTENSION_FIELDS: Mapping[str, type] = MappingProxyType(
    {
        "BrokerHeartbeatRequest": BrokerHeartbeatRequestFields,
        "BrokerRegistrationRequest": BrokerRegistrationRequestFields,
        "BrokerHeartbeatResponse": BrokerHeartbeatResponseFields,
        "EnvelopeResponse": EnvelopeResponseFields,
        "FetchRequest": MetadataFetchRequestFields,
        "FetchResponse": MetadataFetchResponseFields,
        "FetchSnapshotRequest": MetadataFetchRequestFields,
        "FetchSnapshotResponse": MetadataFetchResponseFields,
        "VoteResponse": VoteResponseFields,
    }
)
"""By the name of the message. Only its flexible versions have a place for tags."""
