"""What callers ask of the controller and what they get back: plain values, the same whether asked over the
Kafka wire, over HTTP or from a test. Every item of a call succeeds or fails on its own."""

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
    """-1 takes num.partitions."""
    replication_factor: int = -1
    """-1 takes default.replication.factor."""
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Replicas by partition, for a manual placement; then partitions and replication_factor are -1."""
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


# Between brokers and their controller


@dataclass(frozen=True, slots=True)
class BrokerRegistrationRequest:
    """What a broker says of itself when it starts."""

    broker_id: int
    incarnation_id: UUID
    """New with every start of the process."""
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    cluster_id: str = ""
    """Empty is not checked."""
    previous_epoch: int = -1
    """The broker epoch of its former life, if that ended cleanly: its logs are as it left them. -1: records that
    were not yet safe may be gone."""
    previous_incarnations: Sequence[UUID] = ()
    """The lives that its disk has seen last, however they ended. The registered one is among them, unless this is
    another disk or an older state of it."""
    features: Mapping[str, tuple[int, int]] | None = None
    """Lowest and highest level by name; None is this version's own."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    broker_id: int
    broker_epoch: int
    metadata_offset: int
    """The last metadata record that all of the broker has taken: logs of topics up to there are open, save those in
    `not_ready`."""
    want_fence: bool = False
    want_shut_down: bool = False
    not_ready: Sequence["OfflineReplica"] = ()


@dataclass(frozen=True, slots=True)
class OfflineReplica:
    """A replica that its broker could not open or write, and why."""

    topic_id: UUID
    partition: int
    broker_id: int
    reason: str
    is_transient: bool = False
    """It is whole and can be read, and refuses only what is new: its disk is full, say."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatReply:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    confirmed_age_ms: int = 0
    """How long before the heartbeat came a majority of the quorum had last confirmed the controller. The lease counts
    from then: another controller may have been elected since."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What the leader of a partition wants its in-sync set to be (AlterPartition)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    """Of the state the change was thought up on; another one since refuses it."""
    isr: tuple[tuple[int, int], ...]
    """Broker ids with their broker epochs: a member that started anew since is refused."""
    is_recovering: bool = False


@dataclass(frozen=True, slots=True)
class IsrChangeResult:
    """The partition as it is after the change, or why there was none."""

    topic_id: UUID
    partition: int
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    is_recovering: bool = False
    partition_epoch: int = -1
    error: MoldauError | None = None


class ElectionType(IntEnum):
    """As ElectLeaders numbers them."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """For elections and reassignments, partition by partition."""

    topic: str
    partition: int
    error: MoldauError | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """The new ones, the first preferred; None cancels the reassignment under way."""


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
