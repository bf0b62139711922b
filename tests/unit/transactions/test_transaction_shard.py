"""TransactionShard on a replicated partition: markers and the high watermark, completion, timeouts, leader changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from moldau.coordinator.result import CoordinatorResult
from moldau.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    MoldauError,
    NotCoordinatorError,
    ProducerFencedError,
    StorageError,
)
from moldau.transactions import transaction_shard
from moldau.transactions.marker_sender import PendingMarkers
from moldau.transactions.records import TransactionRecord
from moldau.transactions.requests import (
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
    TransactionMarkers,
)
from moldau.transactions.shard import TransactionCoordinatorShard
from moldau.transactions.timeout_log import TimeoutLog
from moldau.transactions.transaction_metadata import PRODUCER_EPOCH_MAX, TV0, TV2, TransactionMetadata, TransactionState
from moldau.transactions.transaction_shard import COMMIT_TIMEOUT_MS, TransactionShard
from support.replicas import Replicas

STATES = TransactionState
P0 = ("orders", 0)
TIMEOUT_MS = 60_000


class ScriptedSender:
    """Markers are written when a test says so."""

    def __init__(self) -> None:
        self.added: list[PendingMarkers] = []

    def add(self, markers: TransactionMarkers, coordinator_epoch: int) -> PendingMarkers:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        pending = PendingMarkers(markers, coordinator_epoch, set(markers.partitions), {}, future)
        self.added.append(pending)
        return pending


class Coordinator:
    """The transactions of one node's replica."""

    def __init__(self, replicas: Replicas, node: int) -> None:
        self.replicas = replicas
        self.sender = ScriptedSender()
        self.producer_ids = 1_000
        self.producer_id_error: Exception | None = None
        self.shard = TransactionShard(
            replicas[node],
            replicas.clock,
            cast(Any, self.sender),
            self._generate_producer_id,
            TimeoutLog(replicas.clock),
        )

    async def _generate_producer_id(self) -> int:
        if self.producer_id_error is not None:
            raise self.producer_id_error
        self.producer_ids += 1
        return self.producer_ids

    async def load(self) -> None:
        state = TransactionCoordinatorShard(id_expiration_ms=10**9, transaction_version=lambda: TV2)
        await self.shard.driver.load(state, 1 << 20)

    def state(self, transactional_id: str = "t") -> TransactionMetadata:
        shard = self.shard.driver.shard
        assert shard is not None
        metadata = shard.get(transactional_id)
        assert metadata is not None
        return metadata

    def init(self, **more: Any) -> Awaitable[ProducerIdAndEpoch]:
        request = InitProducerIdRequest(transactional_id="t", timeout_ms=TIMEOUT_MS, **more)
        return asyncio.ensure_future(
            self.shard.submit_with_producer_id(
                lambda shard, now, producer_id: shard.init_producer_id(now, request, producer_id)
            )
        )

    def add(self, producer: ProducerIdAndEpoch, client_version: int = TV2) -> "asyncio.Future[Any]":
        request = AddPartitionsRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset({P0}),
            client_version=client_version,
        )
        return asyncio.ensure_future(self.shard.submit(lambda shard, now: shard.add_partitions(now, request)))

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, client_version: int = TV2
    ) -> "asyncio.Future[ProducerIdAndEpoch]":
        request = EndTransactionRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commit=commit,
            client_version=client_version,
        )
        return asyncio.ensure_future(
            self.shard.submit_with_producer_id(
                lambda shard, now, producer_id: shard.end_transaction(now, request, producer_id)
            )
        )

    async def committed(self, request: Awaitable[Any]) -> Any:
        """Replicates until the response is there."""
        future = asyncio.ensure_future(request)
        while not future.done():
            await turns()
            await self.replicas.replicate(*self._followers())
        return await future

    def _followers(self) -> list[int]:
        return [node for node in self.replicas.image.isr if node != self.replicas.image.leader]

    async def begin(self) -> ProducerIdAndEpoch:
        """Starts a producer and its transaction."""
        producer = await self.committed(self.init())
        await self.committed(self.add(producer))
        return cast(ProducerIdAndEpoch, producer)

    async def put(self, **fields: Any) -> None:
        """Writes a state without a producer."""
        metadata = TransactionMetadata(timeout_ms=TIMEOUT_MS, **fields)
        record = TransactionRecord("t", metadata, TV2)
        await self.committed(self.shard.submit(lambda shard, now: CoordinatorResult([record], None)))


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_shard, "RETRY_BACKOFF_S", 0.001)


