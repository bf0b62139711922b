"""The fetch position of one partition: the next offset, the end offset of a bounded read, and the fetched batches."""

from dataclasses import dataclass
from uuid import UUID

from moldau.client.consumer.completed_fetch import CompletedFetch
from moldau.client.net.metadata import TopicInfo

EMPTY_RESPONSES_MIN = 5
EMPTY_DURATION_MIN_S = 2.0
"""EMPTY_RESPONSES_MIN consecutive empty responses over at least this time mean that there are no records. Fewer prove
nothing, because a leader also returns an empty response if it cannot read remote storage in time."""


@dataclass(slots=True, eq=False)
class FetchPosition:
    """The state of one fetched partition. A seek replaces it, so that responses for the old object are discarded."""

    position: int
    until: int | None = None
    """The end offset (exclusive) of a bounded read; None if the read has no end."""
    leader_epoch: int = -1
    """The leader epoch of the last batch, with which the leader detects a truncated log; -1 if unknown."""
    is_paused: bool = False
    has_failed: bool = False
    """Whether an error was reported. Only a seek resumes fetching."""
    failures: int = 0
    backoff_until: float = 0.0
    """The loop time before which the partition is not fetched again."""
    requested_leader_epoch: int = -1
    """The epoch of the leader that got the last fetch; -1 if it was unknown."""
    completed: CompletedFetch | None = None
    high_watermark: int = -1
    readable_end_offset: int = -1
    """The high watermark, or with READ_COMMITTED the last stable offset; -1 if unknown."""
    log_start_offset: int = -1
    empty_responses: int = 0
    """The number of consecutive empty responses that came when the log should have all records up to `until`."""
    empty_since: float = 0.0
    """The loop time of the first of the consecutive empty responses."""
    topic_id: UUID | None = None
    """The id of the topic at the last fetch; None if brokers do not return it."""
    stale_leader_since: float | None = None
    """The loop time at which the metadata was first seen to be older than the last batch; None if it is not older."""

    def record_empty_response(self, now: float) -> bool:
        """Counts an empty response. Returns whether the responses so far prove that there are no records."""
        if self.empty_responses == 0:
            self.empty_since = now
        self.empty_responses += 1
        return self.empty_responses >= EMPTY_RESPONSES_MIN and now - self.empty_since >= EMPTY_DURATION_MIN_S

    def awaits_newer_leader(self, topic: TopicInfo, index: int, now: float, timeout_s: float) -> bool:
        """Returns whether to wait for newer metadata, because the known leader is older than the last batch.

        The log of an older leader may not contain that batch. The wait is limited to `timeout_s`, because a saved
        position may come from a deleted topic of the same name, whose epochs cannot be compared.
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
        """Whether the log should have all records up to `until`, so that the fetch need not wait at the broker.

        False after an empty response: the next fetch then waits.
        """
        if self.until is None or self.empty_responses:
            return False
        return self.readable_end_offset < 0 or self.readable_end_offset >= self.until
