"""TransactionCoordinator in a node: the state topic, markers in logs, restarts, expiration and descriptions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.controller.requests import NewTopic, TopicRef
from moldau.coordinator.state_partition import load
from moldau.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    TransactionalIdNotFoundError,
)
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource
from moldau.partitions.partition import Partition
from moldau.records.batch import split
from moldau.records.control_records import EndTransaction, decode
from moldau.records.record import iterate_records
from moldau.server.api import Broker as BrokerParts
from moldau.testing import Broker
from moldau.transactions import coordinator
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.requests import (
    AddPartitionsRequest,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
    TransactionFilter,
)
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.transactions.transaction_metadata import TV2, TransactionState

STATES = TransactionState
ALL = TransactionFilter()


def init_request(id_: str = "t", **more: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=id_, **{"timeout_ms": 60_000, **more})


async def begin(transactions: TransactionCoordinator, *partitions: tuple[str, int], id_: str = "t") -> Any:
    await transactions.ensure_topic()
    producer = await transactions.init_producer_id(init_request(id_))
    await add(transactions, producer, *partitions, id_=id_)
    return producer


async def add(
    transactions: TransactionCoordinator, producer: ProducerIdAndEpoch, *partitions: tuple[str, int], id_: str = "t"
) -> None:
    await transactions.add_partitions(
        AddPartitionsRequest(
            transactional_id=id_,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset(partitions),
            client_version=TV2,
        )
    )


async def end(
    transactions: TransactionCoordinator, producer: ProducerIdAndEpoch, *, commit: bool = True, id_: str = "t"
) -> ProducerIdAndEpoch:
    return await transactions.end_transaction(
        EndTransactionRequest(
            transactional_id=id_,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commit=commit,
            client_version=TV2,
        )
    )


async def in_state(transactions: TransactionCoordinator, state: TransactionState, id_: str = "t") -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                if (await transactions.describe(id_)).state is state:
                    return
            except CoordinatorLoadInProgressError:
                pass
            await asyncio.sleep(0.001)


async def on_loaded(transactions: TransactionCoordinator) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await transactions.list_transactions(ALL)
            except CoordinatorLoadInProgressError:
                await asyncio.sleep(0.001)
            else:
                return


async def control_records(parts: BrokerParts, topic: str, index: int) -> list[tuple[int, int, EndTransaction]]:
    """Returns producer id and epoch of each control batch, and its record."""
    partition = parts.replica_manager.get(topic, index)
    assert partition is not None
    found = await partition.read(0, 1 << 20)
    return [
        (batch.producer_id, batch.producer_epoch, control)
        for batch in split(found.records.read())
        if batch.is_control and batch.is_transactional
        for record in iterate_records(batch)
        if isinstance(control := decode(record), EndTransaction)
    ]


@pytest.fixture
def on_files(tmp_path: Path) -> dict[str, str]:
    return {"store": "files", "data.dir": str(tmp_path / "data"), "transaction.state.log.num.partitions": "3"}


def hold_markers(parts: BrokerParts) -> asyncio.Event:
    """Markers are written only when the event is set."""
    may_write = asyncio.Event()
    append = parts.marker_writer._append_marker

    async def held(partition: Partition, marker: Any) -> None:
        if not may_write.is_set():
            raise NotLeaderOrFollowerError("not yet")
        await append(partition, marker)

    parts.marker_writer._append_marker = held
    return may_write


# The topic


def test_the_state_topic_is_created_as_in_kafka() -> None:
    async def scene() -> None:
        async with Broker(settings={"transaction.state.log.num.partitions": "4"}) as broker:
            parts = broker.node.broker
            with pytest.raises(NotCoordinatorError):
                await parts.transactions.init_producer_id(init_request())
            partition = await parts.transactions.coordinator_partition("t")
            assert partition.leader == 1
            image = parts.metadata.image
            assert len(image.topics[TRANSACTION_STATE_TOPIC].partitions) == 4
            assert image.config(ConfigResource(TOPIC_RESOURCE, TRANSACTION_STATE_TOPIC)) == {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": "2",
                "segment.bytes": "104857600",
                "unclean.leader.election.enable": "false",
            }
            assert await parts.transactions.init_producer_id(init_request()) == (0, 0)

    asyncio.run(scene())


def test_too_few_brokers_for_the_state_topic_is_a_retriable_error() -> None:
    async def scene() -> None:
        async with Broker(settings={"transaction.state.log.replication.factor": "3"}) as broker:
            with pytest.raises(CoordinatorNotAvailableError, match=r"transaction\.state\.log\.replication\.factor=3"):
                await broker.node.broker.transactions.coordinator_partition("t")

    asyncio.run(scene())


def test_deleting_the_state_topic_deletes_all_transactions() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            parts = broker.node.broker
            producer = await begin(parts.transactions, ("orders", 0))
            await parts.controller.delete_topics([TopicRef(TRANSACTION_STATE_TOPIC)])
            with pytest.raises(NotCoordinatorError):
                await end(parts.transactions, producer)
            await parts.transactions.ensure_topic()
            with pytest.raises(InvalidProducerIdMappingError):
                await end(parts.transactions, producer)

    asyncio.run(scene())


# Transactions


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_is_written_to_all_partitions(commit: bool) -> None:
    async def scene() -> None:
        async with Broker(topics={"orders": 3, "payments": 1}) as broker:
            parts = broker.node.broker
            partitions = [("orders", 0), ("orders", 2), ("payments", 0)]
            producer = await begin(parts.transactions, *partitions)
            following = await end(parts.transactions, producer, commit=commit)
            assert following == (producer.producer_id, producer.producer_epoch + 1)
            await in_state(parts.transactions, STATES.COMPLETE_COMMIT if commit else STATES.COMPLETE_ABORT)
            state_partition = await parts.transactions.coordinator_partition("t")
            marker = EndTransaction(commit, state_partition.leader_epoch)
            for partition in partitions:
                assert await control_records(parts, *partition) == [(*following, marker)]
            assert await control_records(parts, "orders", 1) == []

    asyncio.run(scene())


def test_requests_are_validated_before_the_coordinator_is_looked_up() -> None:
    async def scene() -> None:
        async with Broker(settings={"transaction.max.timeout.ms": "5000"}) as broker:
            transactions = broker.node.broker.transactions
            for timeout_ms in (0, -1, 5_001):
                with pytest.raises(InvalidTransactionTimeoutError):
                    await transactions.init_producer_id(init_request(timeout_ms=timeout_ms))
            for timeout_ms in (0, 5_000):
                with pytest.raises(InvalidRequestError):
                    await transactions.init_producer_id(init_request("", timeout_ms=timeout_ms))
            with pytest.raises(InvalidRequestError):
                await transactions.describe("")
            with pytest.raises(NotCoordinatorError):
                await transactions.describe("t")
            await transactions.ensure_topic()
            with pytest.raises(TransactionalIdNotFoundError):
                await transactions.describe("t")

    asyncio.run(scene())


def test_a_timeout_ends_a_transaction() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            parts = broker.node.broker
            await parts.transactions.ensure_topic()
            producer = await parts.transactions.init_producer_id(init_request(timeout_ms=30))
            await add(parts.transactions, producer, ("orders", 0))
            await in_state(parts.transactions, STATES.COMPLETE_ABORT)
            (marker,) = await control_records(parts, "orders", 0)
            assert marker[:2] == (producer.producer_id, producer.producer_epoch + 1)

    asyncio.run(scene())


def test_a_deleted_topic_does_not_keep_a_transaction_open() -> None:
    async def scene() -> None:
        async with Broker(topics={"orders": 2, "payments": 1}) as broker:
            parts = broker.node.broker
            may_write = hold_markers(parts)
            producer = await begin(parts.transactions, ("orders", 0), ("orders", 1), ("payments", 0))
            await end(parts.transactions, producer)
            await asyncio.sleep(0.01)
            assert (await parts.transactions.describe("t")).state is STATES.PREPARE_COMMIT
            await parts.controller.delete_topics([TopicRef("orders")])
            await parts.controller.create_topics([NewTopic("orders", 2)])
            may_write.set()
            await in_state(parts.transactions, STATES.COMPLETE_COMMIT)
            assert await control_records(parts, "orders", 0) == []
            assert len(await control_records(parts, "payments", 0)) == 1

    asyncio.run(scene())


def hold_appends(parts: BrokerParts) -> asyncio.Event:
    """The appends of markers last until the event is set."""
    may_write = asyncio.Event()
    append = parts.marker_writer._append_marker

    async def held(partition: Partition, marker: Any) -> None:
        await may_write.wait()
        await append(partition, marker)

    parts.marker_writer._append_marker = held
    return may_write


def test_the_next_transaction_begins_as_soon_as_the_markers_of_the_previous_one_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "COMPLETION_WAIT_MS", 60_000)

    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker, asyncio.timeout(20):
            parts = broker.node.broker
            may_write = hold_appends(parts)
            producer = await end(parts.transactions, await begin(parts.transactions, ("orders", 0)))
            adding = asyncio.create_task(add(parts.transactions, producer, ("orders", 0)))
            await in_state(parts.transactions, STATES.PREPARE_COMMIT)
            assert not adding.done()
            may_write.set()
            await adding
            assert (await parts.transactions.describe("t")).state is STATES.ONGOING

    asyncio.run(scene())


def test_the_next_transaction_waits_only_for_a_moment() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            parts = broker.node.broker
            may_write = hold_appends(parts)
            producer = await end(parts.transactions, await begin(parts.transactions, ("orders", 0)))
            with pytest.raises(ConcurrentTransactionsError):
                await add(parts.transactions, producer, ("orders", 0))
            may_write.set()

    asyncio.run(scene())


def test_a_decided_transaction_is_described_with_the_partitions_without_a_marker() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders", "payments"]) as broker:
            parts = broker.node.broker
            append = parts.marker_writer._append_marker
            may_write = asyncio.Event()

            async def held(partition: Partition, marker: Any) -> None:
                if partition.name.topic == "orders":
                    await may_write.wait()
                await append(partition, marker)

            parts.marker_writer._append_marker = held
            producer = await begin(parts.transactions, ("orders", 0), ("payments", 0))
            await end(parts.transactions, producer)
            assert (await parts.transactions.describe("t")).partitions == {("orders", 0), ("payments", 0)}
            may_write.set()
            await in_state(parts.transactions, STATES.COMPLETE_COMMIT)
            assert (await parts.transactions.describe("t")).partitions == frozenset()

    asyncio.run(scene())


# Restarts


def test_a_restart_completes_decided_transactions(on_files: dict[str, str]) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            parts = broker.node.broker
            hold_markers(parts)
            producers = {}
            for number in range(10):
                producer = await begin(parts.transactions, ("orders", 0), id_=f"t{number}")
                producers[f"t{number}"] = await end(
                    parts.transactions, producer, commit=number % 2 == 0, id_=f"t{number}"
                )
            await begin(parts.transactions, ("orders", 0), id_="open")
            with pytest.raises(ConcurrentTransactionsError):
                await parts.transactions.init_producer_id(init_request("t0"))
        async with Broker(settings=on_files) as broker:
            parts = broker.node.broker
            await on_loaded(parts.transactions)
            for number in range(10):
                state = STATES.COMPLETE_COMMIT if number % 2 == 0 else STATES.COMPLETE_ABORT
                await in_state(parts.transactions, state, f"t{number}")
            written = {
                (producer_id, epoch): control.commit
                for producer_id, epoch, control in await control_records(parts, "orders", 0)
            }
            assert written == {producers[f"t{number}"]: number % 2 == 0 for number in range(10)}
            assert (await parts.transactions.describe("open")).state is STATES.ONGOING
            following = producers["t0"]
            await add(parts.transactions, following, ("orders", 0), id_="t0")

    asyncio.run(scene())


def test_transactions_are_listed_after_a_restart(on_files: dict[str, str]) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            transactions = broker.node.broker.transactions
            for number in range(20):
                await begin(transactions, ("orders", 0), id_=f"t{number}")
            listed = await transactions.list_transactions(ALL)
            assert len(listed) == 20
        async with Broker(settings=on_files) as broker:
            transactions = broker.node.broker.transactions
            await on_loaded(transactions)
            assert sorted(await transactions.list_transactions(ALL)) == sorted(listed)
            found = await transactions.list_transactions(ALL, "t1.*")
            assert len(found) == 11
            with pytest.raises(InvalidRegularExpressionError):
                await transactions.list_transactions(ALL, "(")

    asyncio.run(scene())


def test_a_slow_pattern_does_not_stop_the_node() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            transactions = broker.node.broker.transactions
            await begin(transactions, ("orders", 0), id_="a" * 500)
            listing = asyncio.ensure_future(transactions.list_transactions(ALL, "[a-z]*" * 150))
            iterations = 0
            while not listing.done():
                await asyncio.sleep(0)
                iterations += 1
            assert len(await listing) == 1
            assert iterations > 40

    asyncio.run(scene())


def test_requests_wait_until_transactions_are_loaded(on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            producer = await begin(broker.node.broker.transactions, ("orders", 0))
        may_load = asyncio.Event()

        async def load_when_told(*arguments: Any) -> int:
            await may_load.wait()
            return await load(*arguments)

        monkeypatch.setattr("moldau.coordinator.shard_driver.load", load_when_told)
        async with Broker(settings=on_files) as broker:
            transactions = broker.node.broker.transactions
            for request in (
                end(transactions, producer),
                transactions.describe("t"),
                transactions.list_transactions(ALL),
                transactions.init_producer_id(init_request()),
            ):
                with pytest.raises(CoordinatorLoadInProgressError):
                    await request
            may_load.set()
            await on_loaded(transactions)
            assert await end(transactions, producer) == (producer.producer_id, producer.producer_epoch + 1)

    asyncio.run(scene())


# Expiration


def test_unused_transactional_ids_expire() -> None:
    settings = {
        "transactional.id.expiration.ms": "500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
    }

    async def scene() -> None:
        async with Broker(topics=["orders"], settings=settings) as broker:
            transactions = broker.node.broker.transactions
            await begin(transactions, ("orders", 0), id_="open")
            producer = await begin(transactions, ("orders", 0), id_="ended")
            await end(transactions, producer, id_="ended")
            async with asyncio.timeout(20):
                while len(await transactions.list_transactions(ALL)) > 1:
                    await asyncio.sleep(0.005)
            assert (await transactions.describe("open")).state is STATES.ONGOING
            with pytest.raises(InvalidProducerIdMappingError):
                await end(transactions, producer, id_="ended")

    asyncio.run(scene())
