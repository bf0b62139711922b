"""Arguments and results of admin requests."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from moldau.client.errors import KafkaError
from moldau.client.net.metadata import BrokerInfo
from moldau.client.record import TopicPartition

BROKER_DEFAULT = -1
"""A partition count or replication factor that the broker chooses."""

# Topics and partitions


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The replicas of each partition, to override the brokers' choice."""

    def may_have_created(self, topic: "CreatedTopic") -> bool:
        """Returns whether `topic` has the requested partitions and replicas."""
        if self.assignments:
            return len(self.assignments) == topic.partitions
        return self.partitions in (BROKER_DEFAULT, topic.partitions) and (
            self.replication_factor in (BROKER_DEFAULT, topic.replication_factor)
        )


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    """Elects the first replica, if it is in sync."""
    UNCLEAN = 1
    """Elects any live replica if none is in sync; records may be lost."""


class OngoingReassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


# Brokers and configs


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    UNKNOWN = -1
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Operation(enum.IntEnum):
    """How a config changes; APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str
    """The name of the resource. For a broker it is the broker id, or empty for the defaults of all brokers."""


class ConfigChange(NamedTuple):
    name: str
    value: str | None
    operation: Operation = Operation.SET


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None if the config is unset or sensitive."""
    source: int
    """A ConfigSource, or another number from a newer broker."""
    is_read_only: bool
    is_sensitive: bool
    synonyms: Sequence[ConfigSynonym] = ()
    """All sources that set the config. The effective source comes first."""
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    """The broker to which changes should be sent. Other brokers forward changes."""
    brokers: tuple[BrokerInfo, ...]
    fenced: tuple[BrokerInfo, ...] = ()
    """The registered brokers that are not live, if requested."""


class LogDirReplica(NamedTuple):
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: KafkaError | None
    replicas: Mapping[TopicPartition, LogDirReplica]
    total_bytes: int
    """The size of the volume; -1 if the broker did not return it."""
    usable_bytes: int


# The quorum


class NodeEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


class QuorumReplica(NamedTuple):
    node_id: int
    directory_id: UUID | None
    end_offset: int
    last_fetch_ms: int
    """The wall clock time of the last fetch, as measured by the leader; -1 if the replica never fetched."""
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[NodeEndpoint, ...]]
    """The addresses that voters use among themselves, by node id."""

    def replica(self, node_id: int) -> QuorumReplica | None:
        """Returns the replica of a node. A voter is preferred to an observer, then the replica that fetched last."""
        for replicas in (self.voters, self.observers):
            found = [each for each in replicas if each.node_id == node_id]
            if found:
                return max(found, key=lambda each: each.last_fetch_ms)
        return None


# Groups


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """`consumer`, another type such as `connect`, or empty for a group that only has offsets."""
    state: str
    type: str
    """`classic` or `consumer`; empty if the broker did not return it."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """The subscribed topics; empty if unknown or if the member is not a consumer."""
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    """The protocol that the group selected; for consumers the name of the assignor."""
    members: tuple[MemberDescription, ...]
    coordinator: int


class MemberToRemove(NamedTuple):
    """A member to remove, identified by its member id or only by its instance id."""

    member_id: str = ""
    instance_id: str | None = None
