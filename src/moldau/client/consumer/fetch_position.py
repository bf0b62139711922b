"""A partition that the fetcher reads: where it is, how far it goes, and what was fetched of it."""

from dataclasses import dataclass
from uuid import UUID

from moldau.client.consumer.completed_fetch import CompletedFetch
from moldau.client.net.metadata import TopicInfo

EMPTY_RESPONSES_MIN = 5
EMPTY_DURATION_MIN_S = 2.0
"""So many empty answers in a row, over so long, and there are no records. Fewer say nothing: a leader that could not
bring records from remote storage in time answers the same."""


@dataclass(slots=True, eq=False)
class FetchPosition:
    """A seek puts a new one in its place, so what comes for the old one is known to be late."""

    position: int
    """The offset to fetch next."""
    until: int | None = None
    """Where reading ends; the position does not pass it."""
    leader_epoch: int = -1
    """Of the last batch read: by it a leader whose log went another way notices."""
    is_paused: bool = False
    has_failed: bool = False
    """An error was told, and only a seek goes on from there."""
    failures: int = 0
    """In a row."""
    backoff_until: float = 0.0
    """Loop time of the next attempt after a failed one."""
    completed: CompletedFetch | None = None
    high_watermark: int = -1
    readable_end_offset: int = -1
    """The offset below which the leader lets records be read, as it told last: the high watermark, or the last stable
    offset."""
    log_start_offset: int = -1
    empty_responses: int = 0
    """In a row, though all that is to be read should be there."""
    empty_since: float = 0.0
    """Loop time of the first of them."""
    topic_id: UUID | None = None
    """Of the topic that was read last, where brokers tell it."""
    stale_leader_since: float | None = None
    """Loop time since when the leader that is known is older than the last batch read."""

    def record_empty_response(self, now: float) -> bool:
        """Whether this one more empty answer is enough to believe that there is nothing."""
        if self.empty_responses == 0:
            self.empty_since = now
        self.empty_responses += 1
        return self.empty_responses >= EMPTY_RESPONSES_MIN and now - self.empty_since >= EMPTY_DURATION_MIN_S

    def awaits_newer_leader(self, topic: TopicInfo, index: int, now: float, patience_s: float) -> bool:
        """Whether the last batch read is of a newer leader than the one that is known: that one's log may lack it.

        Epochs are compared within one topic: one that was made anew begins its own. But nobody can tell whether a
        position that was kept comes from the topic's predecessor: so there is a limit to waiting for news."""
        known = topic.partition(index)
        if self.topic_id is not None and topic.topic_id != self.topic_id:
            self.leader_epoch = -1
        self.topic_id = topic.topic_id
        if known is None or not 0 <= known.leader_epoch < self.leader_epoch:
            self.stale_leader_since = None
            return False
        self.stale_leader_since = now if self.stale_leader_since is None else self.stale_leader_since
        if now - self.stale_leader_since < patience_s:
            return True
        self.leader_epoch = -1
        return False

    @property
    def is_at_end(self) -> bool:
        return self.until is not None and self.position >= self.until

    @property
    def is_end_available(self) -> bool:
        """Whether all that is to be read is in the log already, for all that is known: it need not be waited for."""
        if self.until is None or self.empty_responses:
            return False
        return self.readable_end_offset < 0 or self.readable_end_offset >= self.until
