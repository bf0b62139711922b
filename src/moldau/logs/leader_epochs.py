"""Leader epochs of a log with their start offsets, which show replicas and consumers where logs diverge. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from moldau.errors import CorruptRecordError

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochCache:
    """The leader epochs of a log with their start offsets; both are strictly ascending."""

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yields (epoch, start offset), ascending."""
        return iter(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, offset: int) -> None:
        """Adds `epoch` with the start offset `offset`. Removes entries with the same or a higher epoch or start offset.

        Does nothing if `epoch` is the latest epoch and has started at or before `offset`.
        """
        if epoch < 0:
            return
        if epoch == self.latest and offset >= self._starts[-1]:
            return
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, offset))
        del self._epochs[keep:], self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(offset)
        self.latest = epoch

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Returns the largest epoch up to `epoch` and its end offset, as OffsetForLeaderEpoch does.

        Returns (NO_EPOCH, NO_OFFSET) if `epoch` is later than the latest epoch. An epoch before the first known epoch
        ends at the start of the first known epoch.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end
        following = bisect_right(self._epochs, epoch)
        return (self._epochs[following - 1] if following else epoch), self._starts[following]

    def epoch_for_offset(self, offset: int) -> int:
        """Returns the epoch of the record at `offset`, or NO_EPOCH."""
        following = bisect_right(self._starts, offset)
        return NO_EPOCH if following == 0 else self._epochs[following - 1]

    def truncate_from_end(self, offset: int) -> None:
        """Removes epochs that start at or after `offset`, the new end of the log."""
        keep = bisect_left(self._starts, offset)
        del self._epochs[keep:], self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH

    def truncate_from_start(self, offset: int) -> None:
        """Removes epochs that end at or before `offset`, the new start of the log."""
        removed = bisect_right(self._starts, offset) - 1
        if removed >= 0:
            del self._epochs[:removed], self._starts[:removed]
            self._starts[0] = offset

    def clear(self) -> None:
        self.truncate_from_end(0)

    def to_text(self) -> str:
        """Returns the content of Kafka's leader-epoch-checkpoint file."""
        return format_checkpoint(f"{epoch} {start}" for epoch, start in self)

    def text_below(self, offset: int) -> str:
        """Returns the content of the checkpoint file for a copy of this cache that is truncated to `offset`."""
        truncated = LeaderEpochCache.from_text(self.to_text())
        truncated.truncate_from_end(offset)
        return truncated.to_text()

    @classmethod
    def from_text(cls, text: str) -> "LeaderEpochCache":
        """Parses the leader-epoch-checkpoint file. Raises CorruptRecordError."""
        cache = cls()
        try:
            for line in parse_checkpoint(text):
                epoch, start = map(int, line.split(" "))
                if epoch <= cache.latest or (cache._starts and start <= cache._starts[-1]) or start < 0:
                    raise ValueError(f"{line!r} is not in ascending order")
                cache.assign(epoch, start)
        except (ValueError, IndexError) as error:
            raise CorruptRecordError(f"a leader epoch checkpoint cannot be read: {error}") from error
        return cache


def format_checkpoint(entries: Iterable[str]) -> str:
    """Returns the content of a checkpoint file of Kafka: the version, the number of entries, and one entry per line."""
    lines = list(entries)
    return "\n".join(["0", str(len(lines)), *lines, ""])


def parse_checkpoint(text: str) -> list[str]:
    """Returns the entries of a checkpoint file. Raises ValueError or IndexError."""
    lines = text.split("\n")
    if lines[0] != "0" or len(lines) != int(lines[1]) + 3 or lines[-1]:
        raise ValueError(f"{len(lines)} lines, starting with {lines[:2]}")
    return lines[2:-1]
