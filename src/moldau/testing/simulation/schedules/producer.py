"""A transactional producer in a schedule, which follows the protocol as clients do. The schedule chooses each step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moldau.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    MoldauError,
    NotLeaderOrFollowerError,
    ProducerFencedError,
)
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.server.api import ClientConnection
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    TransactionHistory,
    TransactionOperation,
    TransactionOutcome,
)
from moldau.testing.simulation.schedules.coordinator import ScheduledCoordinator
from moldau.testing.simulation.schedules.leader import ScheduledLeader
from moldau.testing.simulation.schedules.network import ScheduledNetwork
from moldau.transactions.requests import (
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
)
from moldau.transactions.transaction_metadata import TV2

TIMEOUT_MS = 60_000

_RETRIABLE_ERRORS = (ConcurrentTransactionsError, NotLeaderOrFollowerError)


@dataclass(eq=False, slots=True)
class _UnacknowledgedBatch:
    leader: ScheduledLeader
    data: bytes
    value: str


class ScheduledProducer:
    def __init__(
        self,
        name: str,
        transactional_id: str,
        network: ScheduledNetwork,
        coordinator: ScheduledCoordinator,
        history: TransactionHistory,
        *,
        client_version: int = TV2,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.client_version = client_version
        self.identity: ProducerIdAndEpoch | None = None
        self.is_dead = False
        """Whether the producer is fenced, so that it has to stop."""
        self.must_abort = False
        self.operation: TransactionOperation | None = None
        """The open transaction."""
        self.ending: bool | None = None
        """Whether the open transaction is being committed (True) or aborted (False); None before its end."""
        self._network = network
        self._coordinator = coordinator
        self._history = history
        self._number = 0
        self._sequences: dict[Partition, int] = {}
        self._unacknowledged: list[_UnacknowledgedBatch] = []
        self._has_gaps = False
        """Whether an abort dropped batches without a response, so that it is unknown which sequences the log has."""
        self._latest_connections: dict[str, ClientConnection] = {}
        """The connection of the latest request of each name."""
        self._added: set[Partition] = set()
        """The partitions that the coordinator has added (before TV2)."""
        self._waiting: dict[Partition, list[_UnacknowledgedBatch]] = {}
        """Batches that wait until their partition is added (before TV2)."""
        self.on_response: Callable[[str], None] = lambda text: None
        """Called with a description of each response, even if it is late."""

    # Starting

    def start(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, timeout_ms=TIMEOUT_MS)
        self._call("start", self._coordinator.init_producer_id, request, self._on_started)

    def _on_started(self, response: Any) -> None:
        if self.identity is None and isinstance(response, ProducerIdAndEpoch):
            self.identity = response
        elif self.identity is None and not self.is_dead:
            self.start()

    # Batches

    @property
    def can_send(self) -> bool:
        return self.identity is not None and not self.is_dead and self.ending is None and not self.must_abort

    @property
    def can_commit(self) -> bool:
        return self.can_send and self.operation is not None and not self._unacknowledged

    @property
    def can_abort(self) -> bool:
        return self.operation is not None and not self.is_dead and self.ending is None

    @property
    def unacknowledged_partitions(self) -> list[Partition]:
        return [batch.leader.partition for batch in self._unacknowledged]

    def send(self, leader: ScheduledLeader, value: str | None = None) -> None:
        """Writes a record, in a new transaction if none is open."""
        assert self.identity is not None
        if self.operation is None:
            self._number += 1
            self.operation = self._history.begin(f"{self.name}/{self._number}")
        value = value or f"{self.operation.name}/{len(self.operation.records)}"
        sequence = self._sequences.get(leader.partition, 0)
        self._sequences[leader.partition] = sequence + 1
        data = build_batch(
            [Record(timestamp=0, value=value.encode())],
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.operation.records.append((leader.partition, value.encode()))
        batch = _UnacknowledgedBatch(leader, data, value)
        self._unacknowledged.append(batch)
        if self.client_version < TV2 and leader.partition not in self._added:
            self._waiting.setdefault(leader.partition, []).append(batch)
            self._add_partition(leader)
        else:
            self._produce(batch)

    def resend(self, partition: Partition) -> None:
        """Sends the first batch of a partition without a response again, as after a timeout."""
        batch = next(each for each in self._unacknowledged if each.leader.partition == partition)
        if batch in self._waiting.get(batch.leader.partition, ()):
            self._add_partition(batch.leader)
        else:
            self._produce(batch)

    def _add_partition(self, leader: ScheduledLeader) -> None:
        assert self.identity is not None
        request = AddPartitionsRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            partitions=frozenset([leader.partition]),
            client_version=self.client_version,
        )

        number = self._number

        def on_added(response: Any) -> None:
            if number != self._number or self.operation is None:
                return
            if not isinstance(response, MoldauError):
                self._added.add(leader.partition)
                for batch in self._waiting.pop(leader.partition, ()):
                    self._produce(batch)
            elif not isinstance(response, _RETRIABLE_ERRORS):
                self._fail(response)
            elif self.can_send:
                self._add_partition(leader)

        self._call(f"add {leader}", self._coordinator.add_partitions, request, on_added)

    def _produce(self, batch: _UnacknowledgedBatch) -> None:
        number, leader = self._number, batch.leader

        def respond(error: MoldauError | None) -> None:
            self._network.send(f"response to {batch.value}", lambda: self._on_produced(number, batch, error))

        self._network.send(
            batch.value, lambda: leader.produce(self.transactional_id, self.client_version, batch.data, respond)
        )

    def _on_produced(self, number: int, batch: _UnacknowledgedBatch, error: MoldauError | None) -> None:
        self.on_response(f"{batch.value}: {_text(error)}")
        if number != self._number or batch not in self._unacknowledged:
            return
        if error is None:
            self._unacknowledged.remove(batch)
        elif isinstance(error, _RETRIABLE_ERRORS):
            if self.can_send:
                self._produce(batch)
        else:
            self._fail(error)

    def _fail(self, error: MoldauError) -> None:
        """As in clients, a fenced producer stops, and other errors require an abort."""
        if isinstance(error, ProducerFencedError | InvalidProducerIdMappingError):
            self.is_dead = True
        else:
            self.must_abort = True

    # The end

    def commit(self) -> None:
        assert self.operation is not None
        self.operation.commit_invoked_at = self._history.next_event()
        self.ending = True
        self.end_again()

    def abort(self) -> None:
        self.ending = False
        self._has_gaps = bool(self._unacknowledged)
        self._unacknowledged.clear()
        self._waiting.clear()
        self.end_again()

    def end_again(self) -> None:
        """Sends the end of the transaction, for the first time or again as after a timeout."""
        assert self.identity is not None
        assert self.ending is not None
        number, commit = self._number, self.ending
        request = EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            commit=commit,
            client_version=self.client_version,
        )
        name = "commit" if commit else "abort"
        self._call(
            name, self._coordinator.end_transaction, request, lambda response: self._on_ended(number, commit, response)
        )

    def _on_ended(self, number: int, commit: bool, response: Any) -> None:
        if number != self._number or self.ending is not commit or self.is_dead:
            return
        assert self.operation is not None
        if isinstance(response, _RETRIABLE_ERRORS):
            self.end_again()
            return
        if isinstance(response, InvalidTransactionStateError) and commit:
            # The coordinator has aborted the transaction, because it took too long.
            self.operation.outcome = TransactionOutcome.ABORTED
            self.must_abort = True
            self.ending = None
            return
        if isinstance(response, InvalidTransactionStateError) and self.client_version < TV2:
            # No request to add a partition reached the coordinator.
            response = ProducerIdAndEpoch()
        if isinstance(response, MoldauError):
            self.is_dead = True
            return
        self.operation.outcome = TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED
        if self.client_version >= TV2:
            self.identity = response
            self._sequences.clear()
        elif self._has_gaps:
            # Clients without TV2 start a new epoch then.
            self.is_dead = True
        self.operation = None
        self.ending = None
        self.must_abort = False
        self._added.clear()

    def _call(
        self,
        name: str,
        handle: Callable[[Any, Callable[[Any], None]], None],
        request: Any,
        on_response: Callable[[Any], None],
    ) -> None:
        """Sends a request to the coordinator. Its response returns as a message, too."""
        connection, identity, is_tv1 = self._network.connect(), self.identity, self.client_version < TV2

        def arrive() -> None:
            if is_tv1 and identity is not None and self._coordinator.is_late(identity, connection):
                return
            handle(request, respond)

        self._latest_connections[name] = connection

        def receive(response: Any) -> None:
            if is_tv1 and self._latest_connections[name] is not connection:
                # The producer has closed the connection, to repeat the request on a new one.
                return
            self.on_response(f"{name}: {_text(response)}")
            on_response(response)

        def respond(response: Any) -> None:
            self._network.send(f"response to {self.name}'s {name}", lambda: receive(response))

        self._network.send(f"{self.name}'s {name}", arrive, is_unique=is_tv1)


def _text(response: Any) -> str:
    if isinstance(response, MoldauError):
        return type(response).__name__.removesuffix("Error")
    if isinstance(response, ProducerIdAndEpoch) and response.producer_id >= 0:
        return f"ok, producer {response.producer_id} epoch {response.producer_epoch}"
    return "ok"
