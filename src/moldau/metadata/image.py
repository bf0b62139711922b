"""The cluster as the committed metadata log describes it: one immutable value.

Records give the next image (`metadata/image_builder.py`); what changed between two is the delta that every part of
the node is told of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Endpoint:
    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool = False

    @property
    def is_active(self) -> bool:
        """May lead partitions and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    """NO_LEADER while none can be had."""
    leader_epoch: int
    """Grows with every change of the leader, and where a leader's log may have become shorter."""
    partition_epoch: int
    """Grows with every change of the partition: who asks for one says which state it was thought up on."""
    adding_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment adds; they are in `replicas` too."""
    removing_replicas: tuple[int, ...] = ()
    """Replicas that leave when the reassignment is done; they are in `replicas` until then."""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas: not in sync, but known to have all that is committed (KIP-966)."""
    last_known_elr: tuple[int, ...] = ()
    """The last leader, where neither in-sync nor eligible replicas are left."""
    is_recovering: bool = False
    """Elected uncleanly: its leader has not yet said that its log is in order."""
    unclean_epoch: int = -1
    """The leader epoch of the last unclean election: records of epochs before it may be gone though they were
    committed."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def min_isr(self, configured: int) -> int:
        """How many replicas must be in sync for a write to be taken: as configured, but no more than there are.
        Those that a reassignment adds do not count before it is done."""
        return max(1, min(configured, len(self.replicas) - len(self.adding_replicas)))


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionRegistration, ...]
    """By index, without gaps."""


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource:
    """What a configuration belongs to: a topic by name, or a broker by id ("" for all brokers)."""

    type: int
    name: str


TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32


@dataclass(frozen=True, slots=True)
class MetadataImage:
    cluster_id: str = ""
    offset: int = -1
    """The offset of the last metadata record in it."""
    controller_epoch: int = -1
    controller_id: int = -1
    features: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    topic_names: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Only what was set; defaults come from the settings registry."""
    next_producer_id: int = 0

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.configs.get(resource, MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """What changed from one image to the next, by name, so that nobody compares whole images."""

    topics_created: tuple[str, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    partitions_changed: tuple[tuple[str, int], ...] = ()
    """Created, or with a new leader, epoch, in-sync set or replicas; those of created topics too."""
    configs_changed: tuple[ConfigResource, ...] = ()
    brokers_changed: tuple[int, ...] = ()
    features_changed: tuple[str, ...] = ()


EMPTY_IMAGE = MetadataImage()

__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CLIENT_METRICS_RESOURCE",
    "EMPTY_IMAGE",
    "GROUP_RESOURCE",
    "NO_LEADER",
    "TOPIC_RESOURCE",
    "BrokerRegistration",
    "ConfigResource",
    "Endpoint",
    "MetadataDelta",
    "MetadataImage",
    "PartitionRegistration",
    "TopicImage",
]
