"""Fetch states of followed partitions: which are fetched, delayed or failed, and how to handle a response. Pure."""

from dataclasses import dataclass
from enum import Enum

from moldau.client.errors import ErrorCode
from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.replication.fetch_session import PartitionKey

METADATA_BACKOFF_MS_MIN = 10
"""The first delay if the leader or the follower lacks metadata, which usually arrives soon."""
STORAGE_BACKOFF_MS_MAX = 5_000
"""The maximum delay of a partition that currently cannot be written."""


class BackoffPolicy(Enum):
    """The delays of a partition that fails repeatedly."""

    FAST = "fast"
    """The delay starts short and doubles up to replica.fetch.backoff.ms."""
    CONSTANT = "constant"
    """The delay is always replica.fetch.backoff.ms."""
    SLOW = "slow"
    """The delay starts with replica.fetch.backoff.ms and doubles up to STORAGE_BACKOFF_MS_MAX."""


class FetchAction(Enum):
    """How to handle a partition's part of a fetch response."""

    APPEND = "append"
    TRUNCATE = "truncate"
    """The logs of leader and follower diverge."""
    RESET_LOG = "reset log"
    """The leader's log does not contain the fetch offset."""
    AWAIT_METADATA = "await metadata"
    """Leader and follower currently have different metadata."""
    BACK_OFF = "back off"
    """The leader returned any other error."""


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
    """Returns whether a follower whose fetch offset is out of range resets its log to the leader's log start offset.

    The follower does so only if its log is empty or ends before the leader's log starts. A log that is longer than the
    leader's is truncated at a diverging epoch instead.
    """
    return leader_start >= 0 and (offset < leader_start or last_epoch < 0)


@dataclass(slots=True)
class PartitionFetchState:
    leader_epoch: int
    has_failed: bool = False
    """Whether the partition's log failed. The partition is fetched again only in another leader epoch."""
    delayed_until_ms: int = 0
    """When a delayed partition is fetched again. A new leader epoch ends the delay earlier."""
    failures: int = 0
    """The number of consecutive failures."""
    is_in_sync: bool = False
    """Whether the follower has reached the high watermark. Before the first response: whether it is in the ISR."""


class PartitionFetchStates:
    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionFetchState] = {}
        self._delayed: dict[PartitionKey, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def is_fetching(self, key: PartitionKey) -> bool:
        state = self._partitions.get(key)
        return state is not None and not state.has_failed and key not in self._delayed

    def is_in_sync(self, key: PartitionKey) -> bool:
        state = self._partitions.get(key)
        return state is not None and state.is_in_sync

    def is_retrying(self, key: PartitionKey) -> bool:
        state = self._partitions.get(key)
        return state is not None and state.failures > 0

    def add(self, key: PartitionKey, leader_epoch: int, *, is_in_sync: bool) -> bool:
        """Adds a partition, or a new leader epoch of a known partition. Returns False if both are already known.

        `is_in_sync` says whether the metadata has the follower in the ISR.
        """
        state = self._partitions.get(key)
        if state is not None and state.leader_epoch == leader_epoch:
            return False
        self._partitions[key] = PartitionFetchState(leader_epoch, is_in_sync=is_in_sync)
        self._delayed.pop(key, None)
        return True

    def remove(self, key: PartitionKey) -> None:
        self._partitions.pop(key, None)
        self._delayed.pop(key, None)

    def resume_due(self, now_ms: int) -> list[PartitionKey]:
        """Resumes and returns the partitions whose delay is over."""
        due = [key for key, state in self._delayed.items() if state.delayed_until_ms <= now_ms]
        for key in due:
            del self._delayed[key]
        return due

    def next_resume_ms(self) -> int | None:
        return min((state.delayed_until_ms for state in self._delayed.values()), default=None)

    def record_success(self, key: PartitionKey, *, is_in_sync: bool) -> None:
        state = self._partitions.get(key)
        if state is not None:
            state.failures = 0
            state.is_in_sync = is_in_sync

    def delay(self, key: PartitionKey, now_ms: int, delay_ms: int) -> None:
        state = self._partitions.get(key)
        if state is not None and not state.has_failed:
            state.delayed_until_ms = now_ms + delay_ms
            self._delayed[key] = state

    def delay_after_failure(
        self,
        key: PartitionKey,
        now_ms: int,
        backoff_ms: int,
        random_fraction: float,
        policy: BackoffPolicy = BackoffPolicy.CONSTANT,
    ) -> None:
        """Delays a partition after another failure. `random_fraction` in [0, 1) determines the jitter."""
        state = self._partitions.get(key)
        if state is not None:
            state.failures += 1
            delay_ms = backoff_ms
            if policy is BackoffPolicy.FAST:
                delay_ms = exponential_backoff_ms(state.failures, min(METADATA_BACKOFF_MS_MIN, backoff_ms), backoff_ms)
            elif policy is BackoffPolicy.SLOW:
                delay_ms = exponential_backoff_ms(state.failures, backoff_ms, max(STORAGE_BACKOFF_MS_MAX, backoff_ms))
            self.delay(key, now_ms, add_jitter(delay_ms, random_fraction))

    def mark_failed(self, key: PartitionKey) -> None:
        state = self._partitions.get(key)
        if state is not None:
            state.has_failed = True
            self._delayed.pop(key, None)


def add_jitter(delay_ms: int, random_fraction: float) -> int:
    """Returns `delay_ms` with jitter, so that the followers of one leader do not retry at the same moment."""
    return max(1, round(delay_ms * (0.8 + 0.4 * random_fraction)))
