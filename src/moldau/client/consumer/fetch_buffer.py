"""The fetch buffer: completed fetches whose records were not yet returned to the user.

The buffer is needed because a poll returns a limited number of records, while a fetch may return more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from moldau.client.consumer.completed_fetch import CompletedFetch
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import ConsumerRecord, TopicPartition, decode_records
from moldau.errors import MoldauError

PositionUpdate = Callable[[TopicPartition, int, int], None]
"""Called with a partition, its next offset, and the leader epoch of the record before that offset."""


class PartitionFetchError(Exception):
    """An error that stops reading a partition until a seek."""

    def __init__(self, partition: TopicPartition, error: KafkaError) -> None:
        super().__init__(f"{partition}: {error}")
        self.partition = partition
        self.error = error


class FetchBuffer:
    """Completed fetches in the order of their arrival."""

    def __init__(self) -> None:
        self._entries: deque[_BufferedFetch] = deque()

    def add(self, fetched: Iterable[CompletedFetch]) -> None:
        self._entries.extend(_BufferedFetch(each) for each in fetched)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        dropped = set(partitions)
        self._entries = deque(each for each in self._entries if each.partition not in dropped)

    def has_readable(self, is_paused: Callable[[TopicPartition], bool]) -> bool:
        """Returns whether there are records to take. Nothing should be added until these records are taken."""
        return any(not each.is_drained for each in self._readable(is_paused))

    @property
    def failed_partitions(self) -> list[TopicPartition]:
        """The partitions with an error. They are not read until `drop` removes them."""
        return [each.partition for each in self._entries if each.is_drained]

    def take_records(
        self, records_max: int, is_paused: Callable[[TopicPartition], bool], update_position: PositionUpdate
    ) -> list[ConsumerRecord]:
        """Returns up to `records_max` records, partition by partition, without paused partitions.

        Calls `update_position` also for offsets without records. If there are no records and a partition has failed,
        raises PartitionFetchError, until `drop` removes that partition.
        """
        taken: list[ConsumerRecord] = []
        for entry in self._readable(is_paused):
            taken += entry.read_records(records_max - len(taken))
            update_position(entry.partition, entry.position, entry.leader_epoch)
            if len(taken) >= records_max:
                break
        self._remove_drained(taken, is_paused)
        return taken

    def take_batches(
        self, is_paused: Callable[[TopicPartition], bool], update_position: PositionUpdate
    ) -> list[CompletedFetch]:
        """Returns all remaining batches of partitions that are not paused. Raises the same errors as `take_records`."""
        taken: list[CompletedFetch] = []
        for entry in self._readable(is_paused):
            fetched = entry.remaining()
            taken += [fetched] if fetched.batches else []
            update_position(entry.partition, entry.position, entry.leader_epoch)
        self._remove_drained(taken, is_paused)
        return taken

    def _readable(self, is_paused: Callable[[TopicPartition], bool]) -> Iterator["_BufferedFetch"]:
        failed_partitions: set[TopicPartition] = set()
        for entry in self._entries:
            if not is_paused(entry.partition) and entry.partition not in failed_partitions:
                yield entry
                if entry.error is not None:
                    # Do not read later fetches of the partition, because records before them are missing.
                    failed_partitions.add(entry.partition)

    def _remove_drained(self, taken: Iterable[object], is_paused: Callable[[TopicPartition], bool]) -> None:
        self._entries = deque(each for each in self._entries if not each.is_drained or each.error is not None)
        if taken:
            return
        for entry in self._entries:
            if entry.is_drained and entry.error is not None and not is_paused(entry.partition):
                raise PartitionFetchError(entry.partition, entry.error)


class _BufferedFetch:
    """A completed fetch that is read record by record."""

    def __init__(self, fetched: CompletedFetch) -> None:
        self.partition = fetched.partition
        self.position = fetched.position
        self.leader_epoch = -1
        self.error = fetched.error
        self.is_drained = False
        """Whether all records were read. If `error` is set, it is raised next."""
        self._fetched = fetched
        self._records = (
            record for batch in fetched.batches for record in decode_records(fetched.partition, batch, fetched.position)
        )

    def read_records(self, records_max: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        if self.is_drained:
            return records
        try:
            for record in islice(self._records, records_max):
                records.append(record)
        except MoldauError as error:
            self.error = KafkaError(ErrorCode.corrupt_message, str(error))
            self.is_drained = True
        if records:
            self.position, self.leader_epoch = records[-1].offset + 1, records[-1].leader_epoch
        if len(records) < records_max and not self.is_drained:
            self._mark_drained()
        return records

    def remaining(self) -> CompletedFetch:
        batches = [] if self.is_drained else [e for e in self._fetched.batches if e.next_offset > self.position]
        remaining = self._fetched._replace(position=self.position, batches=batches, error=None)
        if not self.is_drained:
            self._mark_drained()
        return remaining

    def _mark_drained(self) -> None:
        self.is_drained = True
        self.position = self._fetched.next_offset
        self.leader_epoch = max(self.leader_epoch, self._fetched.leader_epoch)
