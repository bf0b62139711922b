"""Random histories of the transaction coordinator: producers that start, crash, repeat and delay requests, failovers
that lose uncommitted records, timeouts, and markers that are written late.

Whatever happens, a transaction has one outcome, epochs never fall, prepared transactions complete, fenced producers
achieve nothing, and repetitions change nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.coordinator.result import CoordinatorResult
from moldau.errors import ConcurrentTransactionsError, MoldauError
from moldau.transactions.records import StateRecord
from moldau.transactions.requests import (
    PRODUCER_ID_NEEDED,
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
    TransactionMarkers,
)
from moldau.transactions.transaction_metadata import PRODUCER_EPOCH_MAX, TV0, TV2, TransactionMetadata, TransactionState
from support.transactions import TIMEOUT_MS, ShardHarness

STATES = TransactionState
IDS = ("a", "b")
PARTITIONS = (("orders", 0), ("orders", 1), ("payments", 0))
NEXT_STATES = {
    None: {STATES.EMPTY},
    STATES.EMPTY: {STATES.EMPTY, STATES.ONGOING, STATES.PREPARE_ABORT},
    STATES.ONGOING: {STATES.ONGOING, STATES.PREPARE_COMMIT, STATES.PREPARE_ABORT},
    STATES.PREPARE_COMMIT: {STATES.COMPLETE_COMMIT},
    STATES.PREPARE_ABORT: {STATES.COMPLETE_ABORT},
    STATES.COMPLETE_COMMIT: {STATES.EMPTY, STATES.ONGOING, STATES.PREPARE_ABORT},
    STATES.COMPLETE_ABORT: {STATES.EMPTY, STATES.ONGOING, STATES.PREPARE_ABORT},
}

Operation = Callable[[int | None], CoordinatorResult[StateRecord, Any]]


@dataclass(eq=False)
class Producer:
    transactional_id: str
    client_version: int
    started: int
    """Numbers producers in the order in which their start was acknowledged."""
    producer_id: int
    epoch: int
    transaction: int = 0
    """Numbers the transactions of this producer."""
    sent: list[tuple[int, EndTransactionRequest]] = field(default_factory=list)
    """All requests to end a transaction, which the network may deliver again, with the number of the transaction."""


@dataclass
class Pending:
    end_offset: int
    """The response is sent when the high watermark reaches this offset."""
    acknowledge: Callable[[Any], None]
    response: Any


class TransactionModel(RuleBasedStateMachine):
    @initialize(transaction_version=st.sampled_from([TV0, TV2]), epoch=st.sampled_from([0, PRODUCER_EPOCH_MAX - 3]))
    def begin(self, transaction_version: int, epoch: int) -> None:
        self.harness = ShardHarness(transaction_version)
        for transactional_id in IDS if epoch else ():
            self.harness.put(
                transactional_id,
                TransactionMetadata(
                    producer_id=7,
                    producer_epoch=epoch,
                    timeout_ms=TIMEOUT_MS,
                    state=STATES.EMPTY,
                    last_update_ms=self.harness.now_ms,
                ),
            )
        self.high_watermark = self.harness.end_offset
        self.producers: list[Producer] = []
        self.starts = 0
        self.latest_start = dict.fromkeys(IDS, 0)
        """The number of the latest producer of each id whose start was acknowledged."""
        self.pending: list[Pending] = []
        self.in_flight: list[TransactionMarkers] = []
        self.written: dict[tuple[int, int], bool] = {}
        """The outcome of each marker with TV2 that a partition has, by producer id and epoch."""
        self.owners: list[tuple[int, str, tuple[int, int]]] = []
        """End offset, transactional id, and the producer and transaction that added partitions."""
        self.fenced: list[tuple[int, str, int, int]] = []
        """End offset, transactional id, producer id and epoch of transactions that the coordinator aborted."""

    # The coordinator

    def run(self, operation: Operation, acknowledge: Callable[[Any], None] = lambda response: None) -> Any:
        """Runs an operation. Its response is acknowledged later, when everything that it saw is committed."""
        try:
            result = operation(None)
            if result.response is PRODUCER_ID_NEEDED:
                result = operation(self.harness.new_producer_id())
            response = self.harness.apply(result)
        except MoldauError as error:
            return error
        self.pending.append(Pending(self.harness.end_offset, acknowledge, response))
        return response

    @rule()
    def replicate(self) -> None:
        self.high_watermark = self.harness.end_offset
        pending, self.pending = self.pending, []
        for each in pending:
            each.acknowledge(each.response)

    @rule()
    def fail_over(self) -> None:
        """The next coordinator has only committed records, and no memory of the markers in flight."""
        log, end_offset = [], 0
        for records in self.harness.log:
            end_offset += len(records)
            if end_offset <= self.high_watermark:
                log.append(records)
        self.harness.log = log
        self.harness.reload()
        self.pending.clear()
        self.in_flight.clear()
        self.owners = [each for each in self.owners if each[0] <= self.high_watermark]
        self.fenced = [each for each in self.fenced if each[0] <= self.high_watermark]

    @rule()
    def send_markers(self) -> None:
        for markers in self.harness.take_markers(self.high_watermark):
            committed = self.committed_states(markers.transactional_id)[-1]
            assert committed.is_prepared, "a marker is sent only if the decision is committed"
            assert (committed.producer_id, committed.producer_epoch) == (markers.producer_id, markers.producer_epoch)
            assert markers.commit == (committed.state is STATES.PREPARE_COMMIT)
            self.in_flight.append(markers)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def write_markers(self, data: st.DataObject) -> None:
        markers = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        if markers.transaction_version >= TV2 and markers.partitions:
            key = (markers.producer_id, markers.producer_epoch)
            assert self.written.setdefault(key, markers.commit) == markers.commit, "two outcomes of one transaction"
        self.run(lambda _: self.harness.shard.complete_transaction(self.harness.now, markers))

    @rule()
    def complete_all(self) -> None:
        """Nothing fails for a while."""
        self.replicate()
        self.send_markers()
        for markers in self.in_flight:
            self.harness.apply(self.harness.shard.complete_transaction(self.harness.now, markers))
        self.in_flight.clear()
        self.replicate()

    @rule(elapsed_ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def pass_time(self, elapsed_ms: int) -> None:
        before = {each: self.harness.shard.get(each) for each in IDS}
        self.harness.now_ms += elapsed_ms
        self.harness.tick()
        self.note_fenced(before)

    def note_fenced(self, before: Mapping[str, TransactionMetadata | None]) -> None:
        """Records the producers whose transactions the coordinator has aborted."""
        for transactional_id, old in before.items():
            new = self.harness.shard.get(transactional_id)
            if old is not None and new is not None and old.state is STATES.ONGOING and new.is_prepared:
                fenced = (self.harness.end_offset, transactional_id, old.producer_id, old.producer_epoch)
                self.fenced.append(fenced)

    # Producers

    def start(
        self, transactional_id: str, client_version: int, expected: ProducerIdAndEpoch | None, replaced: Producer | None
    ) -> Any:
        request = InitProducerIdRequest(transactional_id=transactional_id, timeout_ms=TIMEOUT_MS, expected=expected)

        def acknowledge(response: ProducerIdAndEpoch) -> None:
            if replaced is not None:
                replaced.producer_id, replaced.epoch = response
                return
            self.starts += 1
            self.latest_start[transactional_id] = self.starts
            self.producers.append(Producer(transactional_id, client_version, self.starts, *response))

        before = {transactional_id: self.harness.shard.get(transactional_id)}
        response = self.run(
            lambda new_id: self.harness.shard.init_producer_id(self.harness.now, request, new_id), acknowledge
        )
        self.note_fenced(before)
        return response

    @rule(transactional_id=st.sampled_from(IDS), client_version=st.sampled_from([TV0, TV2]))
    def start_producer(self, transactional_id: str, client_version: int) -> None:
        self.start(transactional_id, client_version, None, None)

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def continue_producer(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        expected = ProducerIdAndEpoch(producer.producer_id, producer.epoch)
        response = self.start(producer.transactional_id, producer.client_version, expected, producer)
        self.check_fenced(producer, response)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add_partitions(self, data: st.DataObject, partitions: set[tuple[str, int]]) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        request = AddPartitionsRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=frozenset(partitions),
            client_version=producer.client_version,
        )
        response = self.run(lambda _: self.harness.shard.add_partitions(self.harness.now, request))
        self.check_fenced(producer, response)
        if not isinstance(response, MoldauError):
            owner = (producer.started, producer.transaction)
            self.owners.append((self.harness.end_offset, producer.transactional_id, owner))
            for _, *fenced in self.fenced:
                assert fenced != [producer.transactional_id, producer.producer_id, producer.epoch], "not fenced"

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        request = EndTransactionRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            commit=commit,
            client_version=producer.client_version,
        )
        producer.sent.append((producer.transaction, request))
        transaction = producer.transaction

        def acknowledge(response: ProducerIdAndEpoch) -> None:
            if producer.transaction == transaction:
                producer.transaction += 1
                if producer.client_version >= TV2:
                    producer.producer_id, producer.epoch = response

        response = self.run(lambda new_id: self.end(request, new_id), acknowledge)
        self.check_fenced(producer, response)
        if not isinstance(response, MoldauError):
            self.check_repetition(request, response)

    def end(self, request: EndTransactionRequest, new_producer_id: int | None) -> CoordinatorResult[StateRecord, Any]:
        return self.harness.shard.end_transaction(self.harness.now, request, new_producer_id)

    @precondition(lambda self: any(producer.sent for producer in self.producers))
    @rule(data=st.data())
    def deliver_end_again(self, data: st.DataObject) -> None:
        """A late repetition must not end a later transaction. TV1 cannot prevent this within one epoch."""
        producer = data.draw(st.sampled_from([each for each in self.producers if each.sent]))
        transaction, request = data.draw(st.sampled_from(producer.sent))
        before = self.harness.shard.get(request.transactional_id)
        response = self.run(lambda new_id: self.end(request, new_id))
        if before is None or before.state is not STATES.ONGOING or request.client_version < TV2:
            return
        owner = [owner for _, owned, owner in self.owners if owned == request.transactional_id][-1]
        if owner != (producer.started, transaction):
            assert self.harness.shard.get(request.transactional_id) == before, f"{request} changed {before}: {response}"

    # Checks

    def check_fenced(self, producer: Producer, response: Any) -> None:
        if producer.started < self.latest_start[producer.transactional_id]:
            assert isinstance(response, MoldauError), f"the fenced {producer} got {response}"

    def check_repetition(self, request: EndTransactionRequest, first: Any) -> None:
        """Repeats a request that was just successful."""
        before = self.harness.shard.get(request.transactional_id)
        try:
            second = self.end(request, None)
        except ConcurrentTransactionsError:
            return
        assert second.response == first
        # The state is written again without a change, which proves that this is still the coordinator.
        assert [record.metadata for record in second.records] == [before]
        assert self.harness.shard.get(request.transactional_id) == before

    def committed_states(self, transactional_id: str) -> list[TransactionMetadata]:
        states = []
        end_offset = 0
        for records in self.harness.log:
            end_offset += len(records)
            if end_offset > self.high_watermark:
                break
            states += [
                record.metadata
                for record in records
                if record.transactional_id == transactional_id and record.metadata is not None
            ]
        return states

    @invariant()
    def the_log_is_a_history_of_transactions(self) -> None:
        if not hasattr(self, "harness"):
            return
        previous: dict[str, TransactionMetadata] = {}
        for records in self.harness.log:
            for record in records:
                metadata, before = record.metadata, previous.get(record.transactional_id)
                assert metadata is not None
                if before is not None and _is_same(metadata, before):
                    # A response waits for the commit of the unchanged state.
                    continue
                assert metadata.state in NEXT_STATES[before.state if before is not None else None]
                if before is not None and before.producer_id == metadata.producer_id:
                    assert metadata.producer_epoch >= before.producer_epoch, "an epoch fell"
                else:
                    assert metadata.producer_epoch == 0 or before is None
                previous[record.transactional_id] = metadata

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.fail_over()
        self.complete_all()
        for transactional_id in IDS:
            metadata = self.harness.shard.get(transactional_id)
            assert metadata is None or not metadata.is_prepared, "a decided transaction is not complete"


def _is_same(one: TransactionMetadata, other: TransactionMetadata) -> bool:
    """Whether two records have the same state, without fields that a coordinator may not know after a failover."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("state", "producer_id", "producer_epoch", "partitions", "start_ms", "last_update_ms")
    )


TransactionModel.TestCase.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
test_random_histories = TransactionModel.TestCase
