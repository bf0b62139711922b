"""The transaction coordinator of a schedule: the real shard, on a log whose high watermark the schedule moves."""

from collections.abc import Callable
from typing import Any

from moldau.coordinator.result import CoordinatorResult, Now
from moldau.errors import MoldauError
from moldau.server.api import ClientConnection
from moldau.server.late_requests import RequestStream
from moldau.testing.simulation.schedules.late_requests import is_late, new_late_request_filter
from moldau.testing.simulation.schedules.leader import ScheduledLeader
from moldau.testing.simulation.schedules.network import ScheduledNetwork
from moldau.transactions.formats import decode, encode
from moldau.transactions.marker_writer import EndTransactionMarker
from moldau.transactions.records import StateRecord, TransactionRecord
from moldau.transactions.requests import (
    PRODUCER_ID_NEEDED,
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
    TransactionMarkers,
)
from moldau.transactions.shard import TransactionCoordinatorShard
from moldau.transactions.transaction_metadata import TV2, TopicPartition, TransactionMetadata

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000

Respond = Callable[[Any], None]
"""Takes a response or a MoldauError."""
Operation = Callable[[int | None], CoordinatorResult[StateRecord, Any]]
"""Takes a new producer id, if one is needed."""


class ScheduledCoordinator:
    def __init__(self, network: ScheduledNetwork) -> None:
        self.network = network
        self.leaders: dict[TopicPartition, ScheduledLeader] = {}
        self.epoch = 0
        """The leader epoch of the log, which is the coordinator epoch of markers."""
        self.now_ms = START_MS
        self.log: list[list[StateRecord]] = []
        """One list of records per append."""
        self.high_watermark = 0
        self._shard = self._new_shard()
        self._late_requests = new_late_request_filter()
        self._latest_connections: dict[tuple[str, TopicPartition], ClientConnection] = {}
        """The connection on which each marker was last sent. Without TV2, earlier ones are closed by then."""
        self._parked: list[tuple[int, Callable[[], None]]] = []
        """Responses that wait until the high watermark reaches an offset."""
        self._last_producer_id = 1_000
        self._remaining: dict[str, tuple[TransactionMarkers, set[TopicPartition]]] = {}
        """The markers that are not written to all partitions yet, by transactional id."""

    def _new_shard(self) -> TransactionCoordinatorShard:
        return TransactionCoordinatorShard(id_expiration_ms=7 * DAY_MS, transaction_version=lambda: TV2)

    @property
    def now(self) -> Now:
        return Now(self.now_ms - START_MS, self.now_ms)

    @property
    def end_offset(self) -> int:
        return sum(map(len, self.log))

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        return self._shard.get(transactional_id)

    @property
    def has_pending_markers(self) -> bool:
        return bool(self._remaining)

    def put(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Writes a committed state without an operation."""
        self._append(CoordinatorResult([TransactionRecord(transactional_id, metadata, TV2)], None))
        self.high_watermark = self.end_offset

    # Requests

    def init_producer_id(self, request: InitProducerIdRequest, respond: Respond) -> None:
        self._submit(lambda new_id: self._shard.init_producer_id(self.now, request, new_id), respond)

    def is_late(self, producer: ProducerIdAndEpoch, connection: ClientConnection) -> bool:
        """Returns whether a request of a producer without TV2 came on an older connection than the previous one."""
        return is_late(
            self._late_requests, RequestStream.TRANSACTION, producer.producer_id, producer.producer_epoch, connection
        )

    def end_transaction(self, request: EndTransactionRequest, respond: Respond) -> None:
        self._submit(lambda new_id: self._shard.end_transaction(self.now, request, new_id), respond)

    def add_partitions(self, request: AddPartitionsRequest, respond: Respond) -> None:
        """The request of a client without TV2, or of a leader for a client with TV2."""
        self._submit(lambda _: self._shard.add_partitions(self.now, request), respond)

    def verify_partitions(self, request: AddPartitionsRequest, respond: Respond) -> None:
        def run(_: int | None) -> CoordinatorResult[StateRecord, Any]:
            result = self._shard.verify_partitions(request)
            errors = [error for error in result.response.values() if error is not None]
            if errors:
                raise errors[0]
            return CoordinatorResult((), None)

        self._submit(run, respond)

    def _submit(self, operation: Operation, respond: Respond) -> None:
        """Runs an operation. As in the coordinator's runtime, its response waits until all that it saw is committed."""
        try:
            result = operation(None)
            if result.response is PRODUCER_ID_NEEDED:
                self._last_producer_id += 1
                result = operation(self._last_producer_id)
            response = result.response
        except MoldauError as error:
            response = error
        else:
            self._append(result)
        self.park(lambda: respond(response))

    def _append(self, result: CoordinatorResult[StateRecord, Any]) -> None:
        if result.records:
            self.log.append(list(result.records))
            self._shard.apply(result.records, self.end_offset)
            self.send_markers()

    def park(self, respond: Callable[[], None]) -> None:
        self._parked.append((self.end_offset, respond))

    # Progress

    def replicate(self) -> None:
        """Commits all records, which sends responses and markers."""
        self.high_watermark = self.end_offset
        parked, self._parked = self._parked, []
        for _, respond in parked:
            respond()
        self.send_markers()

    def send_markers(self) -> None:
        for markers in self._shard.take_markers(self.high_watermark):
            self._remaining[markers.transactional_id] = (markers, set(markers.partitions))
            for partition in sorted(markers.partitions):
                self._send_marker(markers, partition)
            if not markers.partitions:
                self._complete(markers)

    def resend_markers(self) -> None:
        """Sends all markers without a response again, as after a timeout."""
        for markers, remaining in list(self._remaining.values()):
            for partition in sorted(remaining):
                self._send_marker(markers, partition)

    def _send_marker(self, markers: TransactionMarkers, partition: TopicPartition) -> None:
        marker = EndTransactionMarker(
            markers.producer_id, markers.producer_epoch, self.epoch, markers.commit, markers.transaction_version
        )
        coordinator_epoch, connection = self.epoch, self.network.connect()
        self._latest_connections[markers.transactional_id, partition] = connection

        def receive(error: MoldauError | None) -> None:
            is_latest = self._latest_connections[markers.transactional_id, partition] is connection
            if is_latest or markers.transaction_version >= TV2:
                self._on_marker_response(coordinator_epoch, markers, partition, error)

        def respond(error: MoldauError | None) -> None:
            self.network.send(f"response to the marker of {partition[0]}-{partition[1]}", lambda: receive(error))

        outcome = "commit" if markers.commit else "abort"
        self.network.send(
            f"{outcome} marker to {partition[0]}-{partition[1]}",
            lambda: self.leaders[partition].write_marker(marker, connection, respond),
            is_unique=markers.transaction_version < TV2,
        )

    def _on_marker_response(
        self, coordinator_epoch: int, markers: TransactionMarkers, partition: TopicPartition, error: MoldauError | None
    ) -> None:
        pending = self._remaining.get(markers.transactional_id)
        if coordinator_epoch != self.epoch or pending is None or pending[0] != markers or error is not None:
            return
        pending[1].discard(partition)
        if not pending[1]:
            self._complete(markers)

    def _complete(self, markers: TransactionMarkers) -> None:
        del self._remaining[markers.transactional_id]
        self._append(self._shard.complete_transaction(self.now, markers))

    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        while (due_ms := self._shard.next_deadline_ms(self.now)) is not None and due_ms <= self.now.monotonic_ms:
            self._append(self._shard.tick(self.now))
        for transactional_id in self._shard.take_timed_out_and_exhausted():
            self._last_producer_id += 1
            self._append(self._shard.abort_timed_out(self.now, transactional_id, self._last_producer_id))

    def fail_over(self, kept_batches: int | None = None) -> None:
        """The next coordinator starts with all committed records, and some of the others.

        `kept_batches` is the number of appends that survive, of those that are not committed; None for none of them.
        """
        kept, end_offset = [], 0
        for records in self.log:
            end_offset += len(records)
            if end_offset > self.high_watermark:
                if not kept_batches:
                    break
                kept_batches -= 1
            kept.append(records)
        self.log = kept
        self.epoch += 1
        self._parked.clear()
        self._remaining.clear()
        self._shard = self._new_shard()
        end_offset = 0
        for records in self.log:
            end_offset += len(records)
            loaded = [decode(*encode(record)) for record in records]
            self._shard.apply([each for each in loaded if each is not None], end_offset)
        # A coordinator serves requests when all that it has loaded is committed.
        self.high_watermark = self.end_offset
        self.send_markers()
