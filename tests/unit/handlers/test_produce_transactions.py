"""Produce while a transaction is verified: the order of requests, rejected batches, and markers in between."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from moldau.errors import CoordinatorNotAvailableError, MoldauError
from moldau.testing import Broker
from moldau.transactions.marker_writer import EndTransactionMarker, MarkersToWrite
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from support.transaction_wire import (
    INVALID_STATE,
    NONE,
    committed_values,
    last_stable_offset,
    produce_codes,
    transactional_batch,
)
from support.wire import PRODUCE, WireClient, end_offset, produce_tree

PATIENCE_S = 20
TOPIC = "orders"
NOT_ENOUGH_REPLICAS = 19
TV1, TV2 = 11, 12
"""Versions of Produce."""


class Coordinator:
    """A verifier whose answers a test prepares. A `step` runs after the question and before the answer."""

    def __init__(self) -> None:
        self.requests: list[AddPartitionsRequest] = []
        self.errors: list[MoldauError | None] = []
        """The next answers. After them, everything is verified."""
        self.step: Callable[[], Awaitable[None]] | None = None

    async def verify(self, request: AddPartitionsRequest) -> PartitionErrors:
        self.requests.append(request)
        if self.step is not None:
            await self.step()
        return dict.fromkeys(request.partitions, self.errors.pop(0) if self.errors else None)


Scene = Callable[[Broker, Coordinator], Awaitable[None]]


def run(scene: Scene) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), Broker(topics={TOPIC: 2}) as broker:
            coordinator = Coordinator()
            verifier: Any = coordinator
            broker.node.broker.transaction_verifier, real = verifier, broker.node.broker.transaction_verifier
            await scene(broker, coordinator)
            broker.node.broker.transaction_verifier = real

    asyncio.run(main())


async def with_client(broker: Broker, use: Callable[[WireClient], Any]) -> Any:
    """Runs a blocking client beside the broker."""

    def connect() -> Any:
        with WireClient(broker.bootstrap) as client:
            return use(client)

    return await asyncio.to_thread(connect)


def send_pipelined(client: WireClient, count: int, *, epoch: int = 0, version: int = TV2) -> None:
    """Sends batches with the sequences 0, 1, … without waiting for responses."""
    for sequence in range(count):
        data = transactional_batch((7, epoch), b"%d" % sequence, sequence=sequence)
        client.send(PRODUCE, version, produce_tree(TOPIC, data, transactional_id="t"))


def receive_codes(client: WireClient, count: int, *, version: int = TV2) -> list[int]:
    responses = [client.receive(PRODUCE, version)[1] for _ in range(count)]
    return [response["responses"][0]["partition_responses"][0]["error_code"] for response in responses]


def send_one(client: WireClient, *, epoch: int = 0, sequence: int = 0, version: int = TV2) -> int:
    data = transactional_batch((7, epoch), b"%d-%d" % (epoch, sequence), sequence=sequence)
    (code,) = produce_codes(client, "t", {(TOPIC, 0): data}, version=version)
    return code


async def write_marker(broker: Broker, *, epoch: int, commit: bool, version: int) -> None:
    marker = EndTransactionMarker(7, epoch, 0, commit, version)
    (errors,) = await broker.node.broker.marker_writer.write([MarkersToWrite(marker, [(TOPIC, 0)])])
    assert errors == {(TOPIC, 0): None}


def test_later_requests_wait_for_the_verification() -> None:
    async def scene(broker: Broker, coordinator: Coordinator) -> None:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        coordinator.step = wait
        client = await asyncio.to_thread(WireClient, broker.bootstrap)
        await asyncio.to_thread(send_pipelined, client, 5)
        while not coordinator.requests:
            await asyncio.sleep(0)
        assert await with_client(broker, lambda other: end_offset(other, TOPIC)) == 0
        gate.set()
        assert await asyncio.to_thread(receive_codes, client, 5) == [NONE] * 5
        client.close()
        # The later batches found the transaction open.
        assert len(coordinator.requests) == 1
        await write_marker(broker, epoch=1, commit=True, version=2)
        values = await with_client(broker, lambda other: committed_values(other, TOPIC))
        assert values == [b"%d" % sequence for sequence in range(5)]

    run(scene)


def test_later_batches_do_not_overtake_a_batch_that_could_not_be_verified() -> None:
    async def scene(broker: Broker, coordinator: Coordinator) -> None:
        coordinator.errors = [CoordinatorNotAvailableError("moving")]

        def send(client: WireClient) -> list[list[int]]:
            found = []
            for _ in range(2):
                send_pipelined(client, 4)
                found.append(receive_codes(client, 4))
            return found

        assert await with_client(broker, send) == [[NOT_ENOUGH_REPLICAS] * 4, [NONE] * 4]
        await write_marker(broker, epoch=1, commit=True, version=2)
        values = await with_client(broker, lambda client: committed_values(client, TOPIC))
        assert values == [b"%d" % sequence for sequence in range(4)]

    run(scene)


def test_an_abort_between_answer_and_append_rejects_the_batch() -> None:
    """Otherwise the batch would open a transaction that nobody ends."""

    async def scene(broker: Broker, coordinator: Coordinator) -> None:
        async def abort() -> None:
            await write_marker(broker, epoch=0, commit=False, version=0)

        coordinator.step = abort
        assert await with_client(broker, lambda client: send_one(client, version=TV1)) == INVALID_STATE
        offsets = await with_client(
            broker, lambda client: (end_offset(client, TOPIC), last_stable_offset(client, TOPIC))
        )
        assert offsets == (1, 1)
        # A new question gets a new guard.
        coordinator.step = None
        assert await with_client(broker, lambda client: send_one(client, version=TV1)) == NONE

    run(scene)


def test_the_marker_of_the_previous_transaction_may_come_between_answer_and_append() -> None:
    """With TV2 the marker has the epoch of the next transaction, whose first batch may already wait."""

    async def scene(broker: Broker, coordinator: Coordinator) -> None:
        assert await with_client(broker, send_one) == NONE

        async def commit() -> None:
            await write_marker(broker, epoch=1, commit=True, version=2)

        coordinator.step = commit
        assert await with_client(broker, lambda client: send_one(client, epoch=1)) == NONE
        assert [request.producer_epoch for request in coordinator.requests] == [0, 1]
        offsets = await with_client(
            broker, lambda client: (last_stable_offset(client, TOPIC), committed_values(client, TOPIC))
        )
        assert offsets == (2, [b"0-0"])

    run(scene)
