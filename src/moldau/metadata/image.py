"""The metadata image, which is an immutable view of the cluster's state, and the delta between two images.

`metadata/image_builder.py` applies records to an image. `metadata/loader.py` publishes images and deltas.
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
    features: tuple[tuple[str, int, int], ...] = ()
    """The lowest and highest supported level of each feature."""

    def supported_levels(self, feature: str) -> tuple[int, int]:
        """Returns the lowest and highest supported level; zeros if the broker does not support the feature."""
        return next(((low, high) for name, low, high in self.features if name == feature), (0, 0))

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and be in the ISR."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    """The id of the leader; NO_LEADER if no replica can be elected."""
    leader_epoch: int
    """Increases with every change of the leader, and whenever the leader's log may have become shorter."""
    partition_epoch: int
    """Increases with every change of the partition. An AlterPartition request contains the epoch it is based on."""
    adding_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment adds; `replicas` contains them too."""
    removing_replicas: tuple[int, ...] = ()
    """Replicas that a reassignment removes; `replicas` contains them until the reassignment completes."""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas: outside the ISR, but with all committed records (KIP-966)."""
    last_known_elr: tuple[int, ...] = ()
    """While there is no leader: the replicas that left the ISR or ELR because of an unclean shutdown."""
    is_recovering: bool = False
    """Whether the leader was elected uncleanly and has not yet reported that its log is consistent."""
    unclean_epoch: int = -1
    """The leader epoch of the last unclean election, which may have lost committed records; -1 if there was none."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def min_isr(self, configured: int) -> int:
        """Returns the effective min.insync.replicas: `configured`, limited to the number of
        replicas that are not being added."""
        return max(1, min(configured, len(self.replicas) - len(self.adding_replicas)))


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionRegistration, ...]
    """Sorted by index, without gaps."""


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource:
    """The resource of a configuration: a topic by name, or a broker by id ("" for all brokers)."""

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
    """The offset of the last applied record; -1 if there is none."""
    controller_epoch: int = -1
    controller_id: int = -1
    features: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    topic_names: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Values that were set explicitly. Defaults come from the settings registry."""
    next_producer_id: int = 0

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionRegistration | None:
        image = self.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index]

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        return self.configs.get(resource, MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The changes between two images."""

    topics_created: tuple[str, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    partitions_changed: tuple[tuple[str, int], ...] = ()
    """New or changed partitions, including all partitions of new topics."""
    configs_changed: tuple[ConfigResource, ...] = ()
    brokers_changed: tuple[int, ...] = ()
    features_changed: tuple[str, ...] = ()


EMPTY_IMAGE = MetadataImage()
