"""Committed offsets of one partition of `__consumer_offsets`, by group, topic and partition."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.errors import MoldauError, OffsetMetadataTooLargeError
from moldau.groups.records import NO_EXPIRY, NO_LEADER_EPOCH, CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import OffsetToCommit, PartitionErrors, TopicKey, TopicPartition


class OffsetExpirationCondition(NamedTuple):
    """Decides whether an offset has expired. The retention time starts at the commit, or at `start_ms` if that is
    later. An offset with an expire timestamp expires at that time instead."""

    retention_ms: int
    start_ms: int = 0

    def is_expired(self, committed: CommittedOffset, wall_ms: int) -> bool:
        if committed.expire_timestamp_ms != NO_EXPIRY:
            return wall_ms >= committed.expire_timestamp_ms
        return wall_ms - max(committed.commit_timestamp_ms, self.start_ms) >= self.retention_ms


class CommittedOffsets:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._groups_by_topic: dict[TopicKey, dict[str, int]] = {}
        """For each topic, the number of committed offsets by group id."""

    def apply(self, record: OffsetCommitRecord) -> None:
        previous = self.get(record.group_id, record.topic, record.partition)
        if record.committed is None:
            self._remove(record)
        else:
            topics = self._groups.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = record.committed
        if previous is None or record.committed is None or previous.topic_id != record.committed.topic_id:
            self._count_offsets(record, previous, -1)
            self._count_offsets(record, record.committed, 1)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def has_any(self, group_id: str) -> bool:
        return group_id in self._groups

    def offsets_of_group(self, group_id: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for topic, partitions in self._groups.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def topics(self) -> Iterable[TopicKey]:
        """Returns all topics with committed offsets."""
        return self._groups_by_topic.keys()

    def partitions_of_topic(self, key: TopicKey, committed_until_ms: int | None = None) -> Iterator[tuple[str, int]]:
        """Yields group id and partition of the offsets of a topic that were committed until `committed_until_ms`."""
        topic, topic_id = key
        for group_id in self._groups_by_topic.get(key, ()):
            for partition, committed in self._groups[group_id][topic].items():
                is_late = committed_until_ms is not None and committed.commit_timestamp_ms > committed_until_ms
                if committed.topic_id == topic_id and not is_late:
                    yield group_id, partition

    def _remove(self, record: OffsetCommitRecord) -> None:
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        if partitions.pop(record.partition, None) is None:
            return
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self._groups[record.group_id]

    def _count_offsets(self, record: OffsetCommitRecord, committed: CommittedOffset | None, change: int) -> None:
        if committed is None:
            return
        key = record.topic, committed.topic_id
        groups = self._groups_by_topic.setdefault(key, {})
        groups[record.group_id] = groups.get(record.group_id, 0) + change
        if not groups[record.group_id]:
            del groups[record.group_id]
        if not groups:
            del self._groups_by_topic[key]


def build_commit_records(
    group_id: str, offsets: Iterable[OffsetToCommit], wall_ms: int, metadata_length_max: int
) -> tuple[list[OffsetCommitRecord], PartitionErrors]:
    """Returns the records of a commit, and for each partition an error, or None if the partition has a record."""
    records: list[OffsetCommitRecord] = []
    errors: PartitionErrors = {}
    for each in offsets:
        error = _check_metadata_length(each.metadata, metadata_length_max)
        errors[each.topic, each.partition] = error
        if error is None:
            committed = _to_committed_offset(each, wall_ms)
            records.append(OffsetCommitRecord(group_id, each.topic, each.partition, committed))
    return records, errors


def _to_committed_offset(offset: OffsetToCommit, wall_ms: int) -> CommittedOffset:
    # The record of an offset with an expire timestamp stores neither leader epoch nor topic id. Drop both in memory
    # too, so that a restart does not change the state.
    has_expiration = offset.expire_timestamp_ms != NO_EXPIRY
    return CommittedOffset(
        offset=offset.offset,
        leader_epoch=NO_LEADER_EPOCH if has_expiration else max(offset.leader_epoch, NO_LEADER_EPOCH),
        metadata=offset.metadata or "",
        commit_timestamp_ms=wall_ms,
        expire_timestamp_ms=offset.expire_timestamp_ms,
        topic_id=None if has_expiration else offset.topic_id,
    )


def _check_metadata_length(metadata: str | None, length_max: int) -> MoldauError | None:
    if metadata is None or len(metadata) <= length_max // 2:
        return None
    # Kafka counts the UTF-16 code units of the text, although the setting is named offset.metadata.max.bytes.
    length = len(metadata.encode("utf-16-le", "surrogatepass")) // 2
    if length <= length_max:
        return None
    return OffsetMetadataTooLargeError(f"offset metadata of {length} characters; the maximum is {length_max}")