def on_replicas(scene: Callable[[Replicas, Coordinator], Awaitable[None]]) -> None:
    async def main() -> None:
        replicas = Replicas((1, 2, 3), min_insync_replicas=2)
        await replicas.begin(leader=1)
        coordinator = Coordinator(replicas, 1)
        await coordinator.load()
        await scene(replicas, coordinator)
        await coordinator.shard.driver.close()
        assert coordinator.shard.driver.unexpected_errors == 0
        await turns()
        assert not coordinator.shard._tasks

    asyncio.run(asyncio.wait_for(main(), 20))


def test_markers_are_sent_when_the_decision_is_committed() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        ended = coordinator.end(producer)
        await turns()
        await replicas.replicate(2)
        await turns()
        assert coordinator.state().state is STATES.PREPARE_COMMIT
        assert coordinator.sender.added == []
        assert not ended.done()
        await replicas.replicate(2, 3)
        assert await ended == (producer.producer_id, 1)
        (pending,) = coordinator.sender.added
        assert (pending.markers.partitions, pending.markers.commit) == ({P0}, True)
        assert pending.coordinator_epoch == replicas[1].leader_epoch
        # The producer waits until the markers are written.
        with pytest.raises(ConcurrentTransactionsError):
            await coordinator.committed(coordinator.add(ProducerIdAndEpoch(producer.producer_id, 1)))
        assert coordinator.shard.pending_markers == {"t": pending}
        pending.is_written.set_result(True)
        await turns()
        assert coordinator.state().state is STATES.COMPLETE_COMMIT
        assert coordinator.shard.pending_markers == {}

    on_replicas(scene)


def test_the_next_coordinator_sends_markers_again() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        await coordinator.committed(coordinator.end(producer, commit=False))
        (first,) = coordinator.sender.added
        replicas.elect(2)
        await replicas.publish_image()
        await turns()
        assert first.is_written.cancelled()
        successor = Coordinator(replicas, 2)
        await successor.committed(successor.load())
        (pending,) = successor.sender.added
        assert pending.markers == first.markers
        assert pending.coordinator_epoch == first.coordinator_epoch + 1
        pending.is_written.set_result(True)
        await turns()
        assert successor.state().state is STATES.COMPLETE_ABORT
        await successor.shard.driver.close()

    on_replicas(scene)


def test_the_next_coordinator_sends_no_marker_before_the_decision_is_committed() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        ended = coordinator.end(producer)
        await turns()
        await replicas.fetch(2)
        replicas.elect(2)
        await replicas.publish_image()
        with pytest.raises(NotCoordinatorError):
            await ended
        assert coordinator.sender.added == []
        successor = Coordinator(replicas, 2)
        loading = asyncio.ensure_future(successor.load())
        await turns()
        # The decision is in the log, but only here.
        assert successor.sender.added == []
        with pytest.raises(CoordinatorLoadInProgressError):
            await successor.end(producer)
        await replicas.replicate(1, 3)
        await loading
        assert len(successor.sender.added) == 1
        await successor.shard.driver.close()

    on_replicas(scene)


