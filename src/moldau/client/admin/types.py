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


# Transactions


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    """For example Ongoing, PrepareCommit or CompleteCommit."""
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, as its coordinator knows it."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """When the current or last transaction started, by the clock of the coordinator; -1 if there was none."""
    partitions: tuple[TopicPartition, ...]
    """The partitions of the open transaction. If its outcome is decided, only those that do not have the marker yet."""
    client_id: str = ""
    """The client id of the producer. Only Moldau returns client id and host; on Apache Kafka both are empty."""
    client_host: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a transaction is ongoing, or its markers are not written yet."""
        return self.state == "Ongoing" or self.state.startswith("Prepare")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer, as the leader of a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    """The timestamp of the last batch, by the clock of the producer."""
    coordinator_epoch: int
    """The coordinator epoch of the last marker; -1 if there was none."""
    transaction_start_offset: int | None
    """The first offset of the open transaction; None if no transaction is open in the partition."""
    transactional_id: str = ""
    """The owner of the open transaction. It is empty on Apache Kafka, and after a change of the leader."""
    client_id: str = ""
    client_host: str = ""


class AbortTransactionSpec(NamedTuple):
    """A transaction that is open in one partition, for `Admin.abort_transaction`."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class OpenTransactionStatus(enum.Enum):
    ONGOING = "ongoing"
    """The producer can still commit it. The coordinator aborts it when it times out."""
    ENDING = "ending"
    """The outcome is decided, and the coordinator is writing the markers."""
    HANGING = "hanging"
    """The coordinator does not know the transaction, or not in this partition: no marker will follow."""
    UNKNOWN = "unknown"
    """The coordinator did not respond. The transaction cannot time out until the coordinator is back."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer: ProducerState
    start_offset: int
    status: OpenTransactionStatus
    transaction: TransactionDescription | None
    """What the coordinator knows of the producer; None if it does not know the producer id."""
    waiting_records: int
    """The number of offsets from the first one of the transaction to the high watermark. Consumers with read_committed
    do not get them until all open transactions before them have ended."""

    @property
    def transactional_id(self) -> str:
        """The transactional id as the coordinator knows it, or else the leader; empty if neither does."""
        return self.producer.transactional_id if self.transaction is None else self.transaction.transactional_id

    @property
    def client_id(self) -> str:
        return self.producer.client_id or (self.transaction.client_id if self.transaction else "")

    @property
    def client_host(self) -> str:
        return self.producer.client_host or (self.transaction.client_host if self.transaction else "")

    @property
    def abort_spec(self) -> AbortTransactionSpec:
        # Every coordinator epoch is at least 0. A partition without a marker of the producer does not know one.
        epoch = max(0, self.producer.coordinator_epoch)
        return AbortTransactionSpec(self.partition, self.producer.producer_id, self.producer.producer_epoch, epoch)

    def age_ms(self, now_ms: int) -> int | None:
        """Returns for how long the transaction has been open; None if unknown.

        Of a hanging or unknown one this is the time since its last batch, if the timestamps of the batch are current.
        """
        since_ms = self.producer.last_timestamp_ms
        if self.transaction is not None and self.status is not OpenTransactionStatus.HANGING:
            since_ms = self.transaction.start_ms
        return None if since_ms < 0 else max(0, now_ms - since_ms)

    def remaining_ms(self, now_ms: int) -> int | None:
        """Returns the time until the coordinator aborts the transaction; None if it is not ongoing."""
        if self.transaction is None or self.status is not OpenTransactionStatus.ONGOING:
            return None
        return max(0, self.transaction.start_ms + self.transaction.timeout_ms - now_ms)


class OpenTransactions(NamedTuple):
    transactions: list[OpenTransaction]
    """Sorted by partition and first offset. The first one of each partition holds back its last stable offset."""
    errors: Mapping[TopicPartition, KafkaError]
    """The partitions whose leader, or the coordinator of whose transactions, did not respond."""

    @property
    def holders(self) -> list[OpenTransaction]:
        """The transaction that holds back the last stable offset of each partition."""
        return list({each.partition: each for each in reversed(self.transactions)}.values())[::-1]
