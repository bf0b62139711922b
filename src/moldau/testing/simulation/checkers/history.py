"""The history of a run: the operations of the clients in order, and the final state. Checkers use no other input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Partition = tuple[str, int]
LogContent = Sequence[tuple[int, bytes]]
"""The offsets and values of the records in a log."""


@dataclass(slots=True)
class SendOperation:
    """A batch that a producer sends to one partition, including the retries of an idempotent producer."""

    producer: str
    partition: Partition
    values: Sequence[bytes]
    acks: int
    is_idempotent: bool
    invoked_at: int
    """The time of the request. Times are event numbers of the history."""
    completed_at: int | None = None
    is_acknowledged: bool = False
    offset: int | None = None
    """The offset of the first record. None before the acknowledgement, or if the response contains no offset."""


@dataclass(frozen=True, slots=True)
class PollOperation:
    """A fetch response of a consumer with manually assigned partitions."""

    consumer: str
    partition: Partition
    position: int
    high_watermark: int
    records: LogContent


@dataclass(frozen=True, slots=True)
class UnexpectedError:
    """An error that must not occur: an offset out of range, or a rejected sequence number of a producer."""

    client: str
    partition: Partition
    error: str


@dataclass(slots=True)
class TopicChange:
    topic: str
    is_creation: bool
    is_acknowledged: bool = False


@dataclass(slots=True)
class History:
    sends: list[SendOperation] = field(default_factory=list)
    polls: list[PollOperation] = field(default_factory=list)
    unexpected_errors: list[UnexpectedError] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    """Producer ids in the order of their allocation; each must be unique."""
    topic_changes: list[TopicChange] = field(default_factory=list)
    logs: dict[Partition, LogContent] = field(default_factory=dict)
    topics: Sequence[str] | None = None
    """Final topics; None if they were not read."""
    _events: int = 0

    def send(
        self, producer: str, partition: Partition, values: Sequence[bytes], *, acks: int, is_idempotent: bool = False
    ) -> SendOperation:
        send = SendOperation(producer, partition, values, acks, is_idempotent, invoked_at=self._next_event())
        self.sends.append(send)
        return send

    def acknowledge(self, send: SendOperation, offset: int | None) -> None:
        send.is_acknowledged = True
        send.offset = offset
        send.completed_at = self._next_event()

    def _next_event(self) -> int:
        self._events += 1
        return self._events


@dataclass(slots=True)
class ClusterHistory(History):
    lossy_topics: dict[str, str] = field(default_factory=dict)
    """Topics that may lose acknowledged records, with the reason."""
    replicas: dict[Partition, Mapping[int, LogContent]] = field(default_factory=dict)
    """The final log of each replica after healing, by partition and node id."""
    readers: dict[str, Sequence[Partition]] = field(default_factory=dict)
    """The partitions that each reader must read from offset 0 to the end, by the reader's name."""
    operations: int = 0
    """The number of polls, topic changes, reassignments and elections."""
