"""All groups and committed offsets of one partition of `__consumer_offsets`, as a replicated state machine without I/O.

Committed and pending offsets change only when records or markers are applied, and groups become Stable only in `apply`.
The state of a rebalance in progress is only in memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

from moldau.coordinator import CoordinatorResult
from moldau.coordinator.result import CompletedRequest, Now, RequestId
from moldau.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    NonEmptyGroupError,
    UnstableOffsetCommitError,
)
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.committed_offsets import CommittedOffsets, OffsetExpirationCondition, build_commit_records
from moldau.groups.group_registry import GroupRegistry
from moldau.groups.pending_offsets import PendingOffsets
from moldau.groups.records import GroupMetadataRecord, GroupRecord, OffsetCommitRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    CommitRequest,
    GroupResult,
    GroupState,
    PartitionErrors,
    PartitionOffsets,
    TopicKey,
    TopicPartition,
    TransactionalCommitRequest,
)
from moldau.settings.broker import BrokerSettings
from moldau.wire.consumer_protocol import PROTOCOL_TYPE

TOMBSTONES_BYTES_MAX = 256 * 1024
"""Maximum bytes of the tombstones in one cleanup step. This is well below the maximum size of a batch."""
_TOMBSTONE_OVERHEAD_BYTES = 300
"""The maximum size of a tombstone, not counting the group id: the longest topic name plus the other fields."""

OFFSETS_PER_EXPIRATION_PASS = 1_000
"""An expiration step ends when it has checked this many offsets and groups. Requests can run between two steps."""


class GroupCoordinatorShard:
    def __init__(self, settings: BrokerSettings) -> None:
        self.offsets = CommittedOffsets()
        self.pending_offsets = PendingOffsets()
        self.groups = GroupRegistry(settings, self._has_offsets)
        self._settings = settings
        self._groups_to_expire: deque[str] | None = None
        """Groups that the current expiration round has not checked yet; None between rounds."""

    def _has_offsets(self, group_id: str) -> bool:
        return self.offsets.has_any(group_id) or self.pending_offsets.has_any(group_id)

    # Durable state

    def apply(self, records: Sequence[GroupRecord], end_offset: int) -> None:
        for record in records:
            if isinstance(record, GroupMetadataRecord):
                self.groups.apply(record)
            else:
                self._apply_offset(record, end_offset)

    def _apply_offset(self, record: OffsetCommitRecord, end_offset: int) -> None:
        if record.committed is not None:
            # A client can commit without joining, which creates an empty group without a protocol type.
            self.groups.get_or_create(record.group_id)
            if self.pending_offsets:
                self.pending_offsets.supersede(record, end_offset)
        elif self.pending_offsets:
            self.pending_offsets.remove(record.group_id, (record.topic, record.partition))
        self.offsets.apply(record)

    def apply_transactional(self, producer_id: int, records: Sequence[GroupRecord], end_offset: int) -> None:
        for record in records:
            if isinstance(record, OffsetCommitRecord) and record.committed is not None:
                self.groups.get_or_create(record.group_id)
                self.pending_offsets.add(producer_id, record, end_offset)
            else:
                # Only offset commits wait for the end of the transaction, as in Kafka.
                self.apply([record], end_offset)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for pending in self.pending_offsets.end_transaction(producer_id):
            if commit and not pending.is_superseded:
                self._apply_offset(pending.record, pending.end_offset)

    def on_loaded(self, now: Now) -> GroupResult:
        return self.groups.on_loaded(now)

    def next_deadline_ms(self, now: Now) -> int | None:
        return self.groups.next_deadline_ms

    def tick(self, now: Now) -> GroupResult:
        return self.groups.tick(now)

    # Offsets

    def commit(self, now: Now, request: CommitRequest, request_id: RequestId) -> GroupResult:
        """Commits offsets. Raises GroupIdNotFoundError if a member commits to a group that does not exist."""
        identity = request.identity
        group = self.groups.groups.get(identity.group_id)
        if group is not None:
            self.groups.run(group, lambda group: group.validate_offset_commit(now, identity))
        elif identity.generation >= 0:
            raise GroupIdNotFoundError(f"group {identity.group_id!r} does not exist")
        records, errors = build_commit_records(
            identity.group_id, request.offsets, now.wall_ms, self._settings.offset_metadata_max_bytes
        )
        return CoordinatorResult(records, [CompletedRequest(request_id, errors)])

    def commit_transactional(self, now: Now, request: TransactionalCommitRequest, request_id: RequestId) -> GroupResult:
        """Commits offsets in a transaction. Raises IllegalGenerationError if a member commits to a group that does not
        exist."""
        identity = request.identity
        group = self.groups.groups.get(identity.group_id)
        if group is not None:
            group.validate_transactional_offset_commit(identity)
        elif identity.generation >= 0:
            raise IllegalGenerationError(f"group {identity.group_id!r} does not exist")
        records, errors = build_commit_records(
            identity.group_id, request.offsets, now.wall_ms, self._settings.offset_metadata_max_bytes
        )
        return CoordinatorResult(records, [CompletedRequest(request_id, errors)])

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        request_id: RequestId,
        *,
        require_stable: bool = False,
    ) -> GroupResult:
        """Returns the offsets of `partitions`, or all offsets of the group if `partitions` is None.

        With `require_stable`, partitions with pending offsets have UnstableOffsetCommitError instead.
        """
        offsets: PartitionOffsets = {}
        exists = group_id in self.groups.groups
        if partitions is not None:
            for topic, partition in partitions:
                offsets[topic, partition] = self.offsets.get(group_id, topic, partition) if exists else None
        elif exists:
            offsets.update(sorted(self.offsets.offsets_of_group(group_id), key=lambda each: each[0]))
        if require_stable and self.pending_offsets.has_any(group_id):
            unstable = UnstableOffsetCommitError("a transaction that has not ended commits an offset of this partition")
            offsets.update((each, unstable) for each in list(offsets) if self.pending_offsets.has(group_id, each))
        return CoordinatorResult((), [CompletedRequest(request_id, offsets)])

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], request_id: RequestId) -> GroupResult:
        group = self.groups.require(group_id).metadata
        if not group.is_empty and group.protocol_type != PROTOCOL_TYPE:
            raise NonEmptyGroupError(f"group {group_id!r} has members with unknown subscriptions")
        is_subscribed = _subscription_predicate(group)
        errors: PartitionErrors = {
            (topic, partition): GroupSubscribedToTopicError(f"group {group_id!r} is subscribed to {topic!r}")
            if is_subscribed(topic)
            else None
            for topic, partition in partitions
        }
        deleted = [
            partition
            for partition, error in errors.items()
            if error is None
            and (self.offsets.get(group_id, *partition) is not None or self.pending_offsets.has(group_id, partition))
        ]
        return CoordinatorResult(_tombstones(group_id, deleted), [CompletedRequest(request_id, errors)])

    # Deletion and expiration

    def delete_group(self, group_id: str, request_id: RequestId) -> GroupResult:
        if not self.groups.require(group_id).metadata.is_empty:
            raise NonEmptyGroupError(f"group {group_id!r} has members")
        partitions = dict.fromkeys(partition for partition, _ in self.offsets.offsets_of_group(group_id))
        partitions.update(dict.fromkeys(self.pending_offsets.partitions_of_group(group_id)))
        records = _tombstones(group_id, partitions, is_group_deleted=True)
        return CoordinatorResult(records, [CompletedRequest(request_id, EMPTY_RESPONSE)])

    def delete_offsets_of_topics(self, topics: Mapping[TopicKey, int]) -> GroupResult | None:
        """Deletes offsets of deleted topics. `topics` has the deletion time of each topic in ms.

        One call deletes a limited number of offsets. The caller repeats the call with the same topics until it returns
        None, which means that no offset is left.
        """
        records: list[GroupRecord] = []
        remaining_bytes = TOMBSTONES_BYTES_MAX
        for key, deleted_ms in topics.items():
            # Keep offsets without a topic id that were committed after the topic's deletion, because they may belong to
            # a new topic of the same name.
            committed_until_ms = deleted_ms if key[1] is None else None
            for group_id, partition in chain(
                self.offsets.partitions_of_topic(key, committed_until_ms),
                self.pending_offsets.partitions_of_topic(key, committed_until_ms),
            ):
                records += _tombstones(group_id, [(key[0], partition)])
                remaining_bytes -= _tombstone_bytes(group_id)
                if remaining_bytes <= 0:
                    return CoordinatorResult(records, ())
        return CoordinatorResult(records, ()) if records else None

    def topics(self) -> Iterable[TopicKey]:
        """Returns all topics with committed or pending offsets."""
        return dict.fromkeys(chain(self.offsets.topics(), self.pending_offsets.topics()))

    def expire_offsets(self, now: Now) -> GroupResult | None:
        """Checks some groups: deletes their expired offsets, and deletes empty groups that have no offsets left.

        Each call continues after the groups that the previous call checked. After the last group, one call returns
        None, and the next call starts a new round over all groups.
        """
        if self._groups_to_expire is None:
            self._groups_to_expire = deque(self.groups.groups)
        elif not self._groups_to_expire:
            self._groups_to_expire = None
            return None
        records: list[GroupRecord] = []
        remaining_bytes = TOMBSTONES_BYTES_MAX
        remaining_checks = OFFSETS_PER_EXPIRATION_PASS
        while self._groups_to_expire and remaining_bytes > 0 and remaining_checks > 0:
            group = self.groups.groups.get(self._groups_to_expire.popleft())
            if group is None:
                continue
            tombstone_bytes = _tombstone_bytes(group.group_id)
            count_max = max(1, remaining_bytes // tombstone_bytes)
            expired, kept_count = self._expired_offsets(group.metadata, now, count_max)
            remaining_checks -= 1 + len(expired) + kept_count
            is_group_deleted = (
                not kept_count
                and group.metadata.is_empty
                and group.next_deadline_ms is None
                and not self.pending_offsets.has_any(group.group_id)
            )
            records += _tombstones(group.group_id, expired, is_group_deleted=is_group_deleted)
            if len(expired) == count_max and not is_group_deleted:
                self._groups_to_expire.appendleft(group.group_id)
                break
            remaining_bytes -= tombstone_bytes * (len(expired) + is_group_deleted)
        return CoordinatorResult(records, ())

    def _expired_offsets(
        self, group: ClassicGroupMetadata, now: Now, count_max: int
    ) -> tuple[list[TopicPartition], int]:
        """Returns up to `count_max` expired offsets of a group, and the number of offsets that are not returned."""
        condition = _expiration_condition(group, self._settings.offsets_retention_minutes * 60_000)
        is_subscribed = _subscription_predicate(group)
        expired: list[TopicPartition] = []
        kept_count = 0
        for (topic, partition), committed in self.offsets.offsets_of_group(group.group_id):
            if (
                condition is not None
                and condition.is_expired(committed, now.wall_ms)
                and len(expired) < count_max
                and not is_subscribed(topic)
                and not self.pending_offsets.has(group.group_id, (topic, partition))
            ):
                expired.append((topic, partition))
            else:
                kept_count += 1
        return expired, kept_count


def _tombstones(
    group_id: str, partitions: Iterable[TopicPartition], *, is_group_deleted: bool = False
) -> list[GroupRecord]:
    records: list[GroupRecord] = [OffsetCommitRecord(group_id, *partition, None) for partition in partitions]
    if is_group_deleted:
        records.append(GroupMetadataRecord(group_id, None))
    return records


def _tombstone_bytes(group_id: str) -> int:
    """Returns an upper bound of the size of one tombstone of this group."""
    return 3 * len(group_id) + _TOMBSTONE_OVERHEAD_BYTES


def _subscription_predicate(group: ClassicGroupMetadata) -> Callable[[str], bool]:
    """Returns a predicate for subscribed topics. It is true for every topic if the subscriptions are unknown."""
    if group.is_empty or group.protocol_type != PROTOCOL_TYPE:
        return lambda topic: False

    # Subscriptions are decoded on first use, because decoding those of a large group takes time.
    @cache
    def topics() -> frozenset[str] | None:
        subscribed = group.subscribed_topics()
        return None if subscribed is None else frozenset(subscribed)

    return lambda topic: (known := topics()) is None or topic in known


def _expiration_condition(group: ClassicGroupMetadata, retention_ms: int) -> OffsetExpirationCondition | None:
    """Returns when offsets of unsubscribed topics expire; None if they do not expire in the group's current state."""
    if not group.protocol_type:
        return OffsetExpirationCondition(retention_ms)
    if group.is_empty:
        # The retention time starts at the commit or at `empty_since_ms`, whichever is later. Therefore offsets that an
        # administrator sets for an old empty group do not expire at once.
        return OffsetExpirationCondition(retention_ms, group.empty_since_ms or 0)
    if group.protocol_type == PROTOCOL_TYPE and group.state is GroupState.STABLE:
        return OffsetExpirationCondition(retention_ms)
    return None
