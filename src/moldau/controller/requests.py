"""What callers ask of the controller and what they get back: plain values, the same whether asked over the
Kafka wire, over HTTP or from a test. Every item of a call succeeds or fails on its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from moldau.errors import MoldauError
from moldau.metadata.image import ConfigResource


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
class TopicCreated:
    name: str
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    error: MoldauError | None = None


@dataclass(frozen=True, slots=True)
class MorePartitions:
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
