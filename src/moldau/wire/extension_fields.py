"""Tagged fields that Moldau adds to Kafka's messages between its own nodes.

Decoders skip unknown tags, and an absent field has its default. Kafka numbers its tags from 0; these are far above.
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
    """The latest incarnations that are recorded on the broker's disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequestFields:
    not_ready: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG}, default=())
    """Replicas whose logs could not be opened, and why; reported to clients that wait for the topic."""
    not_writable: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG + 1}, default=())
    """Replicas that are intact but reject appends for now, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponseFields:
    confirmed_age_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """The time from the quorum's last confirmation of the controller to the arrival of the heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponseFields:
    metadata_offset: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The controller's metadata offset: a node that responds after it has applied it shows the client's change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseFields:
    silent_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """The time since the voter last heard from a leader: leases that a previous leader granted are older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchRequestFields:
    heard_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The `sent_ms` of the latest response that the replica got from the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchResponseFields:
    sent_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """When the leader of the quorum responded, by its own clock."""


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
"""By message name. Only flexible versions have tagged fields."""
