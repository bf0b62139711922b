"""Requests to the controller and their results, as plain values independent of the wire protocol. Each item of a
request succeeds or fails on its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from moldau.errors import MoldauError
from moldau.metadata.image import ConfigResource, Endpoint


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    """-1 for num.partitions."""
    replication_factor: int = -1
    """-1 for default.replication.factor."""
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Replicas by partition for manual placement; partitions and replication_factor must be -1 then."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopicResult:
    name: str
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    error: MoldauError | None = None


@dataclass(frozen=True, slots=True)
class PartitionIncrease:
    topic: str
    count: int
    """The new total."""
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicRef:
    """By name or by id; the other is None."""

    name: str | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """For deletions and partition additions."""

    name: str | None
    topic_id: UUID | None = None
    error: MoldauError | None = None


class ConfigOperation(IntEnum):
    """As IncrementalAlterConfigs numbers them."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class ConfigResult:
    resource: ConfigResource
    error: MoldauError | None = None


# Requests of brokers


@dataclass(frozen=True, slots=True)
class BrokerRegistrationRequest:
    broker_id: int
    incarnation_id: UUID
    """Random for each start of the process."""
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    cluster_id: str = ""
    """Not checked if empty."""
    previous_epoch: int = -1
    """The broker epoch of the previous incarnation if it shut down cleanly; -1 if unsynced records may be lost."""
    previous_incarnations: Sequence[UUID] = ()
    """The last incarnations that ran on the broker's disk. If the registered one is missing, the disk is another one or
    holds an older state."""
    features: Mapping[str, tuple[int, int]] | None = None
    """Lowest and highest level by name; None for those of this version."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    broker_id: int
    broker_epoch: int
    metadata_offset: int
    """The last published metadata record: the broker has opened the logs of all replicas up to here, except those in
    `not_ready`."""
    want_fence: bool = False
    want_shut_down: bool = False
    not_ready: Sequence["OfflineReplica"] = ()


@dataclass(frozen=True, slots=True)
class OfflineReplica:
    topic_id: UUID
    partition: int
    broker_id: int
    reason: str
    is_transient: bool = False
    """Whether it can be read but not written for now, for example on a full disk."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatReply:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    confirmed_age_ms: int = 0
    """How long before the heartbeat a majority of the quorum last confirmed the controller. The lease counts from
    then: another controller may have been elected since."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR change requested by a partition's leader (AlterPartition)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    """Of the leader's metadata; the change is rejected if the partition has changed since."""
    isr: tuple[tuple[int, int], ...]
    """Broker ids with broker epochs; a member that registered again since is rejected."""
    is_recovering: bool = False


@dataclass(frozen=True, slots=True)
class IsrChangeResult:
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
    """Values of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Result of an election or a reassignment."""

    topic: str
    partition: int
    error: MoldauError | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """The target replicas, the preferred one first; None cancels the ongoing reassignment."""


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
