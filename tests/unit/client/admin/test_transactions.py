"""Admin requests for transactions against a scripted broker."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import AbortTransactionSpec, OpenTransactions, OpenTransactionStatus
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.api_versions import SUPPORTED_VERSIONS, VersionRange
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import NODE, ReceivedRequest, Script, ScriptedBroker, Tree

T = TypeVar("T")

DEADLINE_S = 20
TOPIC = "orders"
NOW_MS = 1_700_000_100_000
START_MS = 1_700_000_000_000


def run(
    operation: Callable[[Admin], Awaitable[T]],
    scripts: Mapping[ApiKey, Script],
    versions: Mapping[int, VersionRange] | None = None,
) -> tuple[T, ScriptedBroker]:
    async def main() -> tuple[T, ScriptedBroker]:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({**COORDINATOR, **scripts}, topics={TOPIC: 2}, versions=versions) as broker,
            Admin(broker.bootstrap, retry_backoff_ms=1, timeout_ms=2_000) as admin,
        ):
            return await operation(admin), broker

    return asyncio.run(main())


def coordinators(received: ReceivedRequest) -> Tree:
    assert received.request.key_type == 1, "transactional ids"
    found = [
        {"key": key, "node_id": NODE, "host": "127.0.0.1", "port": 1, "error_code": 0}
        for key in received.request.coordinator_keys
    ]
    return {"coordinators": found}


COORDINATOR: dict[ApiKey, Script] = {ApiKey.FIND_COORDINATOR: coordinators}


class FakeTransactions:
    """Producers with an open transaction by partition, and what the coordinator knows, by transactional id."""

    def __init__(self) -> None:
        self.opened: dict[int, list[tuple[int, int]]] = {}
        """Producer id and first offset by partition."""
        self.known: dict[str, tuple[int, str, list[int]]] = {}
        """Producer id, state and partitions."""
        self.on_listed: Callable[[], None] = lambda: None
        self.partition_error = 0
        self.names: dict[int, str] = {}
        """The transactional ids that leaders know, by producer id."""
        self.describe_error: ErrorCode | None = None

    @property
    def scripts(self) -> dict[ApiKey, Script]:
        return {
            ApiKey.DESCRIBE_PRODUCERS: self._producers,
            ApiKey.LIST_TRANSACTIONS: self._list,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.LIST_OFFSETS: self._offsets,
        }

    def _producers(self, received: ReceivedRequest) -> Tree:
        (topic,) = received.request.topics
        partitions = [
            {
                "partition_index": index,
                "error_code": self.partition_error if index == 1 else 0,
                "error_message": None,
                "active_producers": [
                    {**_producer(*each), "transactional_id": self.names.get(each[0], ""), "client_id": "billing"}
                    for each in [*self.opened.get(index, ()), (99, -1)]
                ],
            }
            for index in topic.partition_indexes
        ]
        return {"topics": [{"name": topic.name, "partitions": partitions}]}

    def _list(self, received: ReceivedRequest) -> Tree:
        wanted = received.request.producer_id_filters
        listed = [
            {"transactional_id": name, "producer_id": producer_id, "transaction_state": state}
            for name, (producer_id, state, _) in self.known.items()
            if producer_id in wanted
        ]
        self.on_listed()
        return {"transaction_states": listed}

    def _describe(self, received: ReceivedRequest) -> Tree:
        return {"transaction_states": [self._state(each) for each in received.request.transactional_ids]}

    def _state(self, name: str) -> Tree:
        producer_id, state, partitions = self.known.get(name, (0, "", []))
        return {
            "error_code": int(
                self.describe_error or (0 if name in self.known else ErrorCode.transactional_id_not_found)
            ),
            "transactional_id": name,
            "transaction_state": state,
            "transaction_timeout": 120_000,
            "transaction_start_time": START_MS,
            "producer_id": producer_id,
            "producer_epoch": 3,
            "topics": [{"topic": TOPIC, "partitions": partitions}],
        }

    def _offsets(self, received: ReceivedRequest) -> Tree:
        (topic,) = received.request.topics
        partitions = [
            {"partition_index": each.partition_index, "error_code": 0, "timestamp": -1, "offset": 50, "leader_epoch": 0}
            for each in topic.partitions
        ]
        return {"topics": [{"name": topic.name, "partitions": partitions}]}

    def find(self) -> OpenTransactions:
        partitions = [TopicPartition(TOPIC, index) for index in range(2)]
        return run(lambda admin: admin.find_open_transactions(partitions), self.scripts)[0]


def _producer(producer_id: int, start_offset: int) -> Tree:
    return {
        "producer_id": producer_id,
        "producer_epoch": 3,
        "last_sequence": 0,
        "last_timestamp": START_MS + 50_000,
        "coordinator_epoch": -1,
        "current_txn_start_offset": start_offset,
    }


def test_open_transactions_are_told_apart() -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(7, 20), (5, 10)], 1: [(6, 30), (5, 40)]}
    fake.known = {"five": (5, "Ongoing", [0]), "six": (6, "PrepareCommit", [1])}
    found = fake.find()
    assert [(each.partition.partition, each.start_offset, each.status.value) for each in found.transactions] == [
        (0, 10, "ongoing"),
        (0, 20, "hanging"),  # the coordinator does not know the producer
        (1, 30, "ending"),
        (1, 40, "hanging"),  # the coordinator has finished with this partition
    ]
    assert [each.start_offset for each in found.holders] == [10, 30]
    ongoing, hanging, ending, finished = found.transactions
    assert ongoing.transaction is not None
    assert (ongoing.transaction.transactional_id, ongoing.waiting_records) == ("five", 40)
    assert (ongoing.age_ms(NOW_MS), ongoing.remaining_ms(NOW_MS)) == (100_000, 20_000)
    assert (hanging.transaction, hanging.age_ms(NOW_MS), hanging.remaining_ms(NOW_MS)) == (None, 50_000, None)
    assert hanging.abort_spec == AbortTransactionSpec(TopicPartition(TOPIC, 0), 7, 3, 0)
    assert (ending.age_ms(NOW_MS), ending.remaining_ms(NOW_MS)) == (100_000, None)
    assert (finished.age_ms(NOW_MS), finished.remaining_ms(NOW_MS)) == (50_000, None)


@pytest.mark.parametrize("next_start", [None, 30])
def test_a_transaction_that_ends_during_the_search_is_not_hanging(next_start: int | None) -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)]}
    fake.known = {"five": (5, "CompleteCommit", [])}

    def end_and_start_next() -> None:
        fake.opened = {} if next_start is None else {0: [(5, next_start)]}

    fake.on_listed = end_and_start_next
    assert fake.find().transactions == []


def test_a_transaction_that_was_unknown_at_first_is_not_hanging() -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)]}
    fake.on_listed = lambda: fake.known.update({"five": (5, "Ongoing", [0])})
    (found,) = fake.find().transactions
    assert found.status is OpenTransactionStatus.ONGOING


def test_a_partition_that_cannot_be_searched_does_not_hide_the_others() -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)], 1: [(5, 10)]}
    fake.known = {"five": (5, "Ongoing", [0, 1])}
    fake.partition_error = int(ErrorCode.topic_authorization_failed)
    found = fake.find()
    assert [each.partition for each in found.transactions] == [(TOPIC, 0)]
    assert [each.code for each in found.errors.values()] == [ErrorCode.topic_authorization_failed]


def test_an_id_that_expires_during_the_search_is_unknown() -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)]}
    fake.known = {"five": (5, "Empty", [])}
    fake.on_listed = fake.known.clear
    (found,) = fake.find().transactions
    assert (found.status, found.transaction) == (OpenTransactionStatus.HANGING, None)


def test_a_coordinator_is_asked_for_the_ids_that_leaders_know() -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)], 1: [(6, 10)]}
    fake.names = {5: "five", 6: "six"}
    fake.known = {"five": (5, "Ongoing", [0]), "six": (7, "Ongoing", [1])}
    listed = []
    fake.on_listed = lambda: listed.append(1)
    ongoing, hanging = fake.find().transactions
    assert (ongoing.status, ongoing.transactional_id) == (OpenTransactionStatus.ONGOING, "five")
    # The id has another producer id by now.
    assert (hanging.status, hanging.transactional_id) == (OpenTransactionStatus.HANGING, "six")
    assert (hanging.transaction, hanging.client_id) == (None, "billing")
    assert listed == []


@pytest.mark.parametrize("names", [{5: "five"}, {}])
def test_a_transaction_whose_coordinator_does_not_respond_is_not_hanging(names: dict[int, str]) -> None:
    fake = FakeTransactions()
    fake.opened = {0: [(5, 10)]}
    fake.names = names
    fake.known = {"five": (5, "Ongoing", [0])}
    fake.describe_error = ErrorCode.transactional_id_authorization_failed
    found = fake.find()
    (transaction,) = found.transactions
    assert (transaction.status, transaction.transaction) == (OpenTransactionStatus.UNKNOWN, None)
    assert [each.code for each in found.errors.values()] == [ErrorCode.transactional_id_authorization_failed]


@pytest.mark.parametrize(
    ("filters", "maximum"), [({"longer_than_ms": 0}, 0), ({"pattern": "a.*"}, 0), ({"pattern": "a.*"}, 1)]
)
def test_a_filter_that_the_broker_does_not_know_is_not_ignored(filters: dict[str, Any], maximum: int) -> None:
    versions = {**SUPPORTED_VERSIONS, ApiKey.LIST_TRANSACTIONS: VersionRange(0, maximum)}
    scripts: dict[ApiKey, Script] = {ApiKey.LIST_TRANSACTIONS: lambda _: {"transaction_states": []}}
    with pytest.raises(KafkaError) as refused:
        run(lambda admin: admin.list_transactions(**filters), scripts, versions)
    assert refused.value.code is ErrorCode.unsupported_version
    assert run(lambda admin: admin.list_transactions(producer_ids=[1]), scripts, versions)[0] == []


def test_fencing_waits_until_the_abort_is_complete() -> None:
    codes = iter([ErrorCode.concurrent_transactions, ErrorCode.not_coordinator, ErrorCode.none])

    def init(received: ReceivedRequest) -> Tree:
        assert (received.request.producer_id, received.request.producer_epoch) == (-1, -1)
        return {"error_code": int(next(codes)), "producer_id": 5, "producer_epoch": 4}

    results, broker = run(lambda admin: admin.fence_producers(["five"]), {ApiKey.INIT_PRODUCER_ID: init})
    assert results == {"five": None}
    assert broker.count(ApiKey.FIND_COORDINATOR) == 2


@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced])
def test_a_marker_goes_to_the_leader_until_it_is_written(code: ErrorCode) -> None:
    spec = AbortTransactionSpec(TopicPartition(TOPIC, 1), 5, 3, 8)

    def write(codes: list[ErrorCode]) -> Script:
        def answer(received: ReceivedRequest) -> Tree:
            (marker,) = received.request.markers
            assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 3, 8)
            assert (marker.transaction_result, marker.transaction_version) == (False, 0)
            partitions = [{"partition_index": 1, "error_code": int(codes.pop(0))}]
            return {"markers": [{"producer_id": 5, "topics": [{"name": TOPIC, "partitions": partitions}]}]}

        return answer

    retried = write([ErrorCode.not_leader_or_follower, ErrorCode.none])
    _, broker = run(lambda admin: admin.abort_transaction(spec), {ApiKey.WRITE_TXN_MARKERS: retried})
    assert broker.count(ApiKey.WRITE_TXN_MARKERS) == 2
    with pytest.raises(KafkaError) as refused:
        run(lambda admin: admin.abort_transaction(spec), {ApiKey.WRITE_TXN_MARKERS: write([code])})
    assert refused.value.code is code
