"""The fetch position of one partition: where the fetcher reads, up to which offset, and what it has fetched."""

from dataclasses import dataclass
from uuid import UUID

from moldau.client.consumer.completed_fetch import CompletedFetch
from moldau.client.net.metadata import TopicInfo

EMPTY_RESPONSES_MIN = 5
EMPTY_DURATION_MIN_S = 2.0
"""After this many empty responses in a row, over this time, there are no records. Fewer prove nothing: a leader that
could not fetch records from remote storage in time responds the same way."""


@dataclass(slots=True, eq=False)
class FetchPosition:
    """The state of one fetched partition. A seek replaces it, so that responses for the old one are discarded."""

    position: int
    """The offset to fetch next."""
    until: int | None = None
    """The end offset of a bounded read, which the position does not pass."""
    leader_epoch: int = -1
    """The leader epoch of the last batch, by which the leader detects a truncated log."""
    is_paused: bool = False
    has_failed: bool = False
    """Whether an error was reported; only a seek resumes fetching."""
    failures: int = 0
    """In a row."""
    backoff_until: float = 0.0
    """The loop time of the next attempt after a failed one."""
    completed: CompletedFetch | None = None
    high_watermark: int = -1
    readable_end_offset: int = -1
    """The end of what the leader lets consumers read: the high watermark or the last stable offset."""
    log_start_offset: int = -1
    empty_responses: int = 0
    """In a row, though the log should have all records up to `until`."""
    empty_since: float = 0.0
    """The loop time of the first of them."""
    topic_id: UUID | None = None
    """The id of the topic at the last fetch, if brokers return it."""
    stale_leader_since: float | None = None
    """The loop time since when the known leader epoch is older than that of the last batch."""

    def record_empty_response(self, now: float) -> bool:
        """Counts an empty response; returns whether it proves that there are no records."""
        if self.empty_responses == 0:
            self.empty_since = now
        self.empty_responses += 1
        return self.empty_responses >= EMPTY_RESPONSES_MIN and now - self.empty_since >= EMPTY_DURATION_MIN_S

    def awaits_newer_leader(self, topic: TopicInfo, index: int, now: float, timeout_s: float) -> bool:
        """Returns whether the last batch is of a newer leader than the known one, whose log may lack it.

        Epochs are comparable only within one topic, and a saved position may come from a deleted topic of the same
        name. So the wait for newer metadata is limited to `timeout_s`.
        """
        known = topic.partition(index)
        if self.topic_id is not None and topic.topic_id != self.topic_id:
            self.leader_epoch = -1
        self.topic_id = topic.topic_id
        if known is None or not 0 <= known.leader_epoch < self.leader_epoch:
            self.stale_leader_since = None
            return False
        self.stale_leader_since = now if self.stale_leader_since is None else self.stale_leader_since
        if now - self.stale_leader_since < timeout_s:
            return True
        self.leader_epoch = -1
        return False

    @property
    def is_at_end(self) -> bool:
        return self.until is not None and self.position >= self.until

    @property
    def is_end_available(self) -> bool:
        """Whether the log has all records up to `until`, as far as is known, so that a fetch need not wait."""
        if self.until is None or self.empty_responses:
            return False
        return self.readable_end_offset < 0 or self.readable_end_offset >= self.until
