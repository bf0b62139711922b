"""All groups and committed offsets of one partition of `__consumer_offsets`, and every decision about them.

Who is in a group is the business of `classic.py`; here groups are found, made and given up, and offsets are
committed, read, deleted and expired. Offsets, and groups as the log knows them, change in `apply` alone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TypeVar

from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    MemberIdRequiredError,
    MoldauError,
    NonEmptyGroupError,
    UnknownMemberIdError,
)
from moldau.groups.classic_group import ClassicGroup, check_session_timeout
from moldau.groups.deadline_queue import DeadlineQueue
from moldau.groups.offset_metadata_manager import OffsetMetadataManager, build_commit_records, is_expired
from moldau.groups.records import CommittedOffset, GroupMetadataRecord, GroupRecord, OffsetCommitRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    CommitResponse,
    CompletedRequest,
    DeleteOffsetsResponse,
    GroupCoordinatorConfig,
    GroupDecision,
    GroupResponse,
    GroupState,
    JoinRequest,
    LeaveResponse,
    LeaveResult,
    LeavingMember,
    ListResponse,
    MemberIdentity,
    Now,
    OffsetsResponse,
    RequestId,
    SyncRequest,
    TopicKey,
    TopicPartition,
)
from moldau.wire.consumer_protocol import PROTOCOL_TYPE

TOMBSTONES_BYTES_MAX = 256 * 1024
"""What one decision forgets on its own account: well below what a batch may have."""
_TOMBSTONE_OVERHEAD_BYTES = 300
"""A topic's name at its longest, and what a record has around its key."""

OFFSETS_PER_EXPIRATION_PASS = 1_000
"""Offsets that one decision looks at for what has expired, and as many groups: requests come in between."""

PENDING_MEMBER_IDS_BYTES_MAX = 4 * 1024 * 1024
"""Ids given out to members that have yet to come back with them, in whatever group; when they are more, the oldest are
forgotten, and who comes back with one of those has to begin anew."""
_PENDING_MEMBER_ID_OVERHEAD_BYTES = 500
"""What is kept of an id besides its own text and that of its group."""

T = TypeVar("T")


