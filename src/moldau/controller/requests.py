"""Requests to the controller and their results, as plain values independent of the wire protocol. Each item of a
request succeeds or fails independently of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from moldau.errors import MoldauError
from moldau.metadata.image import ConfigResource, Endpoint


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    """The number of partitions; -1 means the setting num.partitions."""
    replication_factor: int = -1
    """The number of replicas per partition; -1 means the setting default.replication.factor."""
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The replicas of each partition, for manual placement. If set, `partitions` and `replication_factor` must be
    -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class CreateTopicResult(NamedTuple):
    name: str
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    error: MoldauError | None = None


@dataclass(frozen=True, slots=True)
class PartitionIncrease:
    topic: str
    count: int
    """The total number of partitions after the increase."""
    assignments: Sequence[Sequence[int]] | None = None


class TopicRef(NamedTuple):
    """A reference to a topic, either by name or by id. The other field is None."""

    name: str | None = None
    topic_id: UUID | None = None


class TopicResult(NamedTuple):
    """The result of a deletion or of a partition increase."""

    name: str | None
    topic_id: UUID | None = None
    error: MoldauError | None = None


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs, with their protocol values."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


class ConfigResult(NamedTuple):
    resource: ConfigResource
    error: MoldauError | None = None


class UpgradeType(IntEnum):
    """The upgrade types of UpdateFeatures, with their protocol values."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE
    """The upgrade type in the request, which may be undefined."""


# Requests of brokers


class BrokerRegistrationRequest(NamedTuple):
    broker_id: int
    incarnation_id: UUID
    """A random id that is new at each start of the process."""
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    cluster_id: str = ""
    """The cluster that the broker belongs to; not checked if empty."""
    previous_epoch: int = -1
    """The broker epoch of the previous incarnation if that incarnation shut down cleanly. -1 means that unsynced
    records may be lost."""
    previous_incarnations: Sequence[UUID] = ()
    """The latest incarnations that ran on the broker's disk. If the incarnation that is registered in the metadata is
    not among them, the broker has another disk, or an older state of its disk."""
    features: Mapping[str, tuple[int, int]] | None = None
    """The lowest and highest supported level of each feature; None means `SUPPORTED_FEATURES`."""


class BrokerHeartbeat(NamedTuple):
    broker_id: int
    broker_epoch: int
    metadata_offset: int
    """The offset of the last metadata record that the broker has applied. The broker has opened the logs of its
    replicas in that metadata, except those in `not_ready`."""
    want_fence: bool = False
    want_shut_down: bool = False
    not_ready: Sequence["OfflineReplica"] = ()


class OfflineReplica(NamedTuple):
    topic_id: UUID
    partition: int
    broker_id: int
    reason: str
    is_transient: bool = False
    """Whether the replica can be read but currently not written, for example because its disk is full."""


class BrokerHeartbeatReply(NamedTuple):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    confirmed_age_ms: int = 0
    """How long before the heartbeat a majority of the quorum last confirmed the controller. The broker subtracts this
    time from its lease, because another controller may have been elected in this time."""


class IsrChange(NamedTuple):
    """An ISR change requested by a partition's leader (AlterPartition)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    """The partition epoch in the leader's metadata. The change is rejected if the partition has changed since this
    epoch."""
    isr: tuple[tuple[int, int], ...]
    """The broker id and broker epoch of each ISR member. A member that has registered again with a newer epoch is
    rejected."""
    is_recovering: bool = False


class IsrChangeResult(NamedTuple):
    """The partition after the change, or the error."""

    topic_id: UUID
    partition: int
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    is_recovering: bool = False
    partition_epoch: int = -1
    error: MoldauError | None = None


class ElectionType(IntEnum):
    """The election types of ElectLeaders, with their protocol values."""

    PREFERRED = 0
    UNCLEAN = 1


class PartitionResult(NamedTuple):
    """The result of an election or a reassignment for one partition."""

    topic: str
    partition: int
    error: MoldauError | None = None


class Reassignment(NamedTuple):
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """The target replicas, the preferred one first; None cancels the ongoing reassignment."""


class OngoingReassignment(NamedTuple):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
