"""Tagged fields that Moldau adds to Kafka's messages between Moldau nodes.

Decoders skip unknown tags, and an absent field has its default value. Kafka numbers its tags from 0. The tags here
start at `FIRST_TAG`, so that they do not collide with future tags of Kafka.
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
    """The ids of the latest incarnations of the broker that are recorded on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequestFields:
    not_ready: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG}, default=())
    """Replicas whose logs could not be opened, with the reason. Clients that wait for the topic get this reason."""
    not_writable: tuple[NotReadyReplica, ...] = field(metadata={"tag": FIRST_TAG + 1}, default=())
    """Replicas that are intact but temporarily reject appends, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponseFields:
    confirmed_age_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """The time in milliseconds between the last confirmation of the controller by the quorum and this heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeResponseFields:
    metadata_offset: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The metadata offset of the controller after the change; -1 if unknown.

    The forwarding node applies the metadata up to this offset before it responds. So the client then sees the change on
    that node.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseFields:
    silent_ms: int = field(metadata={"kafka_type": "int32", "tag": FIRST_TAG}, default=0)
    """The minimum time in milliseconds for which the voter has had no leader.

    Leases from a previous leader were granted before that time.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchRequestFields:
    heard_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The `sent_ms` of the latest response that the replica received from the leader; -1 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchResponseFields:
    sent_ms: int = field(metadata={"kafka_type": "int64", "tag": FIRST_TAG}, default=-1)
    """The time of the response by the clock of the quorum's leader; -1 if the node is not the leader."""


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
"""The added fields by message name. Only flexible versions have tagged fields."""