class GroupCoordinatorShard:
    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self._config = config
        self._groups: dict[str, ClassicGroup] = {}
        """Those that the log knows, by a group record or by offsets, and those that somebody is joining."""
        self._groups_in_log: set[str] = set()
        """Groups whose newest group record in the log is not a tombstone."""
        self._offsets = OffsetMetadataManager()
        self._deadlines = DeadlineQueue()
        self._pending_member_ids: deque[tuple[str, str]] = deque()
        """Groups and the member ids that were given out in them, oldest first. Some may have been used since."""
        self._pending_member_ids_bytes = 0
        self._groups_to_expire: deque[str] | None = None
        """Groups that the present round of expiry has not come to yet; None between rounds."""

    # What is durable

    def apply(self, records: Sequence[GroupRecord], end_offset: int) -> None:
        for record in records:
            if isinstance(record, OffsetCommitRecord):
                self._apply_offset(record)
            else:
                self._apply_group(record)

    def _apply_offset(self, record: OffsetCommitRecord) -> None:
        if record.committed is not None:
            # A commit without membership makes a group of its own: empty, and without a protocol type.
            self._get_or_create_group(record.group_id)
        self._offsets.apply(record)

    def _apply_group(self, record: GroupMetadataRecord) -> None:
        if record.metadata is None:
            self._groups_in_log.discard(record.group_id)
            self._remove_group(record.group_id)
            return
        self._groups_in_log.add(record.group_id)
        group = self._get_or_create_group(record.group_id)
        group.apply(record.metadata)
        self._deadlines.set(record.group_id, group.next_deadline_ms)

    def on_loaded(self, now: Now) -> GroupDecision:
        """Everything that the log holds has been applied: the groups come to life."""
        records: list[GroupRecord] = []
        answers: list[CompletedRequest] = []
        for group in list(self._groups.values()):
            decision = self._run_on_group(group, lambda group: group.on_loaded(now))
            records += decision.records
            answers += decision.reply
        return CoordinatorResult(records, answers)

    # Membership

    def join(self, now: Now, request: JoinRequest, request_id: RequestId) -> GroupDecision:
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER_ID:
                check_session_timeout(request.session_timeout_ms, self._config)
                raise UnknownMemberIdError(f"no group {request.group_id!r}")
            group = self._get_or_create_group(request.group_id)
        try:
            return self._run_on_group(group, lambda group: group.join(now, request, request_id))
        except MemberIdRequiredError as sent_away:
            self._track_pending_member_id(now, request.group_id, sent_away.member_id)
            raise

    def sync(self, now: Now, request: SyncRequest, request_id: RequestId) -> GroupDecision:
        group = self._require_group_of_member(request.group_id)
        return self._run_on_group(group, lambda group: group.sync(now, request, request_id))

    def heartbeat(self, now: Now, identity: MemberIdentity, request_id: RequestId) -> GroupDecision:
        group = self._require_group_of_member(identity.group_id)
        return self._run_on_group(group, lambda group: group.heartbeat(now, identity, request_id))

    def leave(
        self, now: Now, group_id: str, members: Sequence[LeavingMember], request_id: RequestId
    ) -> GroupDecision:
        group = self._groups.get(group_id)
        if group is None:
            error = UnknownMemberIdError(f"no group {group_id!r}")
            return _respond(
                request_id,
                LeaveResponse(
                    tuple(LeaveResult(each.member_id, each.instance_id, error) for each in members)
                ),
            )
        return self._run_on_group(group, lambda group: group.leave(now, members, request_id))

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def tick(self, now: Now) -> GroupDecision:
        """What has come due. A decision has the records of one group at most, so that no group stands or falls
        with another's; where more is due, `next_deadline_ms` says so."""
        answers: list[CompletedRequest] = []
        while (group_id := self._deadlines.pop_due(now.monotonic_ms)) is not None:
            group = self._groups[group_id]
            decision = self._run_on_group(group, lambda group: group.tick(now))
            answers += decision.reply
            if decision.records:
                return CoordinatorResult(decision.records, answers)
        return CoordinatorResult((), answers)

    # Offsets

    def commit(self, now: Now, request: CommitRequest, request_id: RequestId) -> GroupDecision:
        """Raises GroupIdNotFoundError where a member commits to a group that is not there, which clients
        before OffsetCommit 9 know as ILLEGAL_GENERATION."""
        identity = request.identity
        group = self._groups.get(identity.group_id)
        if group is not None:
            self._run_on_group(group, lambda group: group.validate_offset_commit(now, identity))
        elif identity.generation >= 0:
            raise GroupIdNotFoundError(f"no group {identity.group_id!r}")
        records, errors = build_commit_records(
            identity.group_id, request.offsets, now.wall_ms, self._config.offset_metadata_length_max
        )
        return CoordinatorResult(records, [CompletedRequest(request_id, CommitResponse(errors))])

    def fetch_offsets(
        self,
        now: Now,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        request_id: RequestId,
    ) -> GroupDecision:
        """All of a group's offsets where no partitions are named. In a classic group anybody may ask, and a
        group that is not there has no offsets."""
        found: dict[TopicPartition, CommittedOffset | None] = {}
        known = group_id in self._groups
        if partitions is not None:
            for topic, partition in partitions:
                found[topic, partition] = self._offsets.get(group_id, topic, partition) if known else None
        elif known:
            found.update(sorted(self._offsets.offsets_of_group(group_id), key=lambda each: each[0]))
        return _respond(request_id, OffsetsResponse(found))

    def delete_offsets(
        self, now: Now, group_id: str, partitions: Sequence[TopicPartition], request_id: RequestId
    ) -> GroupDecision:
        group = self._require_group(group_id)
        if not group.is_empty and group.protocol_type != PROTOCOL_TYPE:
            raise NonEmptyGroupError(f"group {group_id!r} has members whose subscriptions are not known")
        is_subscribed = _subscription_predicate(group)
        errors: dict[TopicPartition, MoldauError | None] = {
            (topic, partition): GroupSubscribedToTopicError(f"group {group_id!r} is subscribed to {topic!r}")
            if is_subscribed(topic)
            else None
            for topic, partition in partitions
        }
        forgotten = [
            partition
            for partition, error in errors.items()
            if error is None and self._offsets.get(group_id, *partition) is not None
        ]
        return CoordinatorResult(
            self.offset_tombstones(group_id, forgotten),
            [CompletedRequest(request_id, DeleteOffsetsResponse(errors))],
        )

    # Forgetting

    def delete_group(self, now: Now, group_id: str, request_id: RequestId) -> GroupDecision:
        group = self._require_group(group_id)
        if not group.is_empty:
            raise NonEmptyGroupError(f"group {group_id!r} has members")
        partitions = [partition for partition, _ in self._offsets.offsets_of_group(group_id)]
        return CoordinatorResult(
            self.offset_tombstones(group_id, partitions, whole_group=True),
            [CompletedRequest(request_id, EMPTY_RESPONSE)],
        )

    def topics(self) -> Iterable[TopicKey]:
        """Topics that there are offsets of."""
        return self._offsets.topics()

    def delete_offsets_of_topics(self, now: Now, topics: Mapping[TopicKey, int]) -> GroupDecision | None:
        """Topics are no more, each since a time in ms. What does not fit into one decision is left for the next call
        with the same topics; None: nothing is left of them."""
        records: list[GroupRecord] = []
        room = TOMBSTONES_BYTES_MAX
        for key, deleted_ms in topics.items():
            # A later commit that does not say which topic it is of may be of another that has the name by now.
            until_ms = deleted_ms if key[1] is None else None
            for group_id, partition in self._offsets.partitions_of_topic(key, until_ms):
                records += self.offset_tombstones(group_id, [(key[0], partition)])
                room -= _tombstone_bytes(group_id)
                if room <= 0:
                    return CoordinatorResult(records, ())
        return CoordinatorResult(records, ()) if records else None

    def expire_offsets(self, now: Now) -> GroupDecision | None:
        """Forgets offsets that have had their time, and empty groups that have none left. A decision looks at some
        of the groups, and the next one goes on where it ends; None: it has seen all of them, and would begin
        anew."""
        if self._groups_to_expire is None:
            self._groups_to_expire = deque(self._groups)
        elif not self._groups_to_expire:
            self._groups_to_expire = None
            return None
        records: list[GroupRecord] = []
        room = TOMBSTONES_BYTES_MAX
        looks = OFFSETS_PER_EXPIRATION_PASS
        while self._groups_to_expire and room > 0 and looks > 0:
            group = self._groups.get(self._groups_to_expire.popleft())
            if group is None:
                continue
            size = _tombstone_bytes(group.group_id)
            count_max = max(1, room // size)
            expired, left = self._expired_offsets(group, now, count_max)
            looks -= 1 + len(expired) + left
            is_over = not left and group.is_empty and group.next_deadline_ms is None
            records += self.offset_tombstones(group.group_id, expired, whole_group=is_over)
            if len(expired) == count_max and not is_over:
                self._groups_to_expire.appendleft(group.group_id)
                break
            room -= size * (len(expired) + is_over)
        return CoordinatorResult(records, ())

    def _expired_offsets(
        self, group: ClassicGroup, now: Now, count_max: int
    ) -> tuple[list[TopicPartition], int]:
        """The offsets of a group that may go, up to so many, and how many are left then."""
        is_subscribed = _subscription_predicate(group)
        expired: list[TopicPartition] = []
        left = 0
        for (topic, partition), committed in self._offsets.offsets_of_group(group.group_id):
            since_ms = _retention_start_ms(group, committed)
            if (
                since_ms is not None
                and is_expired(committed, since_ms, now.wall_ms, self._config.offsets_retention_ms)
                and len(expired) < count_max
                and not is_subscribed(topic)
            ):
                expired.append((topic, partition))
            else:
                left += 1
        return expired, left

    def offset_tombstones(
        self, group_id: str, partitions: Iterable[TopicPartition], *, whole_group: bool = False
    ) -> list[GroupRecord]:
        """How offsets, and a group with them, are forgotten: compaction keeps whatever has no tombstone."""
        records: list[GroupRecord] = [
            OffsetCommitRecord(group_id, *partition, None) for partition in partitions
        ]
        if whole_group:
            records.append(GroupMetadataRecord(group_id, None))
        return records

    # Looking at groups

    def describe(self, group_id: str, request_id: RequestId) -> GroupDecision:
        return _respond(request_id, self._require_group(group_id).describe())

    def list_groups(
        self, states: Sequence[str], types: Sequence[str], request_id: RequestId
    ) -> GroupDecision:
        """Filters that are empty let everything through; a state or type that there is not fits no group."""
        wanted_states = {each.strip().lower() for each in states}
        wanted_types = {each.lower() for each in types}
        as_listed_group = [group.as_listed_group() for group in self._groups.values()]
        return _respond(
            request_id,
            ListResponse(
                tuple(
                    each
                    for each in as_listed_group
                    if (not wanted_states or each.state.lower() in wanted_states)
                    and (not wanted_types or each.type.lower() in wanted_types)
                )
            ),
        )

    # Finding groups and giving them up

    def _require_group(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"no group {group_id!r}")
        return group

    def _require_group_of_member(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(f"no group {group_id!r}")
        return group

    def _get_or_create_group(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ClassicGroup(group_id, self._config)
        return group

    def _run_on_group(self, group: ClassicGroup, decide: Callable[[ClassicGroup], T]) -> T:
        """Lets a group decide, and then sees to its deadline, or gives it up: whoever tries to join and is
        refused, or never comes back, leaves nothing behind."""
        try:
            return decide(group)
        finally:
            self._deadlines.set(group.group_id, group.next_deadline_ms)
            is_known = not group.is_empty or self._is_recorded(group.group_id)
            if not is_known and group.next_deadline_ms is None:
                self._remove_group(group.group_id)

    def _is_recorded(self, group_id: str) -> bool:
        return group_id in self._groups_in_log or self._offsets.has_any(group_id)

    def _track_pending_member_id(self, now: Now, group_id: str, member_id: str) -> None:
        self._pending_member_ids.append((group_id, member_id))
        self._pending_member_ids_bytes += _pending_member_id_bytes(group_id, member_id)
        while self._pending_member_ids_bytes > PENDING_MEMBER_IDS_BYTES_MAX:
            group_id, oldest = self._pending_member_ids.popleft()
            self._pending_member_ids_bytes -= _pending_member_id_bytes(group_id, oldest)
            group = self._groups.get(group_id)
            if group is not None:
                self._run_on_group(
                    group, partial(ClassicGroup.expire_pending_member, now=now, member_id=oldest)
                )

    def _remove_group(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
        self._deadlines.set(group_id, None)


def _respond(request_id: RequestId, reply: GroupResponse) -> GroupDecision:
    return CoordinatorResult((), [CompletedRequest(request_id, reply)])


def _subscription_predicate(group: ClassicGroup) -> Callable[[str], bool]:
    """Whether members of the group are subscribed to a topic; taken for granted where it cannot be known."""
    if group.is_empty or group.protocol_type != PROTOCOL_TYPE:
        return lambda topic: False

    # Only where somebody asks: to read the subscriptions of a large group takes its time.
    @cache
    def topics() -> frozenset[str] | None:
        subscribed = group.subscribed_topics()
        return None if subscribed is None else frozenset(subscribed)

    return lambda topic: (known := topics()) is None or topic in known


def _retention_start_ms(group: ClassicGroup, committed: CommittedOffset) -> int | None:
    """From when on an offset without subscribers is kept for the retention time; None: it stays for now."""
    if not group.protocol_type:
        return committed.commit_timestamp_ms
    if group.is_empty:
        # The later of the two: what an operator commits for a group that has long been empty is not to be
        # lost at the next look.
        return max(committed.commit_timestamp_ms, group.empty_since_ms or 0)
    if group.protocol_type == PROTOCOL_TYPE and group.state is GroupState.STABLE:
        return committed.commit_timestamp_ms
    return None


def _pending_member_id_bytes(group_id: str, member_id: str) -> int:
    return len(group_id) + len(member_id) + _PENDING_MEMBER_ID_OVERHEAD_BYTES


def _tombstone_bytes(group_id: str) -> int:
    """No less than a tombstone of this group takes."""
    return 3 * len(group_id) + _TOMBSTONE_OVERHEAD_BYTES
