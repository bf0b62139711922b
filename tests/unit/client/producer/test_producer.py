"""The producer under scripted faults: retries, failures and results."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from moldau.client.errors import ErrorCode, IllegalStateError, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer
from moldau.records.batch import Batch
from moldau.records.batch_builder import Section, build_batch
from moldau.records.record import Record
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import Disconnect, Hang, ReceivedRequest, ScriptedBroker, ScriptedResponse, Tree

DEADLINE_S = 20


def answer(received: ReceivedRequest, code: int = 0, offset: int = 0) -> Tree:
    return {
        "throttle_time": 0,
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {
                        "index": each.index,
                        "error_code": code,
                        "base_offset": offset,
                        "log_append_time": -1,
                        "log_start_offset": 0,
                        "record_errors": [],
                        "error_message": None,
                    }
                    for each in topic.partition_data
                ],
            }
            for topic in received.request.topic_data
        ],
    }


def in_turn(
    wait_for_responses: Iterable[Callable[[ReceivedRequest], ScriptedResponse]],
) -> Callable[[ReceivedRequest], ScriptedResponse]:
    """Returns these responses in order, then success."""
    left = iter(wait_for_responses)
    return lambda received: next(left, answer)(received)


def refuse(code: ErrorCode) -> Callable[[ReceivedRequest], ScriptedResponse]:
    return lambda received: answer(received, code)


def batches(broker: ScriptedBroker) -> list[Batch]:
    return [
        Batch(each.records)
        for received in broker.received_requests
        if received.api is ApiKey.PRODUCE
        for topic in received.request.topic_data
        for each in topic.partition_data
    ]


def with_producer(
    test: Callable[[ScriptedBroker, Producer], Coroutine[Any, Any, None]], scripts: dict[ApiKey, Any], **settings: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker(scripts, topics={"orders": 1}) as broker:
            producer = Producer(broker.bootstrap, retry_backoff_ms=1, **{"linger_ms": 0, **settings})
            await producer.start()
            try:
                await test(broker, producer)
            finally:
                await producer.abort()

    asyncio.run(main())


@pytest.mark.parametrize(
    "failure",
    [
        lambda _: Disconnect,
        refuse(ErrorCode.not_leader_or_follower),
        refuse(ErrorCode.not_enough_replicas_after_append),
        refuse(ErrorCode.kafka_storage_error),
        refuse(ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_failed_batch_is_resent_unchanged(failure: Callable[[ReceivedRequest], ScriptedResponse]) -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        assert (await sent).offset == 0
        first, *others = [batch.to_bytes() for batch in batches(broker)]
        assert others == [first, first]
        assert Batch(first).producer_id == 1000
        assert Batch(first).base_sequence == 0

    with_producer(test, {ApiKey.PRODUCE: in_turn([failure, failure])})


def test_a_batch_without_a_response_is_resent_on_a_new_connection() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        await (await producer.send("orders", b"x"))
        connections = [received.connection for received in broker.received_requests if received.api is ApiKey.PRODUCE]
        assert len(set(connections)) == 2

    with_producer(test, {ApiKey.PRODUCE: in_turn([lambda _: Hang])}, request_timeout_ms=500, retry_backoff_max_ms=1)


def test_a_fatal_broker_error_is_reported() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        refused = await producer.send("orders", b"x")
        with pytest.raises(KafkaError) as raised:
            await refused
        assert raised.value.code is ErrorCode.topic_authorization_failed
        await (await producer.send("orders", b"y"))
        assert [(batch.producer_epoch, batch.base_sequence) for batch in batches(broker)] == [(0, 0), (1, 0)]

    with_producer(test, {ApiKey.PRODUCE: in_turn([refuse(ErrorCode.topic_authorization_failed)])})


def test_records_that_expire_fail_with_the_last_error() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
            await sent
        assert len(batches(broker)) > 1

    with_producer(test, {ApiKey.PRODUCE: refuse(ErrorCode.not_enough_replicas)}, delivery_timeout_ms=1_000)


def test_an_expired_record_reports_the_unreachable_leader() -> None:
    async def main() -> None:
        async with ScriptedBroker(topics={"orders": 1}) as broker:
            producer = Producer(broker.bootstrap, retry_backoff_ms=1, delivery_timeout_ms=100)
            await producer.start()
            assert await producer.partition_count("orders") == 1
        sent = await producer.send("orders", b"x")
        with pytest.raises(KafkaError, match="accepted no records for 100 ms"):
            await sent
        await producer.close()

    asyncio.run(main())


def test_records_sent_while_batches_are_in_flight_share_batches() -> None:
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        if len(batches_of(received)) == 1 and batches_of(received)[0].base_sequence > 0:
            await release.wait()
        return answer(received)

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        await (await producer.send("orders", b"first"))
        sent = [await producer.send("orders", b"x" * 100) for _ in range(20)]
        while broker.count(ApiKey.PRODUCE) < 2:
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*sent)
        assert sum(batch.count for batch in batches(broker)) == 21
        assert len(batches(broker)) < 21

    with_producer(test, {ApiKey.PRODUCE: slowly}, batch_size=500)


def batches_of(received: ReceivedRequest) -> list[Batch]:
    return [Batch(each.records) for topic in received.request.topic_data for each in topic.partition_data]


def test_a_fatal_init_producer_id_error_fails_all_sends() -> None:
    refusal = {"throttle_time": 0, "error_code": 31, "producer_id": -1, "producer_epoch": -1}

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await sent
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await producer.send("orders", b"y")
        await producer.flush()

    with_producer(test, {ApiKey.INIT_PRODUCER_ID: lambda _: refusal})


def test_init_producer_id_is_retried_while_the_broker_is_not_ready() -> None:
    loading = {"throttle_time": 0, "error_code": 14, "producer_id": -1, "producer_epoch": -1}
    given = {"throttle_time": 0, "error_code": 0, "producer_id": 5, "producer_epoch": 2}
    wait_for_responses = iter([loading, loading, given])

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        await (await producer.send("orders", b"x"))
        (batch,) = batches(broker)
        assert (batch.producer_id, batch.producer_epoch) == (5, 2)

    with_producer(test, {ApiKey.INIT_PRODUCER_ID: lambda _: next(wait_for_responses), ApiKey.PRODUCE: answer})


def test_a_timed_out_memory_waiter_makes_room_for_the_next() -> None:
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        await release.wait()
        return answer(received)

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        first = await producer.send("orders", b"x" * 800)
        with pytest.raises(KafkaError, match="accepted no record for 1000 ms"):
            await producer.send("orders", b"y" * 800)
        cancelled = asyncio.create_task(producer.send("orders", b"y" * 800))
        waiting = asyncio.create_task(producer.send("orders", b"z" * 800))
        await asyncio.sleep(0)
        release.set()
        await first
        cancelled.cancel()
        await (await waiting)
        assert len(batches(broker)) == 2

    with_producer(test, {ApiKey.PRODUCE: slowly}, buffer_memory=1_000, max_block_ms=1_000)


def test_abort_fails_pending_sends_and_flushes() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = [await producer.send("orders", b"x" * 300) for _ in range(5)]
        flushing = asyncio.create_task(producer.flush())
        while not broker.count(ApiKey.PRODUCE):
            await asyncio.sleep(0)
        await producer.abort()
        assert all(isinstance(each.exception(), KafkaError) for each in sent)
        await flushing
        with pytest.raises(IllegalStateError, match="not open"):
            await producer.send("orders", b"x")

    with_producer(test, {ApiKey.PRODUCE: lambda _: Hang}, batch_size=500)


def test_closing_delivers_first() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = [await producer.send("orders", b"x") for _ in range(5)]
        await producer.close()
        assert [each.result().offset for each in sent] == [0, 1, 2, 3, 4]

    with_producer(test, {ApiKey.PRODUCE: answer}, linger_ms=10_000)


@pytest.mark.parametrize(
    "record",
    [
        {"value": "text"},
        {"value": b"", "key": "text"},
        {"value": b"", "key": 5},
        {"value": b"", "headers": [(b"bytes", b"")]},
        {"value": b"", "headers": [("text", "text")]},
        {"value": b"", "headers": [("\ud800", b"")]},
        {"value": b"", "timestamp_ms": 1.5},
        {"value": b"", "timestamp_ms": -1},
        {"value": b"", "timestamp_ms": 2**63},
    ],
)
def test_invalid_records_are_rejected_by_send(record: dict[str, Any]) -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        with pytest.raises((TypeError, ValueError), match=r"record|header|timestamp"):
            await producer.send("orders", **record)
        await (await producer.send("orders", b"good"))

    with_producer(test, {ApiKey.PRODUCE: answer})


@pytest.mark.parametrize("topic", ["", "\ud800", b"orders", None])
def test_invalid_topics_are_rejected(topic: Any) -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        with pytest.raises(ValueError, match="not a valid topic name"):
            await producer.send(topic, b"x")

    with_producer(test, {})


def test_a_batch_that_cannot_be_encoded_fails_without_blocking_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(records: list[Record], **settings: Any) -> bytes:
        if any(each.value == b"bad" for each in records):
            raise ZeroDivisionError
        return build_batch(records, **settings)

    monkeypatch.setattr("moldau.client.producer.producer_batch.build_batch", build)

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        await (await producer.send("orders", b"good"))
        bad = await producer.send("orders", b"bad")
        await producer.flush()
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            await bad
        await (await producer.send("orders", b"good"))
        assert [each.base_sequence for each in batches(broker)] == [0, 1]

    with_producer(test, {ApiKey.PRODUCE: answer})


def test_a_request_that_cannot_be_encoded_fails_its_batches() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        producer._cluster.request_timeout_ms = 2**40
        bad = await producer.send("orders", b"x")
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await bad
        await producer.flush()

    with_producer(test, {ApiKey.PRODUCE: answer})


def test_a_cancelled_close_fails_pending_sends_and_leaves_no_tasks() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        closing = asyncio.create_task(producer.close())
        while not broker.count(ApiKey.PRODUCE):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert isinstance(sent.exception(), KafkaError)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("moldau ")]

    with_producer(test, {ApiKey.PRODUCE: lambda _: Hang})


def test_close_waits_no_longer_than_its_timeout() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        await producer.close(timeout_ms=50)
        assert isinstance(sent.exception(), KafkaError)

    with_producer(test, {ApiKey.PRODUCE: lambda _: Hang})


def test_closing_twice_at_once_delivers_all_the_same() -> None:
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        await release.wait()
        return answer(received)

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        closing = [asyncio.create_task(producer.close()) for _ in range(2)]
        while not broker.count(ApiKey.PRODUCE):
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*closing)
        assert sent.result().offset == 0

    with_producer(test, {ApiKey.PRODUCE: slowly})


def test_cancelling_one_waiter_does_not_cancel_the_responses() -> None:
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        await release.wait()
        return answer(received)

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sent = await producer.send("orders", b"x")
        while not broker.count(ApiKey.PRODUCE):
            await asyncio.sleep(0)
        waiting = asyncio.create_task(producer._sender.wait_for_responses())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        release.set()
        assert (await sent).offset == 0

    with_producer(test, {ApiKey.PRODUCE: slowly})


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send("late", b"x"),
        lambda producer: producer.send_section("late", 0, Section(b"x", 1, 0, 0, 0)),
    ],
)
def test_a_send_waiting_for_a_topic_fails_when_the_producer_closes(send: Any) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({}, topics={"orders": 1}) as broker,
            Cluster(broker.bootstrap, retry_backoff_ms=1) as cluster,
        ):
            producer = Producer(cluster)
            await producer.start()
            sending = asyncio.create_task(send(producer))
            while broker.count(ApiKey.METADATA) < 2:
                await asyncio.sleep(0)
            await producer.close()
            broker.topics["late"] = 1
            with pytest.raises(IllegalStateError, match="not open"):
                await sending

    asyncio.run(main())


def test_sends_after_a_fatal_init_producer_id_error_fail_at_once() -> None:
    refusal = {"throttle_time": 0, "error_code": 31, "producer_id": -1, "producer_epoch": -1}

    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        sending = asyncio.create_task(producer.send("late", b"y"))
        await asyncio.sleep(0)
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await (await producer.send("orders", b"x"))
        broker.topics["late"] = 1
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await sending

    with_producer(test, {ApiKey.INIT_PRODUCER_ID: lambda _: refusal})


def test_misuse_is_reported() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        with pytest.raises(IllegalStateError, match="started only once"):
            await producer.start()
        with pytest.raises(TypeError, match="linger"):
            Producer(producer._cluster, linger=5)

    with_producer(test, {})


def test_without_acknowledgements_the_socket_holds_the_producer_back() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        for _ in range(200):
            await producer.send("orders", bytes(50_000))
        await producer.flush()
        while (
            broker.count(ApiKey.PRODUCE) < len(batches(broker)) or sum(batch.count for batch in batches(broker)) < 200
        ):
            await asyncio.sleep(0)

    with_producer(test, {ApiKey.PRODUCE: lambda _: Hang}, acks=0, idempotent=False, buffer_memory=200_000)


@pytest.mark.parametrize(
    "settings", [{"acks": 2}, {"acks": 1}, {"max_in_flight": 6}, {"max_in_flight": 0}, {"compression": "rar"}]
)
def test_invalid_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"acks|compression"):
        Producer("127.0.0.1:9092", **settings)


# Sections


def section_of(*values: bytes) -> Section:
    records = [Record(timestamp=number, value=value) for number, value in enumerate(values)]
    return Section(Batch(build_batch(records)).section, len(values), 0, len(values) - 1)


def test_a_section_is_sent_again_under_its_sequence_when_the_connection_is_lost() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        first = await producer.send_section("orders", 0, section_of(b"a", b"b"))
        assert (await first).offset == 0
        await (await producer.send_section("orders", 0, section_of(b"c")))
        sent = batches(broker)
        assert [(each.base_sequence, each.count) for each in sent] == [(0, 2), (0, 2), (2, 1)]
        assert all(each.has_valid_checksum() for each in sent)
        assert bytes(sent[0].data) == bytes(sent[1].data)

    with_producer(test, {ApiKey.PRODUCE: in_turn([lambda _: Disconnect])})


def test_a_section_does_not_linger_and_keeps_its_order() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        record = await producer.send("orders", b"a")
        section = await producer.send_section("orders", 0, section_of(b"b"))
        await asyncio.gather(record, section)
        assert [each.base_sequence for each in batches(broker)] == [0, 1]

    with_producer(test, {ApiKey.PRODUCE: answer}, linger_ms=1_000_000)


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        (Section(b"", 0, 0, 0), "at least one record"),
        (Section(b"x", 1, -1, 0), "milliseconds since 1970"),
        (Section(b"x", 1, 0, 2**63), "milliseconds since 1970"),
        (Section(b"x", 1, 0, 0, 9), "not a compression codec"),
    ],
)
def test_an_invalid_section_is_rejected(section: Section, complaint: str) -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        with pytest.raises(ValueError, match=complaint):
            await producer.send_section("orders", 0, section)

    with_producer(test, {})


def test_a_section_above_max_request_size_is_rejected_with_a_hint() -> None:
    async def test(broker: ScriptedBroker, producer: Producer) -> None:
        with pytest.raises(KafkaError, match=r"max_request_size \(500\).*batch\.size.*max\.request\.size"):
            await producer.send_section("orders", 0, section_of(b"x" * 500))
        with pytest.raises(KafkaError, match="has 1 partitions; there is no partition 1"):
            await producer.send_section("orders", 1, section_of(b"x"))

    with_producer(test, {}, max_request_size=500)


# Leader changes

NEVER_MS = 60_000


def moved(broker: ScriptedBroker, received: ReceivedRequest, epoch: int) -> Tree:
    """NOT_LEADER_OR_FOLLOWER with the new leader and its address (KIP-951): node 8, at the same address."""
    tree = answer(received, ErrorCode.not_leader_or_follower)
    for topic in tree["responses"]:
        for each in topic["partition_responses"]:
            each["current_leader"] = {"leader_id": 8, "leader_epoch": epoch}
    return {**tree, "node_endpoints": [{"node_id": 8, "host": "127.0.0.1", "port": broker.port, "rack": None}]}


def test_a_batch_goes_to_a_new_leader_without_a_backoff() -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker(topics={"orders": 1}) as broker:
            broker.scripts[ApiKey.PRODUCE] = in_turn([lambda received: moved(broker, received, epoch=1)])
            async with Producer(broker.bootstrap, retry_backoff_ms=NEVER_MS, linger_ms=0) as producer:
                assert (await (await producer.send("orders", b"x"))).offset == 0
            assert broker.count(ApiKey.PRODUCE) == 2

    asyncio.run(main())


def test_a_broker_that_names_the_same_leader_again_is_retried_after_the_backoff() -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker(topics={"orders": 1}) as broker:
            broker.scripts[ApiKey.PRODUCE] = lambda received: moved(broker, received, epoch=1)
            producer = Producer(broker.bootstrap, retry_backoff_ms=NEVER_MS, linger_ms=0)
            await producer.start()
            sent = await producer.send("orders", b"x")
            await asyncio.wait([sent], timeout=0.3)
            assert broker.count(ApiKey.PRODUCE) == 2
            await producer.abort()

    asyncio.run(main())


def test_metadata_with_a_new_leader_ends_the_backoff() -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker(topics={"orders": 1}) as broker:

            def disconnect(received: ReceivedRequest) -> ScriptedResponse:
                broker.leader_epoch = 1
                return Disconnect

            broker.scripts[ApiKey.PRODUCE] = in_turn([disconnect])
            # The backoff of refreshes is the same setting, so the first refresh after the disconnect must suffice.
            async with Producer(broker.bootstrap, retry_backoff_ms=NEVER_MS, linger_ms=0) as producer:
                assert (await (await producer.send("orders", b"x"))).offset == 0
            assert broker.count(ApiKey.PRODUCE) == 2

    asyncio.run(main())
