"""The transactional producer against a scripted coordinator: requests, versions, retries and failures."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from moldau.client.errors import (
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from moldau.client.group.member_state import ConsumerGroupMetadata
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer
from moldau.client.record import TopicPartition
from moldau.records.batch import Batch
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import NODE, Disconnect, ReceivedRequest, ScriptedBroker, ScriptedResponse, Tree

DEADLINE_S = 20
ORDERS = TopicPartition("orders", 0)
Response = Callable[[ReceivedRequest], ScriptedResponse]


class Coordinator:
    """Accepts every request, unless `refusals` has error codes (or responses) left for its API."""

    def __init__(self) -> None:
        self.epoch = 0
        self.refusals: dict[ApiKey, list[int | type[Disconnect]]] = {}
        self.scripts: dict[ApiKey, Any] = {
            api: self._guarded(api, respond)
            for api, respond in {
                ApiKey.FIND_COORDINATOR: self._find,
                ApiKey.INIT_PRODUCER_ID: self._init,
                ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
                ApiKey.ADD_OFFSETS_TO_TXN: lambda received, code: {"throttle_time": 0, "error_code": code},
                ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
                ApiKey.END_TXN: self._end,
                ApiKey.PRODUCE: self._produce,
            }.items()
        }

    def refuse(self, api: ApiKey, *answers: int | type[Disconnect]) -> None:
        self.refusals[api] = list(answers)

    def _guarded(self, api: ApiKey, respond: Callable[[ReceivedRequest, int], Tree]) -> Response:
        def script(received: ReceivedRequest) -> ScriptedResponse:
            left = self.refusals.get(api)
            answer = left.pop(0) if left else 0
            return respond(received, answer) if isinstance(answer, int) else answer

        return script

    def _find(self, received: ReceivedRequest, code: int) -> Tree:
        (key,) = received.request.coordinator_keys
        found = {"key": key, "node_id": NODE, "host": "127.0.0.1", "port": 1, "error_code": code, "error_message": ""}
        return {"throttle_time": 0, "coordinators": [found]}

    def _init(self, received: ReceivedRequest, code: int) -> Tree:
        if code == 0 and received.request.producer_id >= 0:
            self.epoch += 1
        return {"throttle_time": 0, "error_code": code, "producer_id": 1000, "producer_epoch": self.epoch}

    def _add_partitions(self, received: ReceivedRequest, code: int) -> Tree:
        results = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": each, "partition_error_code": code} for each in topic.partitions
                ],
            }
            for topic in received.request.v3_and_below_topics
        ]
        return {"throttle_time": 0, "results_by_topic_v3_and_below": results}

    def _commit_offsets(self, received: ReceivedRequest, code: int) -> Tree:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
                ],
            }
            for topic in received.request.topics
        ]
        return {"throttle_time": 0, "topics": topics}

    def _end(self, received: ReceivedRequest, code: int) -> Tree:
        if code == 0 and received.version >= 5:
            self.epoch += 1
        return {"throttle_time": 0, "error_code": code, "producer_id": 1000, "producer_epoch": self.epoch}

    def _produce(self, received: ReceivedRequest, code: int) -> Tree:
        responses = [
            {
                "name": topic.name,
                "partition_responses": [
                    {
                        "index": each.index,
                        "error_code": code,
                        "base_offset": 0,
                        "log_append_time": -1,
                        "log_start_offset": 0,
                        "record_errors": [],
                        "error_message": None,
                    }
                    for each in topic.partition_data
                ],
            }
            for topic in received.request.topic_data
        ]
        return {"throttle_time": 0, "responses": responses}


class Member:
    """A consumer as transactions see it."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.error = error

    def commit_metadata(self, partitions: Iterable[TopicPartition]) -> ConsumerGroupMetadata:
        if self.error is not None:
            raise self.error
        return ConsumerGroupMetadata("billing", 5, "member", "instance")


def run(
    test: Callable[[ScriptedBroker, Coordinator, Producer], Coroutine[Any, Any, None]],
    *,
    level: int = 2,
    **settings: Any,
) -> None:
    async def main() -> None:
        coordinator = Coordinator()
        features = {"transaction.version": level} if level else {}
        topics = {"orders": 2, "payments": 1}
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker(coordinator.scripts, topics=topics, features=features) as broker,
        ):
            defaults = {"transactional_id": "billing-1", "retry_backoff_ms": 1, "linger_ms": 0}
            producer = Producer(broker.bootstrap, **{**defaults, **settings})
            await producer.start()
            try:
                await test(broker, coordinator, producer)
            finally:
                await producer.abort()

    asyncio.run(main())


