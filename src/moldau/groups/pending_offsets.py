"""Offsets that were committed in transactions which have not ended, by producer id. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moldau.groups.records import CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import TopicKey, TopicPartition


@dataclass(slots=True)
class PendingOffset:
    record: OffsetCommitRecord
    end_offset: int
    """The end offset of the batch with this record. It orders the commits of a partition."""
    is_superseded: bool = False
    """Whether a record with a later offset has committed the partition. A commit of the transaction then changes
    nothing, so that the state is the same as after compaction, which keeps only the latest record."""

    @property
    def committed(self) -> CommittedOffset:
        assert self.record.committed is not None, "a tombstone is never pending"
        return self.record.committed

    @property
    def topic_key(self) -> TopicKey:
        return self.record.topic, self.committed.topic_id


class PendingOffsets:
    """The pending offsets of one partition of `__consumer_offsets`. A producer has one open transaction at most."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = {}
        self._by_group: dict[str, dict[TopicPartition, dict[int, PendingOffset]]] = {}
        """The same pending offsets by group id, partition and producer id."""

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    # Changes

    def add(self, producer_id: int, record: OffsetCommitRecord, end_offset: int) -> None:
        """Adds an offset, or replaces the one that the transaction has for this partition."""
        pending = PendingOffset(record, end_offset)
        group_id, partition = record.group_id, (record.topic, record.partition)
        self._by_producer.setdefault(producer_id, {})[group_id, partition] = pending
        self._by_group.setdefault(group_id, {}).setdefault(partition, {})[producer_id] = pending

    def supersede(self, record: OffsetCommitRecord, end_offset: int) -> None:
        """Marks the pending offsets of a partition that are older than a committed record."""
        for pending in self._of_partition(record.group_id, (record.topic, record.partition)).values():
            if pending.end_offset < end_offset:
                pending.is_superseded = True

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Removes the pending offsets of a partition from all transactions, after a tombstone."""
        for producer_id in list(self._of_partition(group_id, partition)):
            self._discard(producer_id, group_id, partition)

    def end_transaction(self, producer_id: int) -> list[PendingOffset]:
        """Removes and returns the pending offsets of a producer."""
        ended = dict(self._by_producer.get(producer_id, {}))
        for group_id, partition in ended:
            self._discard(producer_id, group_id, partition)
        return list(ended.values())

    def _discard(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        offsets = self._by_producer[producer_id]
        del offsets[group_id, partition]
        if not offsets:
            del self._by_producer[producer_id]
        partitions = self._by_group[group_id]
        del partitions[partition][producer_id]
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del self._by_group[group_id]

    # Lookup

    def has(self, group_id: str, partition: TopicPartition) -> bool:
        return partition in self._by_group.get(group_id, ())

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group

    def partitions_of_group(self, group_id: str) -> Iterable[TopicPartition]:
        return self._by_group.get(group_id, {}).keys()

    def topics(self) -> Iterable[TopicKey]:
        """Returns all topics with offsets that a commit would apply."""
        return dict.fromkeys(each.topic_key for each in self._applicable())

    def partitions_of_topic(self, key: TopicKey, committed_until_ms: int | None = None) -> Iterator[tuple[str, int]]:
        """Yields group id and partition of the offsets of a topic that a commit would apply, and that were committed
        until `committed_until_ms`."""
        for each in self._applicable():
            is_late = committed_until_ms is not None and each.committed.commit_timestamp_ms > committed_until_ms
            if each.topic_key == key and not is_late:
                yield each.record.group_id, each.record.partition

    def _of_partition(self, group_id: str, partition: TopicPartition) -> dict[int, PendingOffset]:
        return self._by_group.get(group_id, {}).get(partition, {})

    def _applicable(self) -> Iterator[PendingOffset]:
        for offsets in self._by_producer.values():
            for pending in offsets.values():
                if not pending.is_superseded:
                    yield pending
