"""Records what clients did and saw, from many threads: the history for the checker, the times of acknowledgements, and
committed offsets."""

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
        """Offsets delivered to the group, by partition."""
        self._acknowledged_at: dict[Partition, list[float]] = {partition: [] for partition in partitions}
        self._committed: dict[Partition, int] = {}
        """Highest offset with an acknowledged commit, by partition."""
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
        """Returns the longest time in which some partition acknowledged no write."""
        with self._lock:
            return max(_longest_gap_s(times, began, ended) for times in self._acknowledged_at.values())

    def partitions_without_acks_since(self, moment: float) -> list[Partition]:
        """Returns the partitions without an acknowledgement since then."""
        with self._lock:
            return [partition for partition, times in self._acknowledged_at.items() if not times or times[-1] < moment]

    # Reads

    def poll(self, consumer: str, partition: Partition, records: Sequence[tuple[int, bytes]]) -> None:
        with self._lock:
            end = records[-1][0] + 1
            self.history.polls.append(PollOperation(consumer, partition, records[0][0], end, records))

    def deliver(self, partition: Partition, offset: int) -> None:
        with self._lock:
            self.delivered.setdefault(partition, set()).add(offset)

    def commit(self, partition: Partition, offset: int) -> None:
        """Records an acknowledged commit."""
        with self._lock:
            self._committed[partition] = max(offset, self._committed.get(partition, 0))

    def committed(self) -> dict[Partition, int]:
        """Returns the offsets that must be committed from now on."""
        with self._lock:
            return dict(self._committed)

    def check_committed_offsets(
        self, reader: str, found: Mapping[Partition, int], at_least: Mapping[Partition, int]
    ) -> None:
        """Checks fetched offsets against `at_least`, which was known before the fetch."""
        for partition, offset in found.items():
            expected = at_least.get(partition, 0)
            if max(offset, 0) < expected:
                topic, index = partition
                self.fail(
                    f"committed offset went back: {reader} found {offset} for {topic}-{index}, {expected} was committed"
                )


def _longest_gap_s(times: list[float], began: float, ended: float) -> float:
    within = times[bisect.bisect_left(times, began) : bisect.bisect_right(times, ended)]
    return max(after - before for before, after in itertools.pairwise([began, *within, ended]))