def batches(broker: ScriptedBroker) -> list[Batch]:
    return [
        Batch(each.records)
        for received in broker.received_requests
        if received.api is ApiKey.PRODUCE
        for topic in received.request.topic_data
        for each in topic.partition_data
    ]


def requests(broker: ScriptedBroker) -> list[str]:
    """The requests of transactions with their versions, in order."""
    apis = (
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
    )
    return [f"{each.api.name} {each.version}" for each in broker.received_requests if each.api in apis]


def ends(broker: ScriptedBroker) -> list[tuple[int, bool]]:
    """The epoch and outcome of each EndTxn."""
    return [
        (each.request.producer_epoch, each.request.committed)
        for each in broker.received_requests
        if each.api is ApiKey.END_TXN
    ]


async def send(producer: Producer, value: bytes = b"x", topic: str = "orders") -> "asyncio.Future[Any]":
    return await producer.send(topic, value, partition=0)


async def transact(producer: Producer, group: str | Member = "billing") -> None:
    async with producer.transaction() as transaction:
        await send(producer)
        await transaction.send_offsets({ORDERS: 3}, group)


async def fail_in_a_block(producer: Producer) -> None:
    async with producer.transaction():
        await (await send(producer))
        raise ZeroDivisionError


async def hang_in_a_block(producer: Producer) -> None:
    async with asyncio.timeout(0.1), producer.transaction():
        await (await send(producer))
        await asyncio.Event().wait()


def test_tv2_sends_batches_and_offsets_without_adding_partitions() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        for _ in range(2):
            await transact(producer)
        transactional = ["PRODUCE 12", "TXN_OFFSET_COMMIT 5", "END_TXN 5"]
        assert sorted(requests(broker)[1:4]) == sorted(transactional)
        assert requests(broker)[0] == "INIT_PRODUCER_ID 5"
        assert requests(broker)[3] == requests(broker)[6] == "END_TXN 5"
        assert ends(broker) == [(0, True), (1, True)]
        assert [(batch.producer_epoch, batch.base_sequence) for batch in batches(broker)] == [(0, 0), (1, 0)]
        assert all(batch.is_transactional for batch in batches(broker))
        produce = next(each for each in broker.received_requests if each.api is ApiKey.PRODUCE)
        assert produce.request.transactional_id == "billing-1"

    run(test)


@pytest.mark.parametrize("level", [0, 1])
def test_tv1_adds_partitions_before_it_sends_to_them(level: int) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        for _ in range(2):
            async with producer.transaction() as transaction:
                await (await send(producer))
                await (await send(producer))
                await (await send(producer, topic="payments"))
                await transaction.send_offsets({ORDERS: 3}, "billing")
        one = [
            "ADD_PARTITIONS_TO_TXN 3",
            "PRODUCE 11",
            "PRODUCE 11",
            "ADD_PARTITIONS_TO_TXN 3",
            "PRODUCE 11",
            "ADD_OFFSETS_TO_TXN 4",
            "TXN_OFFSET_COMMIT 4",
            "END_TXN 4",
        ]
        assert requests(broker) == ["INIT_PRODUCER_ID 5", *one, *one]
        orders = [batch for batch in batches(broker) if batch.producer_epoch == 0]
        assert [batch.base_sequence for batch in orders] == [0, 1, 0, 2, 3, 1]

    run(test, level=level)


def test_tv1_adds_several_partitions_in_one_request() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        async with producer.transaction():
            for topic, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
                await producer.send(topic, b"x", partition=partition)
        added = [each for each in broker.received_requests if each.api is ApiKey.ADD_PARTITIONS_TO_TXN]
        # The metadata of each topic is fetched first, so there is a request per topic at most.
        assert len(added) <= 2
        partitions = {
            (topic.name, each) for r in added for topic in r.request.v3_and_below_topics for each in topic.partitions
        }
        assert partitions == {("orders", 0), ("orders", 1), ("payments", 0)}

    run(test, level=1)


def test_an_error_in_the_block_aborts() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        with pytest.raises(ZeroDivisionError):
            await fail_in_a_block(producer)
        assert ends(broker) == [(0, False)]
        async with producer.transaction():
            await send(producer)
        assert ends(broker) == [(0, False), (1, True)]

    run(test)


