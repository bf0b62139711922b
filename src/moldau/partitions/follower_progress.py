"""The replication progress of a follower, as its fetches show it to the leader. Pure."""

from dataclasses import dataclass

NEVER_MS = -(2**62)
UNKNOWN = -1


@dataclass(slots=True)
class FollowerProgress:
    """The progress of one follower in one leader epoch.

    A fetch offset acknowledges all records below it. Records that a fetch returns are acknowledged only by a later
    fetch.
    """

    durable_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    """The broker epoch of the latest fetch."""
    fetched_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS
    """The latest time T such that the follower is known to have every record that was in the leader's log at T."""
    leader_end_offset: int = 0
    """The leader's end offset at the latest fetch."""
    catch_up_offset: int = 0
    catch_up_ms: int = NEVER_MS
    """The time of an earlier fetch, when the leader's log ended at `catch_up_offset`. A follower that reaches this
    offset has caught up to this time. The offset stays the same until then, so that a follower that is always a few
    fetches behind can reach it."""
    is_keeping_up: bool = False

    def on_fetch(self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int) -> None:
        # Under constant load a follower never has all records. It keeps up if it has all records that existed at its
        # previous fetch.
        has_previous_end = self.fetched_ms != NEVER_MS and offset >= self.leader_end_offset
        self.is_keeping_up = has_previous_end or offset >= leader_end_offset
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.catch_up_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.catch_up_ms)
        if offset >= self.catch_up_offset or self.catch_up_ms == NEVER_MS:
            self.catch_up_offset, self.catch_up_ms = leader_end_offset, now_ms
        self.durable_offset = offset
        self.start_offset = start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_offset = leader_end_offset
        self.fetched_ms = now_ms

    def on_append(self, previous_end_offset: int, now_ms: int) -> None:
        """Marks the follower as caught up now if it has all records before this append."""
        if self.durable_offset >= previous_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Returns whether the follower has caught up within the last `lag_ms`.

        A follower at the end of the leader's log also has to keep fetching, because only fetches show that it is alive.
        """
        has_all = self.durable_offset >= leader_end_offset and now_ms - self.fetched_ms <= lag_ms
        return has_all or now_ms - self.caught_up_ms <= lag_ms

    def lag_ms(self, leader_end_offset: int, now_ms: int) -> int:
        """Returns for how long the follower has lacked records; 0 if it has all, or if it never had all."""
        if self.durable_offset >= leader_end_offset or self.caught_up_ms == NEVER_MS:
            return 0
        return max(0, now_ms - self.caught_up_ms)

    def on_removed_from_isr(self) -> None:
        """Requires new fetches before the follower can rejoin the ISR."""
        self.fetched_ms = self.catch_up_ms = NEVER_MS
        self.is_keeping_up = False
