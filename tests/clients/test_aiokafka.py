"""aiokafka, unchanged: producing, consuming by assignment, and its admin client."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka.codec
import aiokafka.errors as errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from support.topics import Topics, unique, wait_for_external_broker
from support.wire import stored_codec

DEADLINE_S = 20
HOUR_MS = 3_600_000


@asynccontextmanager
async def producing(bootstrap: str, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, *assigned: TopicPartition, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {"auto_offset_reset": "earliest", **settings}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, **settings)
    await consumer.start()
    try:
        consumer.assign(list(assigned))
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def read(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    return [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_are_read(bootstrap: str, topics: Topics, codec: str | None) -> None:
    if codec is not None and not getattr(aiokafka.codec, f"has_{codec}")():
        pytest.skip(f"aiokafka needs the package cramjam for {codec}")
    topic = topics.create()
    values = [b"%d " % number * 100 for number in range(200)]

    async def scenario() -> None:
        async with producing(bootstrap, compression_type=codec, linger_ms=5) as producer:
            waiting = [await producer.send(topic, value) for value in values]
            assert [(await future).offset for future in waiting] == list(range(200))
        async with consuming(bootstrap, TopicPartition(topic, 0)) as consumer:
            assert [record.value for record in await read(consumer, 200)] == values
        assert stored_codec(bootstrap, topic) == (codec or "none")

    asyncio.run(scenario())


def test_keys_headers_timestamps_and_null_values_round_trip(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("trace", b"again")]
    now = int(time.time() * 1000)

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            await producer.send_and_wait(topic, b"value", key=b"key", headers=headers, timestamp_ms=now)
            await producer.send_and_wait(topic, None, key=b"tombstone")
        async with consuming(bootstrap, TopicPartition(topic, 0)) as consumer:
            full, tombstone = await read(consumer, 2)
        assert (full.key, full.value, list(full.headers)) == (b"key", b"value", headers)
        assert (full.timestamp, full.timestamp_type) == (now, 0)
        assert (tombstone.key, tombstone.value) == (b"tombstone", None)

    asyncio.run(scenario())


@pytest.mark.parametrize("settings", [{"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}], ids=str)
def test_acknowledged_records_carry_their_offsets(bootstrap: str, topics: Topics, settings: dict[str, Any]) -> None:
    topic = topics.create()

    async def scenario() -> None:
        async with producing(bootstrap, **settings) as producer:
            assert [(await producer.send_and_wait(topic, b"x")).offset for _ in range(5)] == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_records_sent_without_acknowledgement_arrive(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()

    async def scenario() -> None:
        async with producing(bootstrap, acks=0) as producer:
            await producer.send_and_wait(topic, b"a")
            await producer.send_and_wait(topic, b"b")
        async with consuming(bootstrap, TopicPartition(topic, 0)) as consumer:
            assert [record.value for record in await read(consumer, 2)] == [b"a", b"b"]

    asyncio.run(scenario())


def test_consuming_starts_at_the_given_position(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    partition = TopicPartition(topic, 0)
    start = int(time.time() * 1000) - HOUR_MS

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number, timestamp_ms=start + number * 1000)
        async with consuming(bootstrap, partition) as consumer:
            consumer.seek(partition, 7)
            assert [record.offset for record in await read(consumer, 3)] == [7, 8, 9]
            await consumer.seek_to_beginning(partition)
            assert [record.offset for record in await read(consumer, 2)] == [0, 1]
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == 10
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 10}
            found = (await consumer.offsets_for_times({partition: start + 2500}))[partition]
            assert (found.offset, found.timestamp) == (3, start + 3000)
            assert (await consumer.offsets_for_times({partition: start + HOUR_MS}))[partition] is None

    asyncio.run(scenario())


def test_an_offset_out_of_range_is_an_error_where_no_reset_is_set(bootstrap: str, topics: Topics) -> None:
    partition = TopicPartition(topics.create(), 0)

    async def scenario() -> None:
        async with consuming(bootstrap, partition, auto_offset_reset="none") as consumer:
            consumer.seek(partition, 77)
            with pytest.raises(errors.OffsetOutOfRangeError):
                await read(consumer, 1)

    asyncio.run(scenario())


def test_a_message_above_max_message_bytes_is_rejected(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=10_000)

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            with pytest.raises(errors.MessageSizeTooLargeError):
                await producer.send_and_wait(topic, bytes(20_000))
            assert (await producer.send_and_wait(topic, b"small")).offset == 0

    asyncio.run(scenario())


def test_large_messages_round_trip(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=12_000_000)
    value = bytes(range(256)) * 40_000

    async def scenario() -> None:
        async with producing(bootstrap, max_request_size=11_000_000) as producer:
            await producer.send_and_wait(topic, value)
        async with consuming(bootstrap, TopicPartition(topic, 0)) as consumer:
            assert (await read(consumer, 1))[0].value == value

    asyncio.run(scenario())


def test_a_compacted_topic_rejects_records_without_a_key(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact")

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            with pytest.raises(errors.KafkaError):
                await producer.send_and_wait(topic, b"keyless")
            assert (await producer.send_and_wait(topic, b"keyed", key=b"key")).offset == 0

    asyncio.run(scenario())


def test_records_of_a_log_append_time_topic_carry_the_brokers_time(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            sent = await producer.send_and_wait(topic, b"a", timestamp_ms=before - HOUR_MS)
        async with consuming(bootstrap, TopicPartition(topic, 0)) as consumer:
            (record,) = await read(consumer, 1)
        assert record.timestamp_type == 1
        assert before <= record.timestamp <= int(time.time() * 1000)
        assert sent.timestamp == record.timestamp

    asyncio.run(scenario())


def test_producing_to_an_unknown_topic_creates_it(bootstrap: str) -> None:
    topic = unique("created-by-producing")

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            assert (await producer.send_and_wait(topic, b"first")).offset == 0

    asyncio.run(scenario())


def test_a_topic_is_created_described_altered_and_deleted(bootstrap: str) -> None:
    name = unique()

    async def scenario() -> None:
        async with administering(bootstrap) as admin:
            new = NewTopic(name, num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "5000"})
            created = await admin.create_topics([new])
            wait_for_external_broker()
            assert [(topic, code) for topic, code, *_ in created.topic_errors] == [(name, 0)]
            again = await admin.create_topics([new])
            assert [(topic, code) for topic, code, *_ in again.topic_errors] == [(name, 36)]
            (described,) = await admin.describe_topics([name])
            assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1]

            async def value(key: str) -> str:
                resource = ConfigResource(ConfigResourceType.TOPIC, name, {key: None})
                (answer,) = await admin.describe_configs([resource])
                ((code, _, _, _, entries),) = answer.resources
                assert code == 0
                found: str = entries[0][1]
                return found

            assert await value("retention.ms") == "5000"
            change = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "6000"})
            await admin.alter_configs([change])
            wait_for_external_broker()
            assert await value("retention.ms") == "6000"
            await admin.create_partitions({name: NewPartitions(4)})
            wait_for_external_broker()
            assert len((await admin.describe_topics([name]))[0]["partitions"]) == 4
            with pytest.raises(errors.InvalidPartitionsError):
                await admin.create_partitions({name: NewPartitions(1)})
            deleted = await admin.delete_topics([name])
            assert list(deleted.topic_error_codes) == [(name, 0)]
            wait_for_external_broker()
            assert name not in await admin.list_topics()

    asyncio.run(scenario())


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topics: Topics) -> None:
    partition = TopicPartition(topics.create(), 0)

    async def scenario() -> None:
        async with producing(bootstrap) as producer:
            for _ in range(5):
                await producer.send_and_wait(partition.topic, b"x")
        async with administering(bootstrap) as admin:
            assert await admin.delete_records({partition: RecordsToDelete(3)}) == {partition: 3}
            with pytest.raises(errors.OffsetOutOfRangeError):
                await admin.delete_records({partition: RecordsToDelete(100)})
        async with consuming(bootstrap, partition) as consumer:
            assert await consumer.beginning_offsets([partition]) == {partition: 3}

    asyncio.run(scenario())


def test_the_cluster_is_described(bootstrap: str) -> None:
    async def scenario() -> None:
        async with administering(bootstrap) as admin:
            cluster = await admin.describe_cluster()
            (broker,) = cluster["brokers"]
            assert f"{broker['host']}:{broker['port']}" == bootstrap
            assert cluster["controller_id"] == broker["node_id"]
            assert len(cluster["cluster_id"]) == 22

    asyncio.run(scenario())


def test_a_transactional_producer_starts(bootstrap: str) -> None:
    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer:
            async with producer.transaction():
                pass
            await producer.begin_transaction()
            await producer.abort_transaction()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