def test_records_that_were_not_sent_fail_at_an_abort() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        transaction = producer.transaction()
        await transaction.begin()
        sent = await send(producer)
        await transaction.abort()
        with pytest.raises(KafkaError, match="aborted before the record was sent"):
            await sent
        assert batches(broker) == []

    run(test, linger_ms=60_000)


def test_an_empty_transaction_sends_nothing() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        async with producer.transaction():
            pass
        async with producer.transaction() as transaction:
            await transaction.abort()
        assert requests(broker) == ["INIT_PRODUCER_ID 5"]

    run(test)


@pytest.mark.parametrize("level", [2, 1])
@pytest.mark.parametrize(
    "api",
    [ApiKey.FIND_COORDINATOR, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN],
)
@pytest.mark.parametrize("answer", [51, 14, 16, Disconnect])
def test_retriable_errors_are_retried(level: int, api: ApiKey, answer: int | type[Disconnect]) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(api, answer, answer)
        await transact(producer)
        assert ends(broker)[-1] == (0, True)

    run(test, level=level, retry_backoff_max_ms=1)


@pytest.mark.parametrize("answer", [51, 14, 15, 16, Disconnect])
def test_the_start_waits_for_the_coordinator_and_the_earlier_transaction(answer: int | type[Disconnect]) -> None:
    async def main() -> None:
        coordinator = Coordinator()
        coordinator.refuse(ApiKey.INIT_PRODUCER_ID, answer, answer)
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker(coordinator.scripts, topics={"orders": 1}) as broker,
            Producer(broker.bootstrap, transactional_id="billing-1", retry_backoff_ms=1),
        ):
            assert broker.count(ApiKey.INIT_PRODUCER_ID) == 3

    asyncio.run(main())


def test_a_refused_start_is_raised() -> None:
    async def main() -> None:
        coordinator = Coordinator()
        coordinator.refuse(ApiKey.INIT_PRODUCER_ID, 50)
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker(coordinator.scripts) as broker:
            producer = Producer(broker.bootstrap, transactional_id="billing-1", transaction_timeout_ms=3_600_000)
            with pytest.raises(KafkaError, match=r"transaction.max.timeout.ms.*3600000") as raised:
                await producer.start()
            assert raised.value.code is ErrorCode.invalid_transaction_timeout
            await producer.abort()

    asyncio.run(main())


@pytest.mark.parametrize("code", [48, 120, 47, 45, 10])
def test_a_failed_batch_aborts_the_block(code: int) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.PRODUCE, code)
        with pytest.raises(TransactionAbortableError) as raised:
            async with producer.transaction():
                await send(producer)
        assert raised.value.code == code
        assert ends(broker) == [(0, False)]
        async with producer.transaction():
            await send(producer)
        assert ends(broker) == [(0, False), (1, True)]
        assert [(batch.producer_epoch, batch.base_sequence) for batch in batches(broker)] == [(0, 0), (1, 0)]

    run(test)


def test_after_a_failed_batch_nothing_more_is_sent() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        transaction = producer.transaction()
        await transaction.begin()
        coordinator.refuse(ApiKey.PRODUCE, 48)
        first = await send(producer)
        with pytest.raises(KafkaError):
            await first
        with pytest.raises(TransactionAbortableError, match="INVALID_TXN_STATE"):
            await send(producer)
        with pytest.raises(TransactionAbortableError):
            await transaction.send_offsets({ORDERS: 1}, "billing")
        await transaction.abort()
        assert len(batches(broker)) == 1

    run(test)


def test_tv1_gets_a_new_epoch_after_a_failed_batch() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.PRODUCE, 10)
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await send(producer)
        async with producer.transaction():
            await send(producer)
        inits = [each.request for each in broker.received_requests if each.api is ApiKey.INIT_PRODUCER_ID]
        assert [(each.producer_id, each.producer_epoch) for each in inits] == [(-1, -1), (1000, 0)]
        assert [(batch.producer_epoch, batch.base_sequence) for batch in batches(broker)] == [(0, 0), (1, 0)]
        assert ends(broker) == [(0, False), (1, True)]

    run(test, level=1)


def test_tv1_continues_its_sequences_after_an_abort_without_a_failure() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        transaction = producer.transaction()
        await transaction.begin()
        await (await send(producer))
        await transaction.abort()
        async with producer.transaction():
            await send(producer)
        assert [(batch.producer_epoch, batch.base_sequence) for batch in batches(broker)] == [(0, 0), (0, 1)]
        assert broker.count(ApiKey.INIT_PRODUCER_ID) == 1

    run(test, level=1)


