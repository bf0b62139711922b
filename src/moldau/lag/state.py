"""The lag of one partition of a group, its rates and its state, from regular samples. Pure.

The states are those of Burrow, and need no thresholds. A group that reads only committed records is recognised by what
it commits; see `is_read_committed`.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import NamedTuple

from moldau.records.batch import NO_TIMESTAMP

WINDOW = 10
"""How many samples rates and states are computed from."""
SAMPLES_MIN = 5
"""How many samples are needed to call a consumer stalled or falling behind."""
NO_RECORD = -1
_FIELD_COUNT = 5


class LagState(StrEnum):
    OK = "ok"
    FALLING_BEHIND = "falling_behind"
    """The lag grows."""
    STALLED = "stalled"
    """The group commits the same offset again and again, although there are unread records."""
    STOPPED = "stopped"
    """The group has not committed for as long as the window is, and there has been an unread record for as long."""
    REWOUND = "rewound"
    """The group has committed a lower offset than before."""
    LOST_RECORDS = "lost_records"
    """Records that the group has not read were deleted: the committed offset is below the start of the log."""
    NO_LEADER = "no_leader"
    """The partition has no leader, so its end and the lag are unknown."""
    UNKNOWN = "unknown"
    """The leader of the partition did not respond."""


class Observation(NamedTuple):
    """What a sample found. Times are in the clocks of the coordinator."""

    now_ms: int
    """The monotonic time of the sample."""
    wall_ms: int
    committed_offset: int
    commit_timestamp_ms: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    unread_offset: int = NO_RECORD
    """The first record of a client from the committed offset on; NO_RECORD if there is none below the high
    watermark."""
    unread_ms: int = NO_TIMESTAMP
    """When that record was appended; NO_TIMESTAMP if that is unknown."""
    is_append_time: bool = False
    """Whether `unread_ms` is the time of the append, not the timestamp that a producer has set."""
    fetches_committed: bool = False
    """Whether a member of the group fetches only committed records from the leader. False proves nothing."""


class PartitionLag(NamedTuple):
    """The result of the latest sample. None means unknown, as are ends and lag without a response of the leader."""

    sampled_ms: int
    """The wall clock time of the sample."""
    state: LagState
    committed_offset: int
    commit_timestamp_ms: int
    high_watermark: int | None
    last_stable_offset: int | None
    log_start_offset: int | None
    is_read_committed: bool
    """Whether the lag is relative to the last stable offset. Otherwise it is relative to the high watermark."""
    lag_records: int | None
    """As in Kafka, the distance of offsets: control records and compacted records count."""
    lag_ms: int | None
    """How long ago the first unread record was appended; 0 if there is none."""
    is_append_time: bool
    """Whether `lag_ms` is relative to the time of the append, not to the timestamp that a producer has set."""
    commit_rate: float | None
    """Offsets per second by which the committed offset grows, since it was last reset to a lower one."""
    produce_rate: float | None
    """Offsets per second by which the high watermark grows."""

    @property
    def catch_up_s(self) -> float | None:
        """The estimated time until the lag is 0; infinite if the group does not catch up."""
        if self.lag_records is None:
            return None
        if not self.lag_records:
            return 0.0
        if self.commit_rate is None or self.produce_rate is None:
            return None
        gain = self.commit_rate - self.produce_rate
        return self.lag_records / gain if gain > 0 else inf


def unknown_lag(state: LagState, wall_ms: int, committed_offset: int, commit_timestamp_ms: int) -> PartitionLag:
    """Returns the lag of a partition whose leader is missing or did not respond: only the commit is known."""
    return PartitionLag(
        sampled_ms=wall_ms,
        state=state,
        committed_offset=committed_offset,
        commit_timestamp_ms=commit_timestamp_ms,
        high_watermark=None,
        last_stable_offset=None,
        log_start_offset=None,
        is_read_committed=False,
        lag_records=None,
        lag_ms=None,
        is_append_time=False,
        commit_rate=None,
        produce_rate=None,
    )


class _Window(NamedTuple):
    """The latest samples, the oldest first."""

    times_ms: Sequence[int]
    committed_offsets: Sequence[int]
    commit_timestamps_ms: Sequence[int]
    high_watermarks: Sequence[int]
    lags: Sequence[int]


class PartitionLagTracker:
    """The samples of one partition of a group."""

    __slots__ = ("_is_read_committed", "_values", "lag", "sampled_ms")

    def __init__(self) -> None:
        self.lag: PartitionLag | None = None
        self.sampled_ms: int | None = None
        """The monotonic time of the latest sample, with or without a result."""
        self._is_read_committed = False
        # The values of one sample after those of another: an array needs a tenth of the memory of tuples.
        self._values = array("q")

    @property
    def observed_ms(self) -> int | None:
        """The monotonic time of the latest sample with a result."""
        return self._values[-_FIELD_COUNT] if self._values else None

    @property
    def is_known(self) -> bool:
        return self.lag is not None and self.lag.lag_records is not None

    def observe(self, found: Observation, interval_ms: int) -> PartitionLag:
        self.sampled_ms = found.now_ms
        self._is_read_committed = is_read_committed(found, self._is_read_committed)
        end_offset = found.last_stable_offset if self._is_read_committed else found.high_watermark
        lag_records = max(0, end_offset - found.committed_offset)
        lag_ms = _lag_ms(found, end_offset)
        values = self._values
        values.extend(
            (found.now_ms, found.committed_offset, found.commit_timestamp_ms, found.high_watermark, lag_records)
        )
        del values[: -WINDOW * _FIELD_COUNT]
        window = _Window(*(values[number::_FIELD_COUNT] for number in range(_FIELD_COUNT)))
        self.lag = PartitionLag(
            sampled_ms=found.wall_ms,
            state=_state(found, window, lag_ms, (WINDOW - 1) * interval_ms),
            committed_offset=found.committed_offset,
            commit_timestamp_ms=found.commit_timestamp_ms,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            is_read_committed=self._is_read_committed,
            lag_records=lag_records,
            lag_ms=lag_ms,
            is_append_time=found.is_append_time,
            commit_rate=_rate(window.times_ms, window.committed_offsets),
            produce_rate=_rate(window.times_ms, window.high_watermarks),
        )
        return self.lag

    def set_unknown(self, now_ms: int, lag: PartitionLag, *, keeps_samples: bool) -> PartitionLag:
        """Records a sample without a result; see `unknown_lag`. Earlier samples count again after a short gap only."""
        self.sampled_ms = now_ms
        self.lag = lag._replace(is_read_committed=self._is_read_committed)
        if not keeps_samples:
            del self._values[:]
        return self.lag


def is_read_committed(found: Observation, previously: bool = False) -> bool:
    """Returns whether the group reads only committed records, which no request of a group says.

    A commit above the last stable offset proves that it does not. It does if the leader sees a member that fetches only
    committed records. It also does if it has read everything below the last stable offset, and has committed after the
    first record above it was appended: otherwise it would have read on. Without a proof, the earlier result holds.
    """
    stable = found.last_stable_offset
    if found.committed_offset > stable:
        return False
    if found.fetches_committed:
        return True
    has_read_all = found.unread_offset >= stable and stable < found.high_watermark
    if has_read_all and 0 <= found.unread_ms <= found.commit_timestamp_ms:
        return True
    return previously


def _lag_ms(found: Observation, end_offset: int) -> int | None:
    # Markers of transactions may follow the committed offset.
    if not found.committed_offset <= found.unread_offset < end_offset:
        return 0
    return None if found.unread_ms == NO_TIMESTAMP else max(0, found.wall_ms - found.unread_ms)


def _state(found: Observation, window: _Window, lag_ms: int | None, window_ms: int) -> LagState:
    """Returns the state. `window_ms` is the length of a full window, which may have more samples than there are yet."""
    lags, commits, commit_times = window.lags, window.committed_offsets, window.commit_timestamps_ms
    if found.committed_offset < found.log_start_offset:
        return LagState.LOST_RECORDS
    if not lags[-1]:
        return LagState.OK
    if any(later < earlier for earlier, later in pairwise(commits)):
        return LagState.REWOUND
    lowest = min(lags)
    # A record that was appended since then means that the lag was 0 lately.
    is_unread_long = lowest > 0 if lag_ms is None else lag_ms > window_ms
    if is_unread_long and found.wall_ms - found.commit_timestamp_ms > window_ms:
        return LagState.STOPPED
    if not lowest or len(lags) < SAMPLES_MIN:
        return LagState.OK
    if commits[0] == commits[-1] and commit_times[0] < commit_times[-1]:
        return LagState.STALLED
    half = len(lags) // 2
    # So a lag that goes up and down with batches or commits is not one that grows.
    return LagState.FALLING_BEHIND if min(lags[half:]) > max(lags[:half]) else LagState.OK


def _rate(times_ms: Sequence[int], offsets: Sequence[int]) -> float | None:
    """Returns by how much offsets grow per second, over the samples since they last decreased."""
    first = len(offsets) - 1
    while first > 0 and offsets[first - 1] <= offsets[first]:
        first -= 1
    duration_ms = times_ms[-1] - times_ms[first]
    return (offsets[-1] - offsets[first]) * 1000 / duration_ms if duration_ms > 0 else None
