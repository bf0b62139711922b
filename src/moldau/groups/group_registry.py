"""The groups of one partition of `__consumer_offsets` and their members, without I/O."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from moldau.coordinator import CoordinatorResult
from moldau.coordinator.deadline_queue import DeadlineQueue
from moldau.coordinator.result import CompletedRequest, Now, RequestId
from moldau.errors import GroupIdNotFoundError, MemberIdRequiredError, MoldauError, UnknownMemberIdError
from moldau.groups.classic_group import ClassicGroup, check_session_timeout
from moldau.groups.records import GroupMetadataRecord, GroupRecord
from moldau.groups.requests import (
    UNKNOWN_MEMBER_ID,
    CompletedGroupRequest,
    GroupResult,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    MemberIdentity,
    SyncRequest,
)
from moldau.settings.broker import BrokerSettings

PENDING_MEMBER_IDS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum memory for the pending member ids of all groups. A member id is pending until a member joins with it. Above
this limit the oldest ids expire."""
_PENDING_MEMBER_ID_OVERHEAD_BYTES = 500
"""Memory for a pending member id in addition to the texts of the member id and the group id."""

T = TypeVar("T")


class GroupRegistry:
    def __init__(self, settings: BrokerSettings, has_offsets: Callable[[str], bool]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        """Groups that have a group record or offsets in the log, and groups that members are joining."""
        self._settings = settings
        self._has_offsets = has_offsets
        self._groups_in_log: set[str] = set()
        """Groups whose latest group record is not a tombstone."""
        self._deadlines = DeadlineQueue()
        self._pending_member_ids: deque[tuple[str, str]] = deque()
        """Pairs of group id and member id, oldest first. An id stays here after a member has joined with it."""
        self._pending_member_ids_bytes = 0

    # Finding groups

    def require(self, group_id: str, error: type[MoldauError] = GroupIdNotFoundError) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise error(f"group {group_id!r} does not exist")
        return group

    def get_or_create(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self._settings)
        return group

    def run(self, group: ClassicGroup, operation: Callable[[ClassicGroup], T]) -> T:
        """Runs an operation and updates the group's deadline. Removes a group without records, members or deadlines."""
        try:
            return operation(group)
        finally:
            group_id = group.group_id
            self._deadlines.set(group_id, group.next_deadline_ms)
            is_recorded = group_id in self._groups_in_log or self._has_offsets(group_id)
            if group.metadata.is_empty and not is_recorded and group.next_deadline_ms is None:
                self._remove(group_id)

    def _remove(self, group_id: str) -> None:
        self.groups.pop(group_id, None)
        self._deadlines.set(group_id, None)

    # Durable state

    def apply(self, record: GroupMetadataRecord) -> None:
        if record.metadata is None:
            self._groups_in_log.discard(record.group_id)
            self._remove(record.group_id)
            return
        self._groups_in_log.add(record.group_id)
        group = self.get_or_create(record.group_id)
        group.apply(record.metadata)
        self._deadlines.set(record.group_id, group.next_deadline_ms)

    def on_loaded(self, now: Now) -> GroupResult:
        """Starts the timeouts of all groups after the log was loaded."""
        records: list[GroupRecord] = []
        completed: list[CompletedGroupRequest] = []
        for group in list(self.groups.values()):
            result = self.run(group, lambda group: group.on_loaded(now))
            records += result.records
            completed += result.response
        return CoordinatorResult(records, completed)

    # Membership

    def join(self, now: Now, request: JoinRequest, request_id: RequestId) -> GroupResult:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER_ID:
                check_session_timeout(request.session_timeout_ms, self._settings)
                raise UnknownMemberIdError(f"group {request.group_id!r} does not exist")
            group = self.get_or_create(request.group_id)
        try:
            return self.run(group, lambda group: group.join(now, request, request_id))
        except MemberIdRequiredError as error:
            self._add_pending_member_id(now, request.group_id, error.member_id)
            raise

    def sync(self, now: Now, request: SyncRequest, request_id: RequestId) -> GroupResult:
        group = self.require(request.group_id, UnknownMemberIdError)
        return self.run(group, lambda group: group.sync(now, request, request_id))

    def heartbeat(self, now: Now, identity: MemberIdentity, request_id: RequestId) -> GroupResult:
        group = self.require(identity.group_id, UnknownMemberIdError)
        return self.run(group, lambda group: group.heartbeat(now, identity, request_id))

    def leave(self, now: Now, group_id: str, members: Sequence[LeavingMember], request_id: RequestId) -> GroupResult:
        group = self.groups.get(group_id)
        if group is None:
            error = UnknownMemberIdError(f"group {group_id!r} does not exist")
            results = tuple(LeaveResult(each.member_id, each.instance_id, error) for each in members)
            return CoordinatorResult((), [CompletedRequest(request_id, results)])
        return self.run(group, lambda group: group.leave(now, members, request_id))

    def _add_pending_member_id(self, now: Now, group_id: str, member_id: str) -> None:
        self._pending_member_ids.append((group_id, member_id))
        self._pending_member_ids_bytes += _pending_member_id_bytes(group_id, member_id)
        while self._pending_member_ids_bytes > PENDING_MEMBER_IDS_BYTES_MAX:
            group_id, oldest = self._pending_member_ids.popleft()
            self._pending_member_ids_bytes -= _pending_member_id_bytes(group_id, oldest)
            group = self.groups.get(group_id)
            if group is not None:
                self.run(group, partial(ClassicGroup.expire_pending_member, now=now, member_id=oldest))

    # Timeouts

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def tick(self, now: Now) -> GroupResult:
        """Handles deadlines up to `now`, and stops after the first group that writes records.

        A failed write then affects no other group. If more groups are due, `next_deadline_ms` stays in the past.
        """
        completed: list[CompletedGroupRequest] = []
        while (group_id := self._deadlines.pop_due(now.monotonic_ms)) is not None:
            result = self.run(self.groups[group_id], lambda group: group.tick(now))
            completed += result.response
            if result.records:
                return CoordinatorResult(result.records, completed)
        return CoordinatorResult((), completed)

    # Descriptions

    def describe(self, group_id: str, request_id: RequestId) -> GroupResult:
        description = self.require(group_id).metadata.describe()
        return CoordinatorResult((), [CompletedRequest(request_id, description)])

    def list_groups(self, states: Sequence[str], types: Sequence[str], request_id: RequestId) -> GroupResult:
        """Lists the groups with one of these states and types. An empty filter matches all groups."""
        wanted_states = {each.strip().lower() for each in states}
        wanted_types = {each.lower() for each in types}
        listed = [group.metadata.as_listed_group() for group in self.groups.values()]
        matching = tuple(
            each
            for each in listed
            if (not wanted_states or each.state.lower() in wanted_states)
            and (not wanted_types or each.type.lower() in wanted_types)
        )
        return CoordinatorResult((), [CompletedRequest(request_id, matching)])


def _pending_member_id_bytes(group_id: str, member_id: str) -> int:
    return len(group_id) + len(member_id) + _PENDING_MEMBER_ID_OVERHEAD_BYTES