def test_a_lost_decision_leaves_no_marker() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        ended = coordinator.end(producer)
        await turns()
        replicas.elect(2)
        await replicas.publish_image()
        with pytest.raises(NotCoordinatorError):
            await ended
        successor = Coordinator(replicas, 2)
        await successor.committed(successor.load())
        assert successor.sender.added == []
        assert successor.state().state is STATES.ONGOING
        assert coordinator.sender.added == []
        # The other outcome is possible now.
        assert await successor.committed(successor.end(producer, commit=False)) == (producer.producer_id, 1)
        await successor.shard.driver.close()

    on_replicas(scene)


def test_a_fenced_coordinator_completes_nothing() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        await coordinator.committed(coordinator.end(producer))
        (pending,) = coordinator.sender.added
        pending.is_written.set_result(False)
        await turns()
        assert coordinator.state().state is STATES.PREPARE_COMMIT

    on_replicas(scene)


def test_the_completion_is_written_again_after_an_error() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        await coordinator.committed(coordinator.end(producer))
        replicas.elect(1, [1])
        await replicas.publish_image()
        # A new leader epoch of the same leader: the shard is unloaded.
        successor = Coordinator(replicas, 1)
        await successor.load()
        (pending,) = successor.sender.added
        pending.is_written.set_result(True)
        await asyncio.sleep(0.02)
        # One replica is not enough.
        assert successor.state().state is STATES.PREPARE_COMMIT
        replicas.image = replace(replicas.image, isr=(1, 2), partition_epoch=replicas.image.partition_epoch + 1)
        await replicas.publish_image()
        while successor.state().state is STATES.PREPARE_COMMIT:
            await asyncio.sleep(0.001)
        await successor.shard.driver.close()

    on_replicas(scene)


def test_markers_are_sent_without_a_lease_and_completed_with_one() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        ended = coordinator.end(producer)
        await turns()
        replicas.leases[1].valid = False
        replicas[1].on_lease_lost()
        with pytest.raises(NotCoordinatorError):
            await ended
        await replicas.replicate(2, 3)
        await turns()
        (pending,) = coordinator.sender.added
        pending.is_written.set_result(True)
        await asyncio.sleep(0.01)
        assert coordinator.state().state is STATES.PREPARE_COMMIT
        replicas.leases[1].valid = True
        while coordinator.state().state is STATES.PREPARE_COMMIT:
            await asyncio.sleep(0.001)

    on_replicas(scene)


def test_a_timed_out_transaction_is_aborted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("moldau"), "propagate", True)

    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        replicas.clock.now_ms += TIMEOUT_MS + 1
        # The timer of the driver runs on the event loop's clock, so an operation wakes it.
        coordinator.shard.driver._on_timer()
        await turns()
        assert coordinator.state().state is STATES.PREPARE_ABORT
        await replicas.replicate(2, 3)
        await turns()
        (pending,) = coordinator.sender.added
        assert (pending.markers.commit, pending.markers.producer_epoch) == (False, producer.producer_epoch + 1)
        assert [each for each in caplog.messages if "has timed out and is aborted" in each] != []
        pending.is_written.set_result(True)
        await turns()
        assert coordinator.state().state is STATES.COMPLETE_ABORT

    on_replicas(scene)


@pytest.mark.parametrize("error", [CoordinatorLoadInProgressError("no controller"), StorageError("disk full")])
def test_a_timed_out_transaction_with_an_exhausted_epoch_gets_a_producer_id(error: MoldauError) -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        await coordinator.put(
            producer_id=7,
            producer_epoch=PRODUCER_EPOCH_MAX - 1,
            state=STATES.ONGOING,
            partitions=frozenset({P0}),
            start_ms=0,
            last_update_ms=0,
        )
        coordinator.producer_id_error = error
        replicas.clock.now_ms += TIMEOUT_MS + 1
        coordinator.shard.driver._on_timer()
        await asyncio.sleep(0.01)
        assert coordinator.state().state is STATES.ONGOING
        coordinator.producer_id_error = None
        while coordinator.state().state is STATES.ONGOING:
            await asyncio.sleep(0.001)
        assert coordinator.state().next_producer_id == 1_001
        await replicas.replicate(2, 3)
        await turns()

    on_replicas(scene)


