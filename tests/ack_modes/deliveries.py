"""A journal of the calls of handlers in all processes of a group, and what it says about deliveries."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

CALLED, COMPLETED = "called", "completed"


class JournalWriter:
    """Appends one line per event. What is written survives SIGKILL of the process."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._process = process

    def write(self, event: str, numbers: Iterable[int]) -> None:
        line = f"{event} {self._process} {' '.join(map(str, numbers))}\n".encode()
        assert os.write(self._file, line) == len(line)


@dataclass
class Deliveries:
    """How often each record was passed to a handler, and handled to its end."""

    records: int = 0
    """How many records the topic has."""
    calls: Counter[int] = field(default_factory=Counter)
    completions: Counter[int] = field(default_factory=Counter)
    repeats_after: Counter[int] = field(default_factory=Counter)
    """How many records another process got again that the n-th process had got last."""
    calls_by_process: Counter[int] = field(default_factory=Counter)
    dead_letters: list[int] = field(default_factory=list)

    def completed(self, at_least: int, at_most: int | None = None) -> int:
        """Returns how many records were handled to the end so many times."""
        counts = [self.completions[number] for number in range(self.records)]
        return sum(at_least <= each and (at_most is None or each <= at_most) for each in counts)

    @property
    def repeats(self) -> int:
        return self.calls.total() - len(self.calls)

    @property
    def lost(self) -> int:
        """The records that were neither handled to the end nor written to the dead-letter topic."""
        kept = self.completions.keys() | set(self.dead_letters)
        return sum(number not in kept for number in range(self.records))


class JournalReader:
    """Reads what was appended to a journal since the last time."""

    def __init__(self, path: Path) -> None:
        self.deliveries = Deliveries()
        self._file = os.open(path, os.O_RDONLY | os.O_CREAT)
        self._unfinished = b""
        self._last_process: dict[int, int] = {}

    def close(self) -> None:
        os.close(self._file)

    def read(self) -> Deliveries:
        while appended := os.read(self._file, 1 << 20):
            *lines, self._unfinished = (self._unfinished + appended).split(b"\n")
            for line in lines:
                event, *words = line.decode().split()
                process, *numbers = map(int, words)
                self._count(event, process, numbers)
        return self.deliveries

    def _count(self, event: str, process: int, numbers: list[int]) -> None:
        if event == COMPLETED:
            self.deliveries.completions.update(numbers)
            return
        self.deliveries.calls.update(numbers)
        self.deliveries.calls_by_process[process] += len(numbers)
        for number in numbers:
            last = self._last_process.get(number, process)
            if last != process:
                self.deliveries.repeats_after[last] += 1
            self._last_process[number] = process
