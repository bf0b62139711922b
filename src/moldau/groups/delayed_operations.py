"""The delayed join and delayed sync of a classic group. Each has parked requests, pending members and a deadline."""

from dataclasses import dataclass, field

from moldau.coordinator.result import RequestId
from moldau.errors import RebalanceInProgressError
from moldau.groups.requests import ResultBuilder


@dataclass(slots=True)
class _DelayedOperation:
    parked: dict[str, RequestId] = field(default_factory=dict)
    pending_members: dict[str, None] = field(default_factory=dict)
    """Ids of the members whose request the group still waits for."""
    deadline_ms: int | None = None

    def park(self, builder: ResultBuilder, member_id: str, request_id: RequestId) -> None:
        """Parks a member's request. Fails an earlier parked request of the same member."""
        if member_id in self.parked:
            error = RebalanceInProgressError("superseded by a later request of the same member")
            builder.complete(self.parked.pop(member_id), error)
        self.parked[member_id] = request_id


@dataclass(slots=True)
class DelayedJoin(_DelayedOperation):
    """The parked JoinGroup requests of a group in PreparingRebalance, which wait for the other members.

    `pending_members` have received a member id and are expected to join with this id. The first join of an empty group
    is delayed, and new members extend the delay.
    """

    initial_delay_ms: int | None = None
    """The current delay of the first join of an empty group; None for other joins."""
    _remaining_ms: int = 0
    """The time by which the initial delay can still be extended."""
    has_new_members: bool = False
    """Whether members were added since the initial delay started or was last extended."""

    def has_all_joined(self, member_count: int) -> bool:
        return len(self.parked) == member_count and not self.pending_members

    def try_extend(self, now_ms: int, delay_ms: int) -> bool:
        """Extends the initial delay if members were added during the delay. Returns whether the delay was extended."""
        if self.initial_delay_ms is None or not self.has_new_members or not self._remaining_ms:
            return False
        remaining_ms = max(self._remaining_ms - self.initial_delay_ms, 0)
        self.start_delay(now_ms, min(delay_ms, self._remaining_ms), remaining_ms)
        return True

    def start_delay(self, now_ms: int, delay_ms: int, remaining_ms: int) -> None:
        self.initial_delay_ms = delay_ms
        self._remaining_ms = remaining_ms
        self.has_new_members = False
        self.deadline_ms = now_ms + delay_ms

    def finish(self) -> None:
        self.initial_delay_ms = None
        self.deadline_ms = None


@dataclass(slots=True)
class DelayedSync(_DelayedOperation):
    """The parked SyncGroup requests of a group in CompletingRebalance, which wait for the leader's SyncGroup.

    `pending_members` have not synced since the generation started.
    """

    def mark_synced(self, member_id: str) -> None:
        self.pending_members.pop(member_id, None)
        if not self.pending_members:
            self.deadline_ms = None

    def cancel(self) -> None:
        self.pending_members.clear()
        self.deadline_ms = None
