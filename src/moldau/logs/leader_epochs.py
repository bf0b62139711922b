"""Where each leader epoch of a log began: what a replica or a consumer needs to find where two logs part. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from moldau.errors import CorruptRecordError

NO_EPOCH = -1
NO_OFFSET = -1

_VERSION = "0"


class LeaderEpochCache:
    """The epochs that have records (or had a leader) in a log, each with the offset it began at.

    Both epochs and offsets ascend strictly.
    """

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        """The newest epoch, or NO_EPOCH."""

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return iter(zip(self._epochs, self._starts, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochCache) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def assign(self, epoch: int, offset: int) -> None:
        """Records from `offset` on belong to `epoch`. What contradicts this is older news and goes."""
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
        """The answer to OffsetForLeaderEpoch: the largest epoch up to `epoch`, and the offset it ends at.

        (NO_EPOCH, NO_OFFSET) for an epoch beyond the newest. An epoch before the oldest known one ends where
        that one begins.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end
        following = bisect_right(self._epochs, epoch)
        end = self._starts[following]
        return (epoch if following == 0 else self._epochs[following - 1]), end

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the record at `offset`, or NO_EPOCH."""
        following = bisect_right(self._starts, offset)
        return NO_EPOCH if following == 0 else self._epochs[following - 1]

    def truncate_from_end(self, offset: int) -> None:
        """The log now ends at `offset`."""
        keep = bisect_left(self._starts, offset)
        del self._epochs[keep:], self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH

    def truncate_from_start(self, offset: int) -> None:
        """The log now begins at `offset`; the epoch that covers it begins there too."""
        gone = bisect_right(self._starts, offset) - 1
        if gone < 0:
            return
        del self._epochs[:gone], self._starts[:gone]
        self._starts[0] = offset

    def clear(self) -> None:
        self.truncate_from_end(0)

    def to_text(self) -> str:
        """Kafka's leader-epoch-checkpoint file."""
        lines = [_VERSION, str(len(self._epochs))]
        lines += (f"{epoch} {start}" for epoch, start in self)
        return "\n".join(lines) + "\n"

    def text_below(self, offset: int) -> str:
        """Returns the checkpoint file of this cache truncated to `offset`."""
        truncated = LeaderEpochCache.from_text(self.to_text())
        truncated.truncate_from_end(offset)
        return truncated.to_text()

    @classmethod
    def from_text(cls, text: str) -> "LeaderEpochCache":
        """Raises CorruptRecordError for what `to_text` cannot have written."""
        history = cls()
        lines = text.split("\n")
        try:
            if lines[0] != _VERSION or len(lines) != int(lines[1]) + 3 or lines[-1]:
                raise ValueError(f"{len(lines)} lines, of which the first two are {lines[:2]}")
            for line in lines[2:-1]:
                epoch, start = map(int, line.split(" "))
                if epoch <= history.latest or (history._starts and start <= history._starts[-1]) or start < 0:
                    raise ValueError(f"{line!r} does not follow what is before it")
                history.assign(epoch, start)
        except (ValueError, IndexError) as error:
            raise CorruptRecordError(f"a leader epoch checkpoint cannot be read: {error}") from error
        return history