def test_a_producer_id_is_allocated_only_if_it_is_needed() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        assert await coordinator.committed(coordinator.init()) == (1_001, 0)
        assert await coordinator.committed(coordinator.init()) == (1_001, 1)
        assert coordinator.producer_ids == 1_001
        with pytest.raises(ProducerFencedError):
            await coordinator.committed(coordinator.init(expected=ProducerIdAndEpoch(1_001, 0)))

    on_replicas(scene)


def test_an_operation_that_is_not_committed_in_time_fails() -> None:
    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.begin()
        ended = coordinator.end(producer)
        await turns()
        replicas.clock.now_ms += COMMIT_TIMEOUT_MS
        coordinator.shard.driver._on_timer()
        with pytest.raises(CoordinatorNotAvailableError):
            await ended
        # A repetition waits for the same decision.
        repeated = coordinator.end(producer)
        await turns()
        await replicas.replicate(2, 3)
        with pytest.raises(ConcurrentTransactionsError):
            await repeated
        (pending,) = coordinator.sender.added
        pending.is_written.set_result(True)
        await coordinator.committed(turns())
        assert await coordinator.committed(coordinator.end(producer)) == (producer.producer_id, 1)

    on_replicas(scene)


def test_the_high_watermark_can_pass_a_decision_before_it_is_applied() -> None:
    async def main() -> None:
        replicas = Replicas((1,))
        await replicas.begin(leader=1)
        coordinator = Coordinator(replicas, 1)
        await coordinator.load()
        producer = await coordinator.begin()
        await coordinator.end(producer)
        assert len(coordinator.sender.added) == 1
        await coordinator.shard.driver.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_unexpected_error_is_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replicas = Replicas((1,))
        await replicas.begin(leader=1)
        coordinator = Coordinator(replicas, 1)
        await coordinator.load()
        producer = await coordinator.begin()
        await coordinator.committed(coordinator.end(producer))
        (pending,) = coordinator.sender.added

        def fail(*_: object) -> None:
            raise KeyError("a bug")

        state = coordinator.shard.driver.shard
        assert state is not None
        monkeypatch.setattr(state, "complete_transaction", fail)
        pending.is_written.set_result(True)
        await turns()
        assert coordinator.shard.driver.unexpected_errors == 1
        await coordinator.shard.driver.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert "completing a transaction failed unexpectedly" in caplog.text


@pytest.mark.parametrize("client_version", [TV0, TV2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_replaced_coordinator_does_not_answer_with_its_old_state(client_version: int, commit: bool) -> None:
    """It does not know its successor, for example because its disk is too full for new metadata. Without TV2 the end of
    the producer's second transaction looks like a repetition of the end of the first one."""

    async def scene(replicas: Replicas, coordinator: Coordinator) -> None:
        producer = await coordinator.committed(coordinator.init())
        await coordinator.committed(coordinator.add(producer, client_version))
        ended = await coordinator.committed(coordinator.end(producer, client_version=client_version))
        producer = ended if client_version >= TV2 else producer
        coordinator.sender.added[-1].is_written.set_result(True)
        await coordinator.committed(turns())
        assert coordinator.state().state is STATES.COMPLETE_COMMIT
        replicas.elect(2, isr=(2, 3))
        await replicas.publish_image(2, 3)
        successor = Coordinator(replicas, 2)
        await successor.committed(successor.load())
        await successor.committed(successor.add(producer, client_version))
        late = coordinator.end(producer, commit=commit, client_version=client_version)
        await successor.committed(turns())
        assert not late.done()
        await replicas.publish_image(1)
        with pytest.raises(NotCoordinatorError):
            await late
        assert successor.state().state is STATES.ONGOING
        await successor.shard.driver.close()

    on_replicas(scene)
