"""What clients did and saw, written down by many threads: the history for the checker, when each partition took a
write, and what a group had committed."""

import bisect
import itertools
import threading
import time
from collections.abc import Mapping, Sequence

from moldau.testing.simulation.checkers.history import History, Partition, PollOperation, SendOperation


class HistoryRecorder:
    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.history = History()
        self.failures: list[str] = []
        self.delivered: dict[Partition, set[int]] = {}
        """What the group's members have been given, by offset."""
        self._acknowledged_at: dict[Partition, list[float]] = {partition: [] for partition in partitions}
        self._committed: dict[Partition, int] = {}
        """The highest offset whose commit a member has been told of."""
        self._lock = threading.Lock()

    # Writes

    def send(self, producer: str, partition: Partition, value: bytes) -> SendOperation:
        with self._lock:
            return self.history.send(producer, partition, [value], acks=-1, is_idempotent=True)

    def acknowledge(self, send: SendOperation, offset: int | None) -> None:
        with self._lock:
            self.history.acknowledge(send, offset)
            self._acknowledged_at[send.partition].append(time.monotonic())

    def fail(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)

    def longest_pause_s(self, began: float, ended: float) -> float:
        """The longest time in which some partition had no write acknowledged."""
        with self._lock:
            return max(_longest_gap_s(times, began, ended) for times in self._acknowledged_at.values())

    def partitions_without_acks_since(self, moment: float) -> list[Partition]:
        """The partitions in which nothing has been acknowledged since."""
        with self._lock:
            return [
                partition
                for partition, times in self._acknowledged_at.items()
                if not times or times[-1] < moment
            ]

    # Reads

    def poll(self, consumer: str, partition: Partition, records: Sequence[tuple[int, bytes]]) -> None:
        with self._lock:
            end = records[-1][0] + 1
            self.history.polls.append(PollOperation(consumer, partition, records[0][0], end, records))

    def deliver(self, partition: Partition, offset: int) -> None:
        with self._lock:
            self.delivered.setdefault(partition, set()).add(offset)

    def commit(self, partition: Partition, offset: int) -> None:
        """A member was told that this is committed."""
        with self._lock:
            self._committed[partition] = max(offset, self._committed.get(partition, 0))

    def committed(self) -> dict[Partition, int]:
        """What has to be committed from now on, at least."""
        with self._lock:
            return dict(self._committed)

    def check_committed_offsets(
        self, who: str, found: Mapping[Partition, int], at_least: Mapping[Partition, int]
    ) -> None:
        """Somebody asked what is committed; `at_least` is what was known before it asked."""
        for partition, offset in found.items():
            expected = at_least.get(partition, 0)
            if max(offset, 0) < expected:
                topic, index = partition
                self.fail(
                    f"committed offset went back: {who} found {offset} for {topic}-{index}, {expected} was committed"
                )


def _longest_gap_s(times: list[float], began: float, ended: float) -> float:
    within = times[bisect.bisect_left(times, began) : bisect.bisect_right(times, ended)]
    return max(after - before for before, after in itertools.pairwise([began, *within, ended]))
