"""The committed offsets of one partition of `__consumer_offsets`, by group, topic and partition; what a commit
writes, and when an offset has had its time.
"""

from collections.abc import Iterable, Iterator, Mapping

from moldau.errors import MoldauError, OffsetMetadataTooLargeError
from moldau.groups.records import NO_EXPIRY, NO_LEADER_EPOCH, CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import OffsetToCommit, TopicKey, TopicPartition

_NO_TOPICS: Mapping[str, Mapping[int, CommittedOffset]] = {}


class OffsetMetadataManager:
    """Changed only by records."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._groups_by_topic: dict[TopicKey, dict[str, int]] = {}
        """For each topic the groups with offsets of it, and how many each has."""

    def apply(self, record: OffsetCommitRecord) -> None:
        before = self.get(record.group_id, record.topic, record.partition)
        if record.committed is None:
            self._remove(record)
        else:
            topics = self._groups.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = record.committed
        if before is None or record.committed is None or before.topic_id != record.committed.topic_id:
            self._count_offsets(record, before, -1)
            self._count_offsets(record, record.committed, 1)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._topics_of_group(group_id).get(topic, {}).get(partition)

    def has_any(self, group_id: str) -> bool:
        return group_id in self._groups

    def offsets_of_group(self, group_id: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for topic, partitions in self._topics_of_group(group_id).items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def topics(self) -> Iterable[TopicKey]:
        return self._groups_by_topic.keys()

    def partitions_of_topic(self, key: TopicKey, until_ms: int | None = None) -> Iterator[tuple[str, int]]:
        """The groups and partitions with offsets of this topic, and not of another with the same name; all of them, or
        those committed up to a time."""
        topic, topic_id = key
        for group_id in self._groups_by_topic.get(key, ()):
            for partition, committed in self._groups[group_id][topic].items():
                is_late = until_ms is not None and committed.commit_timestamp_ms > until_ms
                if committed.topic_id == topic_id and not is_late:
                    yield group_id, partition

    def _topics_of_group(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        return self._groups.get(group_id, _NO_TOPICS)

    def _remove(self, record: OffsetCommitRecord) -> None:
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        if partitions.pop(record.partition, None) is None:
            return
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self._groups[record.group_id]

    def _count_offsets(self, record: OffsetCommitRecord, committed: CommittedOffset | None, by: int) -> None:
        if committed is None:
            return
        key = record.topic, committed.topic_id
        groups = self._groups_by_topic.setdefault(key, {})
        groups[record.group_id] = groups.get(record.group_id, 0) + by
        if not groups[record.group_id]:
            del groups[record.group_id]
        if not groups:
            del self._groups_by_topic[key]


def build_commit_records(
    group_id: str, offsets: Iterable[OffsetToCommit], wall_ms: int, metadata_length_max: int
) -> tuple[list[OffsetCommitRecord], dict[TopicPartition, MoldauError | None]]:
    """The records of a commit, and for each partition why it is not among them."""
    records: list[OffsetCommitRecord] = []
    errors: dict[TopicPartition, MoldauError | None] = {}
    for each in offsets:
        error = _check_metadata_length(each.metadata, metadata_length_max)
        errors[each.topic, each.partition] = error
        if error is None:
            records.append(
                OffsetCommitRecord(group_id, each.topic, each.partition, _to_committed_offset(each, wall_ms))
            )
    return records, errors


def _to_committed_offset(each: OffsetToCommit, wall_ms: int) -> CommittedOffset:
    # The format that has an expiry has neither epoch nor id: what a restart would forget is not known before.
    expires = each.expire_timestamp_ms != NO_EXPIRY
    return CommittedOffset(
        offset=each.offset,
        leader_epoch=NO_LEADER_EPOCH if expires else max(each.leader_epoch, NO_LEADER_EPOCH),
        metadata=each.metadata or "",
        commit_timestamp_ms=wall_ms,
        expire_timestamp_ms=each.expire_timestamp_ms,
        topic_id=None if expires else each.topic_id,
    )


def _check_metadata_length(metadata: str | None, length_max: int) -> MoldauError | None:
    if metadata is None or len(metadata) <= length_max // 2:
        return None
    # Whatever the setting is called, Kafka counts the characters of a Java string, which are UTF-16 units.
    length = len(metadata.encode("utf-16-le", "surrogatepass")) // 2
    if length <= length_max:
        return None
    return OffsetMetadataTooLargeError(f"{length} characters of metadata with an offset; {length_max} may be")


def is_expired(committed: CommittedOffset, since_ms: int, wall_ms: int, retention_ms: int) -> bool:
    """Whether an offset that is kept for `retention_ms` from `since_ms` on may go; an expiry of its own wins."""
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return wall_ms >= committed.expire_timestamp_ms
    return wall_ms - since_ms >= retention_ms
