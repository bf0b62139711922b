"""The transactions of a log that hold back its last stable offset. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence


class UnstableTransactions:
    """Transactions that are open, or whose marker is not below the high watermark yet."""

    __slots__ = ("_completed", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """The producer id of each open transaction by its first offset, in ascending order of the first offsets."""
        self._completed: deque[tuple[int, int]] = deque()
        """Marker and first offset of completed transactions, both ascending. A transaction that started after a later
        completed one is left out: the later one holds back the last stable offset at least as far, and for longer."""

    def __len__(self) -> int:
        """Returns the number of open transactions."""
        return len(self._open)

    @property
    def first_open(self) -> tuple[int, int] | None:
        """First offset and producer id of the first open transaction; None if none is open."""
        return next(iter(self._open.items()), None)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[first_offset] = producer_id

    def complete(self, first_offset: int, last_offset: int) -> int:
        """Ends a transaction with a marker at `last_offset`. Returns the last stable offset after this marker, if all
        records were committed."""
        self._open.pop(first_offset, None)
        completed = self._completed
        while completed and completed[-1][1] >= first_offset:
            completed.pop()
        completed.append((last_offset, first_offset))
        return next(iter(self._open), last_offset + 1)

    def forget_committed(self, high_watermark: int) -> None:
        """Forgets the completed transactions whose marker is below the high watermark."""
        completed = self._completed
        while completed and completed[0][0] < high_watermark:
            completed.popleft()

    def first_offset(self, high_watermark: int) -> int | None:
        """Returns the first offset of all these transactions; None if there are none."""
        completed = self._completed
        if completed:
            self.forget_committed(high_watermark)
        first_open = next(iter(self._open), None)
        if not completed:
            return first_open
        first_completed = completed[0][1]
        return first_completed if first_open is None else min(first_open, first_completed)

    def clear(self) -> None:
        self._open.clear()
        self._completed.clear()

    @property
    def completed(self) -> Sequence[tuple[int, int]]:
        """Marker and first offset of the completed transactions that may still hold back the last stable offset."""
        return tuple(self._completed)

    def restore(self, transactions: Iterable[tuple[int, int]], completed: Iterable[tuple[int, int]]) -> None:
        """Replaces all transactions. The open ones are given as first offset and producer id."""
        self._open = dict(sorted(transactions))
        self._completed = deque(completed)