def test_tv1_aborts_when_a_partition_cannot_be_added() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.ADD_PARTITIONS_TO_TXN, 29)
        # The coordinator has no open transaction.
        coordinator.refuse(ApiKey.END_TXN, 48)
        with pytest.raises(TransactionAbortableError, match="orders-0"):
            async with producer.transaction():
                await send(producer)
        assert batches(broker) == []
        async with producer.transaction():
            await send(producer)
        assert ends(broker) == [(0, False), (0, True)]

    run(test, level=1)


@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT])
@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_producer_can_only_be_closed(api: ApiKey, code: int) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(api, code)
        with pytest.raises(ProducerFencedError, match="billing-1"):
            await transact(producer)
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                pass
        await producer.close()

    run(test)


def test_a_batch_refused_because_of_its_epoch_reveals_a_fenced_producer() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.PRODUCE, 47)
        coordinator.refuse(ApiKey.END_TXN, 90)
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                await send(producer)

    run(test)


def test_a_commit_that_lost_to_the_timeout_is_aborted() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.END_TXN, 48)
        with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms"):
            async with producer.transaction():
                await send(producer)
        assert ends(broker) == [(0, True), (0, False)]
        async with producer.transaction():
            await send(producer)

    run(test)


def test_the_outcome_of_a_commit_is_unknown_until_it_is_repeated() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.END_TXN, *[Disconnect] * 1000)
        transaction = producer.transaction()
        await transaction.begin()
        await send(producer)
        with pytest.raises(RequestTimedOutError, match="call `commit` again"):
            await transaction.commit()
        assert transaction.is_outcome_unknown
        with pytest.raises(IllegalStateError, match="call `commit` again"):
            await producer.transaction().begin()
        coordinator.refuse(ApiKey.END_TXN)
        await transaction.commit()
        assert not transaction.is_outcome_unknown
        assert set(ends(broker)) == {(0, True)}

    run(test, max_block_ms=1_000, retry_backoff_max_ms=10)


@pytest.mark.parametrize(("code", "outcome"), [(0, True), (48, False)])
def test_a_commit_of_unknown_outcome_can_be_resolved_without_its_transaction(code: int, outcome: bool) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.END_TXN, *[Disconnect] * 1000)
        with pytest.raises(RequestTimedOutError):
            await transact(producer)
        with pytest.raises(RequestTimedOutError, match="the outcome of the commit is unknown"):
            await producer.resolve_commit()
        coordinator.refuse(ApiKey.END_TXN, code)
        await producer.resolve_commit()
        assert ends(broker)[-1] == (0, outcome)
        await producer.resolve_commit()
        await transact(producer)
        assert ends(broker)[-2:] == [(0, outcome), (1, True)]

    run(test, max_block_ms=1_000, retry_backoff_max_ms=10)


def test_the_next_transaction_completes_an_abort_that_timed_out() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.END_TXN, *[Disconnect] * 1000)
        transaction = producer.transaction()
        await transaction.begin()
        await send(producer)
        with pytest.raises(RequestTimedOutError, match="call `abort` again"):
            await transaction.abort()
        coordinator.refuse(ApiKey.END_TXN)
        async with producer.transaction():
            await send(producer)
        assert ends(broker)[-2:] == [(0, False), (1, True)]

    run(test, max_block_ms=1_000, retry_backoff_max_ms=10)


def test_cancelling_a_block_aborts_it() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        with pytest.raises(TimeoutError):
            await hang_in_a_block(producer)
        assert ends(broker) == [(0, False)]

    run(test)


def test_closing_aborts_an_open_transaction() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        await producer.transaction().begin()
        await send(producer)
        await producer.close()
        assert ends(broker) == [(0, False)]

    run(test)


def test_a_block_that_the_close_of_the_producer_aborted_does_not_succeed() -> None:
    async def close_in_a_block(producer: Producer) -> None:
        async with producer.transaction():
            await send(producer)
            await producer.close()

    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        with pytest.raises(IllegalStateError, match="the producer was closed"):
            await close_in_a_block(producer)
        assert ends(broker) == [(0, False)]

    run(test)


