"""How far a follower has come, as its leader sees it: from the follower's own fetches and nothing else. Pure."""

from dataclasses import dataclass

NEVER_MS = -(2**62)
UNKNOWN = -1


@dataclass(slots=True)
class FollowerProgress:
    """Of one follower in one leader epoch. A fetch says at the time it is asked what is durable at the follower;
    what it is answered counts only when the next one asks past it."""

    durable_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    """Of the broker's life that the newest fetch came from."""
    fetched_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS
    """The last time at which it was known to have all that the leader had then."""
    leader_end_offset: int = 0
    """Where the leader's log ended when it fetched last."""
    catch_up_offset: int = 0
    catch_up_ms: int = NEVER_MS
    """Where the leader's log ended at a fetch of before, and when that was: the next thing to be reached. Not at the
    last fetch: who is several fetches behind, and as fast as the leader, would never reach that."""
    is_keeping_up: bool = False

    def on_fetch(
        self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> None:
        # Under steady writing it never has all of it; but it has what there was a fetch ago.
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
        """The leader's log grows: until now who was at its end had all of it, whenever it asked last."""
        if self.durable_offset >= previous_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Whoever is at the leader's end, too, has to ask on: where nothing is written, only that shows it could."""
        has_all = self.durable_offset >= leader_end_offset and now_ms - self.fetched_ms <= lag_ms
        return has_all or now_ms - self.caught_up_ms <= lag_ms

    def on_removed_from_isr(self) -> None:
        """It was taken out of the in-sync set: whatever it did before, it has to fetch again to come back."""
        self.fetched_ms = self.catch_up_ms = NEVER_MS
        self.is_keeping_up = False
