"""Which partitions a fetcher asks its leader for, which rest after a failure and for how long, and what each answer
means. Pure."""

from dataclasses import dataclass
from enum import Enum

from moldau.client.errors import ErrorCode
from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.replication.fetch_session import PartitionKey

METADATA_BACKOFF_MS_MIN = 10
"""The first wait for metadata that one of the two nodes lacks: it is on its way."""


STORAGE_BACKOFF_MS_MAX = 5_000
"""Of a partition that cannot be written here for the moment."""


class FetchPhase(Enum):
    FETCHING = "fetching"
    DELAYED = "resting"
    """After a failure, until a time or until its leader or leader epoch is another one."""
    FAILED = "failed"
    """It cannot be written here; only a change of its role is a reason to try again."""


class BackoffPolicy(Enum):
    """How long the rests of a partition are that fails again and again."""

    FAST = "brief"
    """Short at first, and doubled up to the backoff."""
    CONSTANT = "even"
    """The backoff each time."""
    SLOW = "longer"
    """The backoff at first, and doubled up to a limit."""


class FetchAction(Enum):
    """What to do with a partition's part of an answer."""

    APPEND = "take"
    """Records, perhaps none, and the leader's offsets."""
    TRUNCATE = "cut back"
    """The two logs part: what the leader does not have is cut off."""
    RESET_LOG = "begin anew"
    """The leader does not have the offset (any more)."""
    AWAIT_METADATA = "wait for metadata"
    """One of the two nodes does not know yet what the other does: no reason to worry."""
    BACK_OFF = "rest"
    """The leader has trouble."""


_STALE_METADATA_ERRORS = frozenset(
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


def action_for_error(code: int, *, has_diverged: bool) -> FetchAction:
    if code == ErrorCode.none:
        return FetchAction.TRUNCATE if has_diverged else FetchAction.APPEND
    if code == ErrorCode.offset_out_of_range:
        return FetchAction.RESET_LOG
    return FetchAction.AWAIT_METADATA if code in _STALE_METADATA_ERRORS else FetchAction.BACK_OFF


def should_reset_log(offset: int, last_epoch: int, leader_start: int) -> bool:
    """Whether a follower drops its log and begins where the leader's does, which does not have its offset.

    Only a log that shares nothing with the leader's is dropped: it ends before that begins, or has no records at all.
    One that goes on beyond the leader's end is cut back by epochs, and by nothing else.
    """
    return leader_start >= 0 and (offset < leader_start or last_epoch < 0)


@dataclass(slots=True)
class PartitionFetchState:
    leader_epoch: int
    phase: FetchPhase = FetchPhase.FETCHING
    delayed_until_ms: int = 0
    """The end of its rest."""
    failures: int = 0
    """In a row."""
    is_in_sync: bool = False
    """It had all that is committed when it was last answered, or else, as far as the metadata says, before."""


class PartitionFetchStates:
    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionFetchState] = {}
        self._delayed: dict[PartitionKey, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._partitions

    def is_fetching(self, key: PartitionKey) -> bool:
        found = self._partitions.get(key)
        return found is not None and found.phase is FetchPhase.FETCHING

    def is_in_sync(self, key: PartitionKey) -> bool:
        found = self._partitions.get(key)
        return found is not None and found.is_in_sync

    def is_retrying(self, key: PartitionKey) -> bool:
        """Whether its last attempt was a failure too."""
        found = self._partitions.get(key)
        return found is not None and found.failures > 0

    def add(self, key: PartitionKey, leader_epoch: int, *, is_in_sync: bool) -> bool:
        """Whether it is to be asked for now, because it is new or has a new leader epoch; then `is_in_sync` is what
        the metadata says of it."""
        found = self._partitions.get(key)
        if found is not None and found.leader_epoch == leader_epoch:
            return False
        self._partitions[key] = PartitionFetchState(leader_epoch, is_in_sync=is_in_sync)
        self._delayed.pop(key, None)
        return True

    def remove(self, key: PartitionKey) -> None:
        """It is not followed any more."""
        self._partitions.pop(key, None)
        self._delayed.pop(key, None)

    def resume_due(self, now_ms: int) -> list[PartitionKey]:
        """Those whose rest is over: from now on they are fetched again."""
        awake = [key for key, found in self._delayed.items() if found.delayed_until_ms <= now_ms]
        for key in awake:
            self._delayed.pop(key).phase = FetchPhase.FETCHING
        return awake

    def next_resume_ms(self) -> int | None:
        return min((found.delayed_until_ms for found in self._delayed.values()), default=None)

    def record_success(self, key: PartitionKey, *, is_in_sync: bool) -> None:
        found = self._partitions.get(key)
        if found is not None:
            found.failures = 0
            found.is_in_sync = is_in_sync

    def delay(self, key: PartitionKey, now_ms: int, pause_ms: int) -> None:
        found = self._partitions.get(key)
        if found is not None and found.phase is not FetchPhase.FAILED:
            found.phase = FetchPhase.DELAYED
            found.delayed_until_ms = now_ms + pause_ms
            self._delayed[key] = found

    def delay_after_failure(
        self,
        key: PartitionKey,
        now_ms: int,
        backoff_ms: int,
        random_fraction: float,
        policy: BackoffPolicy = BackoffPolicy.CONSTANT,
    ) -> None:
        """`random_fraction` is in [0, 1)."""
        found = self._partitions.get(key)
        if found is not None:
            found.failures += 1
            pause_ms = backoff_ms
            if policy is BackoffPolicy.FAST:
                pause_ms = exponential_backoff_ms(
                    found.failures, min(METADATA_BACKOFF_MS_MIN, backoff_ms), backoff_ms
                )
            elif policy is BackoffPolicy.SLOW:
                pause_ms = exponential_backoff_ms(
                    found.failures, backoff_ms, max(STORAGE_BACKOFF_MS_MAX, backoff_ms)
                )
            self.delay(key, now_ms, add_jitter(pause_ms, random_fraction))

    def mark_failed(self, key: PartitionKey) -> None:
        found = self._partitions.get(key)
        if found is not None:
            found.phase = FetchPhase.FAILED
            self._delayed.pop(key, None)


def add_jitter(pause_ms: int, random_fraction: float) -> int:
    """Around `pause_ms`, so that the followers of one leader do not all come back at the same moment."""
    return max(1, round(pause_ms * (0.8 + 0.4 * random_fraction)))
