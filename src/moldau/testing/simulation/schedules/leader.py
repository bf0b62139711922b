"""The leader of a partition in a schedule: the real log in memory and its producer state.

The order of the checks is that of `Partition.append` and `BatchVerification`.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from moldau.client.consumer.completed_fetch import _drop_aborted
from moldau.errors import InvalidTransactionStateError, MoldauError, NotLeaderOrFollowerError
from moldau.logs.memory import MemoryLog
from moldau.logs.producer_state import VerificationGuard
from moldau.logs.store import LogName
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.control_records import EndTransaction, encode_key, encode_value, end_of_transaction
from moldau.records.record import Record, iterate_records
from moldau.server.api import ClientConnection
from moldau.server.late_requests import RequestStream
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import LoggedMarker, LoggedRecord, TransactionalLog
from moldau.testing.simulation.schedules.late_requests import is_late, new_late_request_filter
from moldau.testing.simulation.schedules.network import ScheduledNetwork
from moldau.testing.simulation.workloads.client import split_batches
from moldau.transactions.marker_writer import EndTransactionMarker
from moldau.transactions.requests import AddPartitionsRequest
from moldau.transactions.transaction_metadata import TV2

if TYPE_CHECKING:
    from moldau.testing.simulation.schedules.coordinator import ScheduledCoordinator

T = TypeVar("T")

RespondToProduce = Callable[[MoldauError | None], None]
READ_BYTES = 1 << 20


class ScheduledLeader:
    def __init__(self, partition: Partition, network: ScheduledNetwork, coordinator: "ScheduledCoordinator") -> None:
        self.partition = partition
        self.epoch = 0
        self.high_watermark = 0
        self.read_position = 0
        self._network = network
        self._coordinator = coordinator
        self.log = MemoryLog(LogName(*partition), UUID(int=1), TopicSettings(), 86_400_000)
        self._late_requests = new_late_request_filter()
        self._parked: list[Callable[[], None]] = []
        """Responses that wait until all records are committed."""

    def __str__(self) -> str:
        return f"{self.partition[0]}-{self.partition[1]}"

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    # Produce

    def produce(self, transactional_id: str, client_version: int, data: bytes, respond: RespondToProduce) -> None:
        batch = Batch(data)
        epoch, producers = self.epoch, self.log.producers
        try:
            guard = producers.begin_verification(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, supports_epoch_bump=client_version >= TV2
            )
        except MoldauError as error:
            respond(error)
            return
        if guard is None:
            self._append_batch(data, None, respond)
            return
        request = AddPartitionsRequest(
            transactional_id=transactional_id,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            partitions=frozenset([self.partition]),
            client_version=client_version,
        )

        def on_verified(response: Any) -> None:
            error = response if isinstance(response, MoldauError) else None
            self._network.send(
                f"verification for {self}", lambda: self._on_verified(epoch, guard, data, error, respond)
            )

        def verify() -> None:
            if client_version >= TV2:
                self._coordinator.add_partitions(request, on_verified)
            else:
                self._coordinator.verify_partitions(request, on_verified)

        self._network.send(f"question of {self}", verify)

    def _on_verified(
        self, epoch: int, guard: VerificationGuard, data: bytes, error: MoldauError | None, respond: RespondToProduce
    ) -> None:
        if guard.waiting < 1:
            # The response was duplicated. A connection delivers each response once.
            return
        if epoch != self.epoch:
            guard.waiting -= 1
            respond(NotLeaderOrFollowerError(f"{self} has another leader"))
            return
        if error is None:
            self._append_batch(data, guard, respond)
        else:
            respond(error)
            self.log.producers.note_rejected(Batch(data), error)
        self.log.producers.end_verification(guard)

    def _append_batch(self, data: bytes, guard: VerificationGuard | None, respond: RespondToProduce) -> None:
        batch = Batch(bytearray(data))
        try:
            repeated = self.log.producers.check(batch, guard)
        except MoldauError as error:
            if isinstance(error, InvalidTransactionStateError):
                self.log.producers.note_rejected(batch, error)
            respond(error)
            return
        if repeated is None:
            self._append(batch)
        self._parked.append(lambda: respond(None))

    # Markers

    def write_marker(
        self, marker: EndTransactionMarker, connection: ClientConnection, respond: RespondToProduce
    ) -> None:
        stream = RequestStream.MARKERS, marker.producer_id, marker.producer_epoch
        is_tv1 = marker.transaction_version < TV2
        if is_tv1 and is_late(self._late_requests, *stream, connection, marker.coordinator_epoch):
            return
        end = EndTransaction(marker.commit, marker.coordinator_epoch)
        record = Record(timestamp=0, key=encode_key(end), value=encode_value(end))
        batch = build_batch(
            [record],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transactional=True,
            control=True,
        )
        producers = self.log.producers
        try:
            producers.check_marker(
                marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_version
            )
        except MoldauError as error:
            respond(error)
            return
        producers.unstable.forget_committed(self.high_watermark)
        self._append(Batch(bytearray(batch)))
        self._parked.append(lambda: respond(None))

    def _append(self, batch: Batch) -> None:
        batch.base_offset = self.log.end_offset
        batch.leader_epoch = self.epoch
        _run(self.log.append([batch]))

    # Progress

    def replicate(self) -> None:
        self.high_watermark = self.log.end_offset
        parked, self._parked = self._parked, []
        for respond in parked:
            respond()

    def fail_over(self, end_offset: int | None = None) -> None:
        """The next leader starts with all committed records, and with the others below `end_offset`."""
        self.epoch += 1
        self._parked.clear()
        _run(self.log.truncate_to(max(self.high_watermark, end_offset or 0)))
        # A follower has no guards.
        self.log.producers._guards = {}

    # Reading

    def read_committed(self, bytes_max: int) -> list[tuple[int, bytes]]:
        """Returns the offsets and values of the next records that a consumer with read_committed gets."""
        below = self.last_stable_offset
        if self.read_position >= below:
            return []
        data, aborted = _run(self.log.read_committed(self.read_position, bytes_max, below))
        batches = list(split_batches(memoryview(data.read())))
        position, self.read_position = self.read_position, batches[-1].next_offset
        return [
            (record.offset, record.value or b"")
            for batch in _drop_aborted(batches, aborted)  # type: ignore[arg-type]
            if not batch.is_control
            for record in iterate_records(batch)
            if record.offset >= position
        ]

    def content(self) -> TransactionalLog:
        found: list[LoggedRecord | LoggedMarker] = []
        if self.log.end_offset == self.log.start_offset:
            return found
        data = _run(self.log.read(self.log.start_offset, 1 << 30, self.log.end_offset)).read()
        for batch in split_batches(memoryview(data)):
            marker = end_of_transaction(batch) if batch.is_control else None
            if marker is not None:
                found.append(LoggedMarker(batch.base_offset, batch.producer_id, marker.commit))
            else:
                found += [
                    LoggedRecord(record.offset, record.value or b"", batch.producer_id, batch.is_transactional)
                    for record in iterate_records(batch)
                ]
        return found


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of a log in memory, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a log in memory waited")
