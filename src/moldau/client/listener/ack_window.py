"""The sliding window of records that a handler has received and not acknowledged. Pure.

Records can be acknowledged in any order. The window of a partition starts at its first record that is not acknowledged,
and the offset of this record can be committed: all records before it are acknowledged.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.record import ConsumerRecord, TopicPartition

_NONE = -1


class _Received(NamedTuple):
    leader_epoch: int
    size: int


@dataclass(slots=True)
class _PartitionWindow:
    received: "OrderedDict[int, _Received]" = field(default_factory=OrderedDict)
    """The records from the first one that is not acknowledged on, by offset, in the order of offsets. An OrderedDict
    finds its first key in constant time, a dict only after skipping all keys that were removed before it."""
    acknowledged: set[int] = field(default_factory=set)
    """The offsets in `received` that are acknowledged."""
    last_offset: int = _NONE
    next_commit: OffsetAndMetadata | None = None
    """The offset to commit; None if no record was acknowledged since the last commit."""


class AckWindow:
    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._partitions: dict[TopicPartition, _PartitionWindow] = {}
        self.records = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.records >= self._records_max or self.bytes >= self._bytes_max

    def add(self, record: ConsumerRecord) -> None:
        partition = TopicPartition(record.topic, record.partition)
        window = self._partitions.setdefault(partition, _PartitionWindow())
        if record.offset <= window.last_offset:
            # The consumer has gone back, so these records are received again.
            self.remove([partition])
            window = self._partitions[partition] = _PartitionWindow()
        size = _record_size(record)
        window.received[record.offset] = _Received(record.leader_epoch, size)
        window.last_offset = record.offset
        self.records += 1
        self.bytes += size

    def assignment_of(self, partition: TopicPartition) -> object:
        """Returns an object that identifies the current assignment of a partition, or None if it has no records here.
        Records that are received again after a rebalance belong to another assignment."""
        return self._partitions.get(partition)

    def contains(self, partition: TopicPartition, offset: int) -> bool:
        """Returns whether a record was received and is not acknowledged."""
        window = self._partitions.get(partition)
        return window is not None and offset in window.received and offset not in window.acknowledged

    def acknowledge(self, partition: TopicPartition, offset: int) -> None:
        """Does nothing if the record is not in the window: its partition was revoked, or it was acknowledged before
        and the window has moved on."""
        window = self._partitions.get(partition)
        if window is None or offset not in window.received:
            return
        window.acknowledged.add(offset)
        while window.received and (first := next(iter(window.received))) in window.acknowledged:
            window.acknowledged.remove(first)
            received = window.received.pop(first)
            window.next_commit = OffsetAndMetadata(first + 1, leader_epoch=received.leader_epoch)
            self.records -= 1
            self.bytes -= received.size

    def first_unacknowledged(self) -> dict[TopicPartition, int]:
        """Returns the offset of the first record of each partition that is not acknowledged."""
        return {each: next(iter(window.received)) for each, window in self._partitions.items() if window.received}

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {each: window.next_commit for each, window in self._partitions.items() if window.next_commit is not None}

    def on_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition, offset in offsets.items():
            window = self._partitions.get(partition)
            if window is not None and window.next_commit == offset:
                window.next_commit = None

    def clear(self) -> None:
        self._partitions.clear()
        self.records = self.bytes = 0

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets revoked partitions. Their next owner starts at their committed offset."""
        for partition in partitions:
            window = self._partitions.pop(partition, None)
            if window is not None:
                self.records -= len(window.received)
                self.bytes -= sum(each.size for each in window.received.values())


def _record_size(record: ConsumerRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
