"""Which partitions a fetcher asks its leader for, which rest after a failure and for how long, and what each answer
means. Pure."""

from dataclasses import dataclass
from enum import Enum

from moldau.client.errors import ErrorCode
from moldau.client.net.waits import wait_ms
from moldau.replication.session import PartitionKey

FIRST_REST_MS = 10
"""The first wait for metadata that one of the two nodes lacks: it is on its way."""


LONGEST_REST_MS = 5_000
"""Of a partition that cannot be written here for the moment."""


class Phase(Enum):
    FETCHING = "fetching"
    RESTING = "resting"
    """After a failure, until a time or until its leader or leader epoch is another one."""
    FAILED = "failed"
    """It cannot be written here; only a change of its role is a reason to try again."""


class Rest(Enum):
    """How long the rests of a partition are that fails again and again."""

    BRIEF = "brief"
    """Short at first, and doubled up to the backoff."""
    EVEN = "even"
    """The backoff each time."""
    LONGER = "longer"
    """The backoff at first, and doubled up to a limit."""


class Verdict(Enum):
    """What to do with a partition's part of an answer."""

    TAKE = "take"
    """Records, perhaps none, and the leader's offsets."""
    CUT_BACK = "cut back"
    """The two logs part: what the leader does not have is cut off."""
    BEGIN_ANEW = "begin anew"
    """The leader does not have the offset (any more)."""
    WAIT_FOR_METADATA = "wait for metadata"
    """One of the two nodes does not know yet what the other does: no reason to worry."""
    REST = "rest"
    """The leader has trouble."""


_METADATA_DIFFERS = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.stale_broker_epoch,
    }
)


def judge(code: int, *, has_diverged: bool) -> Verdict:
    if code == ErrorCode.none:
        return Verdict.CUT_BACK if has_diverged else Verdict.TAKE
    if code == ErrorCode.offset_out_of_range:
        return Verdict.BEGIN_ANEW
    return Verdict.WAIT_FOR_METADATA if code in _METADATA_DIFFERS else Verdict.REST


def begins_anew(offset: int, last_epoch: int, leader_start: int) -> bool:
    """Whether a follower drops its log and begins where the leader's does, which does not have its offset.

    Only a log that shares nothing with the leader's is dropped: it ends before that begins, or has no records at all.
    One that goes on beyond the leader's end is cut back by epochs, and by nothing else.
    """
    return leader_start >= 0 and (offset < leader_start or last_epoch < 0)


@dataclass(slots=True)
class Followed:
    leader_epoch: int
    phase: Phase = Phase.FETCHING
    until_ms: int = 0
    """The end of its rest."""
    failures: int = 0
    """In a row."""
    is_in_sync: bool = False
    """It had all that is committed when it was last answered, or else, as far as the metadata says, before."""


class FollowedPartitions:
    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, Followed] = {}
        self._resting: dict[PartitionKey, Followed] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._partitions

    def is_fetching(self, key: PartitionKey) -> bool:
        found = self._partitions.get(key)
        return found is not None and found.phase is Phase.FETCHING

    def is_in_sync(self, key: PartitionKey) -> bool:
        found = self._partitions.get(key)
        return found is not None and found.is_in_sync

    def has_failed_before(self, key: PartitionKey) -> bool:
        """Whether its last attempt was a failure too."""
        found = self._partitions.get(key)
        return found is not None and found.failures > 0

    def follow(self, key: PartitionKey, leader_epoch: int, *, is_in_sync: bool) -> bool:
        """Whether it is to be asked for now, because it is new or has a new leader epoch; then `is_in_sync` is what
        the metadata says of it."""
        found = self._partitions.get(key)
        if found is not None and found.leader_epoch == leader_epoch:
            return False
        self._partitions[key] = Followed(leader_epoch, is_in_sync=is_in_sync)
        self._resting.pop(key, None)
        return True

    def leave(self, key: PartitionKey) -> None:
        """It is not followed any more."""
        self._partitions.pop(key, None)
        self._resting.pop(key, None)

    def wake(self, now_ms: int) -> list[PartitionKey]:
        """Those whose rest is over: from now on they are fetched again."""
        awake = [key for key, found in self._resting.items() if found.until_ms <= now_ms]
        for key in awake:
            self._resting.pop(key).phase = Phase.FETCHING
        return awake

    def next_wake_ms(self) -> int | None:
        return min((found.until_ms for found in self._resting.values()), default=None)

    def progressed(self, key: PartitionKey, *, is_in_sync: bool) -> None:
        found = self._partitions.get(key)
        if found is not None:
            found.failures = 0
            found.is_in_sync = is_in_sync

    def rest(self, key: PartitionKey, now_ms: int, pause_ms: int) -> None:
        found = self._partitions.get(key)
        if found is not None and found.phase is not Phase.FAILED:
            found.phase = Phase.RESTING
            found.until_ms = now_ms + pause_ms
            self._resting[key] = found

    def rest_after_failure(
        self, key: PartitionKey, now_ms: int, backoff_ms: int, chance: float, rest: Rest = Rest.EVEN
    ) -> None:
        """`chance` is in [0, 1)."""
        found = self._partitions.get(key)
        if found is not None:
            found.failures += 1
            pause_ms = backoff_ms
            if rest is Rest.BRIEF:
                pause_ms = wait_ms(found.failures, min(FIRST_REST_MS, backoff_ms), backoff_ms)
            elif rest is Rest.LONGER:
                pause_ms = wait_ms(found.failures, backoff_ms, max(LONGEST_REST_MS, backoff_ms))
            self.rest(key, now_ms, jittered(pause_ms, chance))

    def fail(self, key: PartitionKey) -> None:
        found = self._partitions.get(key)
        if found is not None:
            found.phase = Phase.FAILED
            self._resting.pop(key, None)


def jittered(pause_ms: int, chance: float) -> int:
    """Around `pause_ms`, so that the followers of one leader do not all come back at the same moment."""
    return max(1, round(pause_ms * (0.8 + 0.4 * chance)))
