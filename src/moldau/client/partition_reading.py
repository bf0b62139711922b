"""A partition that the fetcher reads: where it is, how far it goes, and what was fetched of it."""

from dataclasses import dataclass

from moldau.client.fetched import Fetched

EMPTY_ANSWERS = 5
EMPTY_S = 2.0
"""So many empty answers in a row, over so long, and there are no records. Fewer say nothing: a leader that could not
bring records from remote storage in time answers the same."""


@dataclass(slots=True, eq=False)
class Reading:
    """A seek puts a new one in its place, so what comes for the old one is known to be late."""

    position: int
    """The offset to fetch next."""
    until: int | None = None
    """Where reading ends; the position does not pass it."""
    leader_epoch: int = -1
    """Of the last batch read: by it a leader whose log went another way notices."""
    is_paused: bool = False
    is_stopped: bool = False
    """An error was told, and only a seek goes on from there."""
    failures: int = 0
    """In a row."""
    not_before: float = 0.0
    """Loop time of the next attempt after a failed one."""
    ready: Fetched | None = None
    high_watermark: int = -1
    readable: int = -1
    """The offset below which the leader lets records be read, as it told last: the high watermark, or the last stable
    offset."""
    log_start_offset: int = -1
    empty_answers: int = 0
    """In a row, though all that is to be read should be there."""
    empty_since: float = 0.0
    """Loop time of the first of them."""

    def note_empty(self, now: float) -> bool:
        """Whether this one more empty answer is enough to believe that there is nothing."""
        if self.empty_answers == 0:
            self.empty_since = now
        self.empty_answers += 1
        return self.empty_answers >= EMPTY_ANSWERS and now - self.empty_since >= EMPTY_S

    @property
    def is_at_end(self) -> bool:
        return self.until is not None and self.position >= self.until

    @property
    def is_there(self) -> bool:
        """Whether all that is to be read is in the log already, for all that is known: it need not be waited for."""
        if self.until is None or self.empty_answers:
            return False
        return self.readable < 0 or self.readable >= self.until
