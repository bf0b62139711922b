"""TransactionVerifier: lookup of coordinators, requests that verifications share, and the errors that clients get."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.coordinator.java_hash import partition_for
from moldau.error_codes import ERROR_CODES, error_code
from moldau.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    MoldauError,
    NotCoordinatorError,
    OperationNotAttemptedError,
    PeerUnreachableError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import (
    NO_LEADER,
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.transactions.transaction_metadata import TV0, TV2
from moldau.transactions.verification import (
    LANE,
    TransactionVerifier,
    client_error,
    client_version_of_produce,
    produce_error,
)
from moldau.wire.api_keys import ApiKey

NODE, OTHER = 1, 2
PARTITIONS = 3
NETWORK_EXCEPTION, NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, INVALID_EPOCH = 13, 15, 19, 47
ORDERS = ("orders", 0)
LEADERS = [NODE, OTHER, 3]


def id_of(leader: int) -> str:
    """A transactional id that this broker coordinates."""
    return next(id_ for id_ in map(str, range(100)) if LEADERS[partition_for(id_, PARTITIONS)] == leader)


LOCAL_ID, REMOTE_ID = id_of(NODE), id_of(OTHER)
OTHER_REMOTE_ID = next(
    id_ for id_ in map(str, range(100)) if partition_for(id_, PARTITIONS) == LEADERS.index(OTHER) and id_ != REMOTE_ID
)


def image_of(leaders: list[int] | None = None, *, fenced: tuple[int, ...] = (), brokers: int = 3) -> MetadataImage:
    partitions = tuple(
        PartitionRegistration(index, (1, 2, 3), (1, 2, 3), leader, 0, 0) for index, leader in enumerate(leaders or [])
    )
    return MetadataImage(
        topics={} if leaders is None else {TRANSACTION_STATE_TOPIC: TopicImage("t", UUID(int=1), partitions)},
        brokers={id_: broker(id_, fenced=id_ in fenced) for id_ in range(1, brokers + 1)},
    )


def broker(broker_id: int, *, fenced: bool) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 1, UUID(int=broker_id), (), None, fenced)


def request_of(
    id_: str, *partitions: tuple[str, int], epoch: int = 3, client_version: int = TV2
) -> AddPartitionsRequest:
    return AddPartitionsRequest(
        transactional_id=id_,
        producer_id=7,
        producer_epoch=epoch,
        partitions=frozenset(partitions or [ORDERS]),
        client_version=client_version,
    )


class Cluster:
    """The coordinator on this node, and coordinators on other nodes."""

    def __init__(self) -> None:
        self.image = image_of(LEADERS)
        self.local: list[tuple[str, AddPartitionsRequest]] = []
        self.local_error: MoldauError | None = None
        self.requests: list[tuple[int, list[Mapping[str, Any]]]] = []
        """Broker and transactions of each request."""
        self.codes: dict[tuple[str, str, int], int] = {}
        """Error codes by transactional id and partition."""
        self.response_code = 0
        self.failure: Exception | None = None
        self.unanswered: set[tuple[str, str, int]] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.disconnected: list[int] = []
        self.verifier = TransactionVerifier(NODE, cast(Any, self), cast(Any, self), cast(Any, self))

    async def verify_partitions(self, request: AddPartitionsRequest) -> PartitionErrors:
        self.local.append(("verify", request))
        return dict.fromkeys(request.partitions, self.local_error)

    async def add_partitions(self, request: AddPartitionsRequest) -> None:
        self.local.append(("add", request))
        if self.local_error is not None:
            raise self.local_error

    def disconnect(self, node_id: int, lane: str) -> None:
        assert lane == LANE
        self.disconnected.append(node_id)
        self.failure = PeerUnreachableError("disconnected")
        self.gate.set()

    async def call(
        self, node_id: int, api: ApiKey, tree: Mapping[str, Any], *, lane: str, timeout_ms: int, version: int
    ) -> SimpleNamespace:
        assert (api, lane, version) == (ApiKey.ADD_PARTITIONS_TO_TXN, LANE, 5)
        assert timeout_ms > 5_000, "a coordinator may wait this long for a commit"
        self.requests.append((node_id, tree["transactions"]))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(
            error_code=self.response_code,
            results_by_transaction=[] if self.response_code else [self._result(each) for each in tree["transactions"]],
        )

    def _result(self, transaction: Mapping[str, Any]) -> SimpleNamespace:
        id_ = transaction["transactional_id"]
        return SimpleNamespace(
            transactional_id=id_,
            topic_results=[
                SimpleNamespace(
                    name=topic["name"],
                    results_by_partition=[
                        SimpleNamespace(
                            partition_index=index, partition_error_code=self.codes.get((id_, topic["name"], index), 0)
                        )
                        for index in topic["partitions"]
                        if (id_, topic["name"], index) not in self.unanswered
                    ],
                )
                for topic in transaction["topics"]
            ],
        )

    async def verify(self, request: AddPartitionsRequest) -> dict[tuple[str, int], int]:
        return {each: error_code(error) for each, error in (await self.verifier.verify(request)).items()}


def run(scene: Callable[[Cluster], Awaitable[None]], *, unexpected_errors: int = 0) -> None:
    async def main() -> None:
        cluster = Cluster()
        async with asyncio.timeout(20):
            await scene(cluster)
            await cluster.verifier.close()
        assert cluster.verifier.unexpected_errors == unexpected_errors

    asyncio.run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


# Coordinators


@pytest.mark.parametrize(("client_version", "operation"), [(TV0, "verify"), (TV2, "add")])
def test_this_node_is_the_coordinator(client_version: int, operation: str) -> None:
    async def scene(cluster: Cluster) -> None:
        request = request_of(LOCAL_ID, client_version=client_version)
        assert await cluster.verify(request) == {ORDERS: 0}
        assert cluster.local == [(operation, request)]
        cluster.local_error = ConcurrentTransactionsError("not complete")
        assert await cluster.verify(request) == {ORDERS: 51}
        assert cluster.requests == []

    run(scene)


@pytest.mark.parametrize(("client_version", "verify_only"), [(TV0, True), (TV2, False)])
def test_another_node_is_the_coordinator(client_version: int, verify_only: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        request = request_of(REMOTE_ID, ("b", 1), ("a", 2), ("a", 0), client_version=client_version)
        assert await cluster.verify(request) == {("a", 0): 0, ("a", 2): 0, ("b", 1): 0}
        tree = {
            "transactional_id": REMOTE_ID,
            "producer_id": 7,
            "producer_epoch": 3,
            "verify_only": verify_only,
            "topics": [{"name": "a", "partitions": [0, 2]}, {"name": "b", "partitions": [1]}],
        }
        assert cluster.requests == [(OTHER, [tree])]
        assert cluster.local == []

    run(scene)


@pytest.mark.parametrize(
    "image",
    [
        image_of(None),
        image_of([NO_LEADER] * PARTITIONS),
        image_of(LEADERS, fenced=(OTHER,)),
        image_of(LEADERS, brokers=1),
    ],
    ids=["no topic", "no leader", "fenced", "not registered"],
)
def test_there_is_no_coordinator(image: MetadataImage) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.image = image
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: NOT_AVAILABLE}
        assert cluster.requests == []

    run(scene)


# Errors of requests


def test_each_partition_has_its_own_error() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.codes = {(REMOTE_ID, "a", 0): 120, (REMOTE_ID, "b", 0): 90}
        request = request_of(REMOTE_ID, ("a", 0), ("a", 1), ("b", 0))
        errors = await cluster.verifier.verify(request)
        assert isinstance(errors["a", 0], TransactionAbortableError)
        assert errors["a", 1] is None
        assert isinstance(errors["b", 0], ProducerFencedError)

    run(scene)


@pytest.mark.parametrize("code", [3, 14, 15, 16, 42, 47, 48, 49, 51, 55, 90, 120])
def test_every_error_of_a_coordinator_is_known(code: int) -> None:
    assert code in ERROR_CODES.values()

    async def scene(cluster: Cluster) -> None:
        cluster.codes = {(REMOTE_ID, *ORDERS): code}
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: code}

    run(scene)


def test_an_error_of_the_whole_response_is_the_error_of_all_partitions() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.response_code = 16
        assert await cluster.verify(request_of(REMOTE_ID, ("a", 0), ("a", 1))) == {("a", 0): 16, ("a", 1): 16}

    run(scene)


def test_a_lost_connection_or_a_timeout() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.failure = PeerUnreachableError("timed out")
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: NETWORK_EXCEPTION}
        cluster.failure = None
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: 0}

    run(scene)


def test_a_response_without_a_partition_does_not_verify_it() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.unanswered = {(REMOTE_ID, "a", 1)}
        assert await cluster.verify(request_of(REMOTE_ID, ("a", 0), ("a", 1))) == {("a", 0): 0, ("a", 1): 13}

    run(scene)


def test_an_unexpected_exception_does_not_verify() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.failure = RuntimeError("bug")
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: NETWORK_EXCEPTION}
        cluster.failure = None
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: 0}

    run(scene, unexpected_errors=1)


# Shared requests


def test_verifications_share_the_next_request_while_one_is_in_flight() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        first = asyncio.ensure_future(cluster.verify(request_of(REMOTE_ID)))
        await turns()
        second = [
            asyncio.ensure_future(cluster.verify(request_of(id_, epoch=epoch, client_version=version)))
            for id_, epoch, version in ((REMOTE_ID, 3, TV2), (OTHER_REMOTE_ID, 8, TV0))
        ]
        await turns()
        assert len(cluster.requests) == 1
        cluster.codes = {(OTHER_REMOTE_ID, *ORDERS): 120}
        cluster.gate.set()
        assert await first == {ORDERS: 0}
        assert await asyncio.gather(*second) == [{ORDERS: 0}, {ORDERS: 120}]
        assert [
            [(each["transactional_id"], each["producer_epoch"], each["verify_only"]) for each in transactions]
            for _, transactions in cluster.requests
        ] == [[(REMOTE_ID, 3, False)], [(REMOTE_ID, 3, False), (OTHER_REMOTE_ID, 8, True)]]

    run(scene)


def test_coordinators_on_other_nodes_do_not_wait_for_each_other() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        tasks = [asyncio.ensure_future(cluster.verify(request_of(id_))) for id_ in (REMOTE_ID, id_of(3))]
        await turns()
        assert [broker_id for broker_id, _ in cluster.requests] == [OTHER, 3]
        cluster.gate.set()
        assert await asyncio.gather(*tasks) == [{ORDERS: 0}] * 2

    run(scene)


def test_a_newer_verification_of_the_same_producer_replaces_one_that_waits() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        verifications = [request_of(OTHER_REMOTE_ID), *(request_of(REMOTE_ID, epoch=epoch) for epoch in (3, 3, 4, 2))]
        tasks = []
        for each in verifications:
            tasks.append(asyncio.ensure_future(cluster.verify(each)))
            await turns()
        cluster.gate.set()
        codes = [each[ORDERS] for each in await asyncio.gather(*tasks)]
        assert codes == [0, NETWORK_EXCEPTION, INVALID_EPOCH, 0, INVALID_EPOCH]
        assert [[each["producer_epoch"] for each in transactions] for _, transactions in cluster.requests] == [[3], [4]]

    run(scene)


def test_a_request_that_was_cancelled_does_not_disturb_others() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        cancelled = asyncio.ensure_future(cluster.verify(request_of(REMOTE_ID)))
        other = asyncio.ensure_future(cluster.verify(request_of(OTHER_REMOTE_ID)))
        await turns()
        cancelled.cancel()
        await turns()
        cluster.gate.set()
        assert await other == {ORDERS: 0}

    run(scene)


# Metadata changes and shutdown


@pytest.mark.parametrize("image", [image_of(LEADERS, fenced=(OTHER,)), image_of(LEADERS, brokers=1)])
def test_a_fenced_coordinator_is_not_waited_for(image: MetadataImage) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        verification = asyncio.ensure_future(cluster.verify(request_of(REMOTE_ID)))
        await turns()
        cluster.verifier.publish(MetadataDelta(brokers_changed=frozenset({OTHER, 3})), image)
        assert await verification == {ORDERS: NETWORK_EXCEPTION}
        assert cluster.disconnected == [OTHER]

    run(scene)


def test_a_change_of_a_live_coordinator_interrupts_nothing() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        verification = asyncio.ensure_future(cluster.verify(request_of(REMOTE_ID)))
        await turns()
        cluster.verifier.publish(MetadataDelta(brokers_changed=frozenset({OTHER})), cluster.image)
        cluster.gate.set()
        assert await verification == {ORDERS: 0}
        assert cluster.disconnected == []

    run(scene)


def test_shutdown_fails_what_waits() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.gate.clear()
        first = asyncio.ensure_future(cluster.verify(request_of(REMOTE_ID)))
        await turns()
        second = asyncio.ensure_future(cluster.verify(request_of(OTHER_REMOTE_ID)))
        await turns()
        cluster.verifier.stop()
        assert await asyncio.gather(first, second) == [{ORDERS: NETWORK_EXCEPTION}] * 2
        assert len(cluster.requests) == 1
        assert await cluster.verify(request_of(REMOTE_ID)) == {ORDERS: NOT_AVAILABLE}

    run(scene)


# Errors for clients


@pytest.mark.parametrize(
    "error",
    [
        PeerUnreachableError("lost"),
        CoordinatorNotAvailableError("none"),
        CoordinatorLoadInProgressError("loading"),
        NotCoordinatorError("moved"),
        OperationNotAttemptedError("another partition"),
    ],
)
@pytest.mark.parametrize("version", [3, 11, 12, 13])
def test_produce_is_retried_after_trouble_with_the_coordinator(error: MoldauError, version: int) -> None:
    mapped = produce_error(error, version)
    assert error_code(mapped) == NOT_ENOUGH_REPLICAS
    assert str(error) in str(mapped)


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (ConcurrentTransactionsError("e"), {3: 19, 10: 19, 11: 19, 12: 51, 13: 51}),
        (ProducerFencedError("e"), {3: 47, 10: 47, 11: 47, 12: 47, 13: 47}),
        (InvalidProducerEpochError("e"), {3: 47, 13: 47}),
        (TransactionAbortableError("e"), {3: 48, 10: 48, 11: 120, 12: 120, 13: 120}),
        (InvalidTransactionStateError("e"), {3: 48, 13: 48}),
        (InvalidProducerIdMappingError("e"), {3: 49, 13: 49}),
        (UnknownTopicOrPartitionError("e"), {3: 3, 13: 3}),
    ],
)
def test_errors_of_produce(error: MoldauError, codes: dict[int, int]) -> None:
    assert {version: error_code(produce_error(error, version)) for version in codes} == codes


def test_errors_of_other_requests() -> None:
    assert error_code(client_error(ProducerFencedError("e"), knows_abortable=True)) == INVALID_EPOCH
    assert error_code(client_error(TransactionAbortableError("e"), knows_abortable=True)) == 120
    assert error_code(client_error(TransactionAbortableError("e"), knows_abortable=False)) == 48
    assert error_code(client_error(ConcurrentTransactionsError("e"), knows_abortable=True)) == 51
    assert error_code(client_error(NotCoordinatorError("e"), knows_abortable=True)) == 16


def test_the_version_of_produce_says_whether_partitions_are_added() -> None:
    assert [client_version_of_produce(version) for version in (3, 11, 12, 13)] == [TV0, TV0, TV2, TV2]
