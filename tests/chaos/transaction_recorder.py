"""Records the transactions of producers and what readers got, from many threads. Reads the final logs from the files of
stopped nodes."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.records.batch import Batch
from moldau.records.control_records import end_of_transaction
from moldau.records.record import iterate_records
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    LoggedMarker,
    LoggedRecord,
    TransactionalLog,
    TransactionalRead,
    TransactionHistory,
    TransactionOperation,
    TransactionOutcome,
)
from support.replica_files import batches


class TransactionRecorder:
    def __init__(
        self, partitions: Sequence[Partition], committed_readers: Sequence[str], uncommitted_readers: Sequence[str]
    ) -> None:
        self.history = TransactionHistory()
        for name in committed_readers:
            self.history.committed_reads.update({(name, partition): [] for partition in partitions})
        for name in uncommitted_readers:
            self.history.uncommitted_reads.update({(name, partition): [] for partition in partitions})
        self._commits: dict[str, float] = {}
        """When each producer has last committed."""
        self._lock = threading.Lock()

    # Writes

    def begin(self, name: str) -> TransactionOperation:
        with self._lock:
            return self.history.begin(name)

    def send(self, transaction: TransactionOperation, partition: Partition, value: bytes) -> None:
        with self._lock:
            transaction.records.append((partition, value))

    def commit(self, transaction: TransactionOperation) -> None:
        """Records that the commit is sent now."""
        with self._lock:
            transaction.commit_invoked_at = self.history.next_event()

    def end(self, producer: str, transaction: TransactionOperation, outcome: TransactionOutcome) -> None:
        with self._lock:
            transaction.outcome = outcome
            if outcome is TransactionOutcome.COMMITTED:
                self._commits[producer] = time.monotonic()

    def producers_without_commit_since(self, moment: float, producers: Sequence[str]) -> list[str]:
        with self._lock:
            return [name for name in producers if self._commits.get(name, 0.0) < moment]

    def count(self, outcome: TransactionOutcome) -> int:
        with self._lock:
            return sum(each.outcome is outcome for each in self.history.transactions)

    def fail(self, text: str) -> None:
        with self._lock:
            self.history.unexpected_errors.append(text)

    # Reads

    def poll(self, reader: str, partition: Partition, records: Sequence[tuple[int, bytes]]) -> None:
        with self._lock:
            reads = self.history.committed_reads.get((reader, partition))
            if reads is None:
                reads = self.history.uncommitted_reads[reader, partition]
            at = self.history.next_event()
            reads += [TransactionalRead(at, offset, value) for offset, value in records]

    def readers_before(self, last_committed: Mapping[Partition, int], last: Mapping[Partition, int]) -> list[str]:
        """Returns the readers that have not got the last record of each partition."""

        def find(
            reads: Mapping[tuple[str, Partition], Sequence[TransactionalRead]], offsets: Mapping[Partition, int]
        ) -> set[str]:
            return {
                reader
                for (reader, partition), found in reads.items()
                if partition in offsets and (not found or found[-1].offset < offsets[partition])
            }

        with self._lock:
            history = self.history
            return sorted(find(history.committed_reads, last_committed) | find(history.uncommitted_reads, last))

    def read_count(self) -> int:
        with self._lock:
            return sum(map(len, self.history.committed_reads.values()))


def transactional_log(data_dir: Path, partition: Partition) -> TransactionalLog:
    """Returns the records and markers in the files of a replica."""
    found: list[LoggedRecord | LoggedMarker] = []
    for offset, data in sorted(batches(data_dir, *partition).items()):
        batch = Batch(memoryview(data))
        marker = end_of_transaction(batch) if batch.is_control else None
        if marker is not None:
            found.append(LoggedMarker(offset, batch.producer_id, marker.commit))
            continue
        found += [
            LoggedRecord(record.offset, record.value or b"", batch.producer_id, batch.is_transactional)
            for record in iterate_records(batch)
        ]
    return found