def test_a_transaction_whose_records_the_close_of_the_producer_dropped_is_not_committed() -> None:
    async def drop_in_a_block(producer: Producer) -> None:
        async with producer.transaction():
            delivered = await send(producer)
            await producer.flush()
            await delivered
            await send(producer)
            await producer.abort()

    async def main() -> None:
        coordinator = Coordinator()
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker(coordinator.scripts, topics={"orders": 2}, features={"transaction.version": 2}) as broker,
            Cluster(broker.bootstrap) as cluster,
        ):
            producer = Producer(cluster, transactional_id="billing-1", linger_ms=60_000)
            await producer.start()
            with pytest.raises(TransactionAbortableError, match="the producer was closed"):
                await drop_in_a_block(producer)
            assert ends(broker) == [(0, False)]

    asyncio.run(main())


def test_offsets_carry_the_membership_of_the_consumer() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        async with producer.transaction() as transaction:
            await transaction.send_offsets({ORDERS: 3}, Member())
        commit = next(each.request for each in broker.received_requests if each.api is ApiKey.TXN_OFFSET_COMMIT)
        found = commit.group_id, commit.generation_id, commit.member_id, commit.group_instance_id
        assert found == ("billing", 5, "member", "instance")
        assert commit.producer_id == 1000
        assert ends(broker) == [(0, True)]

    run(test)


def test_offsets_of_a_consumer_outside_its_group_fail_the_transaction() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        removed = CommitFailedError(ErrorCode.unknown_member_id, "not in the group")
        with pytest.raises(TransactionAbortableError, match="not in the group") as raised:
            await transact(producer, Member(removed))
        assert raised.value.is_retriable
        assert broker.count(ApiKey.TXN_OFFSET_COMMIT) == 0
        assert ends(broker) == [(0, False)]

    run(test)


@pytest.mark.parametrize("code", [22, 25, 82])
def test_offsets_of_an_old_generation_fail_the_transaction(code: int) -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        coordinator.refuse(ApiKey.TXN_OFFSET_COMMIT, code)
        with pytest.raises(TransactionAbortableError) as raised:
            await transact(producer, Member())
        assert raised.value.code == code
        assert ends(broker) == [(0, False)]

    run(test)


def test_a_raised_feature_level_takes_effect_in_the_next_transaction() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        async with producer.transaction():
            await send(producer)
        broker.features["transaction.version"] = 2
        broker.features_epoch += 1
        broker.disconnect_all()
        async with producer.transaction():
            await (await send(producer))
        async with producer.transaction():
            await send(producer)
        assert [each for each in requests(broker) if "INIT" in each or "END" in each] == [
            "INIT_PRODUCER_ID 5",
            "END_TXN 4",
            "END_TXN 4",
            "INIT_PRODUCER_ID 5",
            "END_TXN 5",
        ]

    run(test, level=1)


def test_records_need_a_transaction() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        with pytest.raises(IllegalStateError, match="no open transaction"):
            await send(producer)
        async with producer.transaction():
            with pytest.raises(IllegalStateError, match="end the open transaction first"):
                await producer.transaction().begin()
        with pytest.raises(IllegalStateError, match="has not begun"):
            await producer.transaction().commit()

    run(test)


def test_a_record_that_waited_does_not_go_into_the_next_transaction() -> None:
    async def test(broker: ScriptedBroker, coordinator: Coordinator, producer: Producer) -> None:
        metadata = broker.scripts[ApiKey.METADATA]
        requested, released = asyncio.Event(), asyncio.Event()

        async def hold(received: ReceivedRequest) -> ScriptedResponse:
            requested.set()
            await released.wait()
            return metadata(received)  # type: ignore[return-value]

        async with producer.transaction():
            broker.scripts[ApiKey.METADATA] = hold
            late = asyncio.ensure_future(send(producer))
            await requested.wait()
        async with producer.transaction():
            released.set()
            with pytest.raises(IllegalStateError, match="no open transaction"):
                await late

    run(test)


def test_a_plain_producer_has_no_transactions() -> None:
    async def main() -> None:
        async with ScriptedBroker(topics={"orders": 1}) as broker, Producer(broker.bootstrap) as producer:
            with pytest.raises(IllegalStateError, match="transactional_id"):
                producer.transaction()

    asyncio.run(main())


@pytest.mark.parametrize(
    "settings",
    [{"transactional_id": ""}, {"transactional_id": "x", "idempotent": False}, {"transaction_timeout_ms": 0}],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="transaction"):
        Producer("127.0.0.1:1", **settings)
