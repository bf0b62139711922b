"""Moldau's own client: admin, producer and fetcher. The same tests run against Apache Kafka."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaProducer as KafkaPythonProducer

from moldau.client import Admin, Cluster, ErrorCode, Fetcher, KafkaError, Producer, TopicPartition
from moldau.client.admin.types import (
    ConfigChange,
    ConfigResource,
    ConfigSource,
    MemberToRemove,
    NewTopic,
    Operation,
    ResourceType,
)
from moldau.client.consumer.completed_fetch import CompletedFetch
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.net.api_versions import SUPPORTED_VERSIONS, VersionRange
from moldau.client.record import ConsumerRecord, decode_records
from support.topics import unique

DEADLINE_S = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(limited())


@asynccontextmanager
async def with_topic(bootstrap: str, partitions: int = 1, **configs: str) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster and a topic on it that can be used."""
    async with Cluster(bootstrap) as cluster, Admin(cluster) as admin:
        name = unique()
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.create_topic(name, partitions, 1, named)
        for index in range(partitions):
            await cluster.leader_of(TopicPartition(name, index))
        yield cluster, name


async def read(fetcher: Fetcher, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        for fetched in await fetcher.next(1_000):
            assert fetched.error is None, fetched.error
            records += records_in(fetched)
    return records


def records_in(fetched: CompletedFetch) -> Iterable[ConsumerRecord]:
    for batch in fetched.batches:
        yield from decode_records(fetched.partition, batch, fetched.position)


async def error_of(fetcher: Fetcher) -> KafkaError:
    while True:
        for fetched in await fetcher.next(1_000):
            if fetched.error is not None:
                return fetched.error


# Producing and fetching


@pytest.mark.parametrize("codec", CODECS)
def test_produced_records_are_fetched(bootstrap: str, codec: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 3) as (cluster, topic):
            async with Producer(cluster, compression=codec) as producer:
                sent = [
                    await producer.send(
                        topic,
                        f"value-{number}".encode() * 20,
                        key=f"key-{number}".encode(),
                        timestamp_ms=1_700_000_000_000 + number,
                        headers=[("number", str(number).encode()), ("null", None)],
                    )
                    for number in range(500)
                ]
                await producer.flush()
                places = [each.result() for each in sent]
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, index): 0 for index in range(3)})
                found = {(each.partition, each.offset): each for each in await read(fetcher, 500)}
            assert len(found) == 500
            for number, place in enumerate(places):
                record = found[place.partition, place.offset]
                assert record.value == f"value-{number}".encode() * 20
                assert record.key == f"key-{number}".encode()
                assert record.timestamp == place.timestamp == 1_700_000_000_000 + number
                assert record.headers == (("number", str(number).encode()), ("null", None))

    run(test())


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_the_producers_records(bootstrap: str, codec: str) -> None:
    async def test() -> str:
        async with with_topic(bootstrap) as (cluster, topic), Producer(cluster, compression=codec) as producer:
            for number in range(300):
                await producer.send(topic, f"value-{number}".encode(), headers=[("h", b"1")])
            await producer.flush()
            return topic

    topic = asyncio.run(test())
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    messages: list[Any] = []
    while len(messages) < 300:
        got = consumer.consume(300, 10)
        assert got, "nothing more comes"
        messages += got
    consumer.close()
    assert [message.value() for message in messages] == [f"value-{number}".encode() for number in range(300)]


def test_the_fetcher_reads_records_of_kafka_python(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic):
            producer = KafkaPythonProducer(bootstrap_servers=bootstrap, compression_type="gzip")
            for number in range(100):
                producer.send(topic, f"value-{number}".encode())
            await asyncio.to_thread(producer.close)
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0})
                assert [each.value for each in await read(fetcher, 100)] == [
                    f"value-{number}".encode() for number in range(100)
                ]

    run(test())


def test_records_of_a_partition_keep_their_order_and_are_written_once(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic):
            async with Producer(cluster, batch_size=500, linger_ms=0) as producer:
                sent = [await producer.send(topic, str(number).encode()) for number in range(2_000)]
                assert [(await each).offset for each in sent] == list(range(2_000))
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0})
                assert [each.value for each in await read(fetcher, 2_000)] == [
                    str(number).encode() for number in range(2_000)
                ]

    run(test())


def test_keyless_records_of_a_batch_go_to_one_partition_and_batches_spread(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 4) as (cluster, topic), Producer(cluster, linger_ms=1_000) as producer:
            partitions = []
            # So many that random choices leave no partition out.
            for _ in range(100):
                sent = [await producer.send(topic, b"x") for _ in range(5)]
                await producer.flush()
                (partition,) = {each.result().partition for each in sent}
                partitions.append(partition)
            assert len(set(partitions)) == 4
            assert all(one != other for one, other in itertools.pairwise(partitions))

    run(test())


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producer_that_is_not_idempotent(bootstrap: str, acks: int) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic):
            async with Producer(cluster, acks=acks, idempotent=False) as producer:
                sent = await producer.send(topic, b"x")
                assert (await sent).offset == (-1 if acks == 0 else 0)
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0})
                assert [each.value for each in await read(fetcher, 1)] == [b"x"]

    run(test())


def test_the_log_append_time_is_returned(bootstrap: str) -> None:
    async def test() -> None:
        async with (
            with_topic(bootstrap, message_timestamp_type="LogAppendTime") as (cluster, topic),
            Producer(cluster) as producer,
        ):
            place = await (await producer.send(topic, b"x", timestamp_ms=5))
            assert place.timestamp > 1_700_000_000_000
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0})
                (record,) = await read(fetcher, 1)
                assert record.is_log_append_time
                assert record.timestamp == place.timestamp

    run(test())


def test_a_batch_the_broker_finds_too_large_is_split(bootstrap: str) -> None:
    async def test() -> None:
        async with (
            with_topic(bootstrap, max_message_bytes="2000") as (cluster, topic),
            Producer(cluster, linger_ms=1_000) as producer,
        ):
            sent = [await producer.send(topic, bytes([number]) * 300) for number in range(40)]
            await producer.flush()
            assert [each.result().offset for each in sent] == list(range(40))
            alone = await producer.send(topic, b"x" * 5_000)
            after = await producer.send(topic, b"y")
            with pytest.raises(KafkaError) as raised:
                await alone
            assert raised.value.code is ErrorCode.message_too_large
            assert (await after).offset == 40

    run(test())


def test_a_rejected_batch_fails_without_blocking_others(bootstrap: str) -> None:
    async def test() -> None:
        async with (
            with_topic(bootstrap, cleanup_policy="compact") as (cluster, topic),
            Producer(cluster, linger_ms=0) as producer,
        ):
            assert (await (await producer.send(topic, b"x", key=b"k"))).offset == 0
            bad = await producer.send(topic, b"without a key")
            await producer.flush()
            good = [await producer.send(topic, b"x", key=b"k") for _ in range(3)]
            with pytest.raises(KafkaError) as raised:
                await bad
            assert raised.value.code is ErrorCode.invalid_record
            assert [(await each).offset for each in good] == [1, 2, 3]

    run(test())


def test_sending_to_an_invalid_topic_or_partition_is_rejected(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Producer(cluster, max_block_ms=2_000) as producer:
            with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*2 partitions; there is no partition 7"):
                await producer.send(topic, b"x", partition=7)
            with pytest.raises(KafkaError, match="INVALID_TOPIC"):
                await producer.send("not a name", b"x")
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.send(topic, b"x" * 2_000_000)

    run(test())


def test_send_waits_while_the_buffer_is_full(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic):
            async with Producer(cluster, buffer_memory=5_000, batch_size=1_000, linger_ms=1_000) as producer:
                many = [asyncio.create_task(producer.send(topic, b"x" * 400)) for _ in range(100)]
                places = [await (await each) for each in many]
            assert sorted(place.offset for place in places) == list(range(100))

    run(test())


# Fetching


def test_an_offset_out_of_range_is_reported_and_a_seek_resumes(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic), Producer(cluster) as producer:
            partition = TopicPartition(topic, 0)
            for number in range(5):
                await producer.send(topic, str(number).encode())
            await producer.flush()
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({partition: 99})
                assert (await error_of(fetcher)).code is ErrorCode.offset_out_of_range
                assert await fetcher.next(100) == []
                fetcher.seek(partition, 3)
                assert [each.value for each in await read(fetcher, 2)] == [b"3", b"4"]
                assert fetcher.position(partition) == 5
                assert fetcher.high_watermark(partition) == 5

    run(test())


def test_a_seek_drops_batches_fetched_before(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic), Producer(cluster, batch_size=100) as producer:
            partition = TopicPartition(topic, 0)
            for number in range(50):
                await producer.send(topic, str(number).encode())
            await producer.flush()
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({partition: 0})
                for offset in (40, 7, 23, 0, 49):
                    fetcher.seek(partition, offset)
                    first = (await read(fetcher, 1))[0]
                    assert first.offset == offset

    run(test())


def test_a_paused_partition_returns_nothing_until_resumed(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Producer(cluster) as producer:
            one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
            async with Fetcher(cluster, max_wait_ms=50) as fetcher:
                fetcher.assign({one: 0, two: 0})
                fetcher.pause([one])
                for number in range(10):
                    await producer.send(topic, b"x", partition=number % 2)
                await producer.flush()
                assert {each.partition for each in await read(fetcher, 5)} == {1}
                assert await fetcher.next(100) == []
                fetcher.resume([one])
                assert {each.partition for each in await read(fetcher, 5)} == {0}

    run(test())


def test_a_long_poll_returns_new_records(bootstrap: str) -> None:
    async def test() -> None:
        async with (
            with_topic(bootstrap) as (cluster, topic),
            Producer(cluster) as producer,
            Fetcher(cluster, max_wait_ms=10_000) as fetcher,
        ):
            fetcher.assign({TopicPartition(topic, 0): 0})
            assert await fetcher.next(100) == []
            waiting = asyncio.create_task(read(fetcher, 1))
            await producer.send(topic, b"x")
            assert [each.value for each in await waiting] == [b"x"]

    run(test())


def test_small_limits_bring_everything_in_small_parts(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Producer(cluster, batch_size=1_000) as producer:
            for number in range(200):
                await producer.send(topic, bytes(100), partition=number % 2)
            await producer.flush()
            async with Fetcher(
                cluster, max_bytes=3_000, partition_max_bytes=1_500, buffered_bytes_max=4_000
            ) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
                records = await read(fetcher, 200)
                for index in range(2):
                    offsets = [each.offset for each in records if each.partition == index]
                    assert offsets == list(range(100))

    run(test())


# Administration


def test_topics_are_created_listed_described_grown_and_deleted(bootstrap: str) -> None:
    async def test() -> None:
        name = unique()
        async with Admin(bootstrap) as admin:
            created = await admin.create_topic(name, 3, 1, {"retention.ms": "5000"})
            assert (created.partitions, created.replication_factor) == (3, 1)
            assert created.configs["retention.ms"] == "5000"
            await admin.cluster.wait_for_topics([name])
            described = await admin.describe_topic(name)
            assert [each.index for each in described.partitions] == [0, 1, 2]
            assert described.topic_id == created.topic_id
            assert name in [topic.name for topic in await admin.list_topics()]
            assert await admin.create_partitions({name: 5}) == {name: None}
            while len((await admin.describe_topic(name)).partitions) < 5:
                await asyncio.sleep(0.01)
            await admin.delete_topic(name)
            while name in [topic.name for topic in await admin.list_topics()]:
                await asyncio.sleep(0.01)
            with pytest.raises(KafkaError) as raised:
                await admin.describe_topic(name)
            assert raised.value.code is ErrorCode.unknown_topic_or_partition

    run(test())


def test_each_topic_has_its_own_result(bootstrap: str) -> None:
    async def test() -> None:
        good, other = unique(), unique()
        async with Admin(bootstrap) as admin:
            results = await admin.create_topics(
                [
                    NewTopic(good, 1, 1),
                    NewTopic("not a name", 1, 1),
                    NewTopic(other, 1, 99),
                    NewTopic(unique(), 1, 1, {"retention.ms": "soon"}),
                ]
            )
            codes = [each.code if isinstance(each, KafkaError) else None for each in results.values()]
            assert codes == [
                None,
                ErrorCode.invalid_topic_exception,
                ErrorCode.invalid_replication_factor,
                ErrorCode.invalid_config,
            ]
            with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topic(good, 1, 1)
            deleted = await admin.delete_topics([good, other])
            assert deleted[good] is None
            missing = deleted[other]
            assert isinstance(missing, KafkaError)
            assert missing.code is ErrorCode.unknown_topic_or_partition
            assert not [name for name in [other] if name in [each.name for each in await admin.list_topics()]]

    run(test())


def test_validate_only_creates_nothing(bootstrap: str) -> None:
    async def test() -> None:
        name = unique()
        async with Admin(bootstrap) as admin:
            results = await admin.create_topics([NewTopic(name, 2, 1)], validate_only=True)
            assert not isinstance(results[name], KafkaError)
            assert name not in [topic.name for topic in await admin.list_topics()]

    run(test())


def test_configs_are_described_and_altered_one_by_one(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, retention_ms="7000") as (cluster, topic), Admin(cluster) as admin:
            configs = await admin.topic_configs(topic)
            assert configs["retention.ms"].value == "7000"
            assert configs["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC
            assert configs["cleanup.policy"].is_default
            resource = ConfigResource(ResourceType.TOPIC, topic)
            changes = [
                ConfigChange("segment.bytes", "2000000"),
                ConfigChange("cleanup.policy", "compact", Operation.APPEND),
                ConfigChange("retention.ms", None, Operation.DELETE),
            ]
            assert await admin.alter_configs({resource: changes}) == {resource: None}
            while (configs := await admin.topic_configs(topic))["segment.bytes"].value != "2000000":
                await asyncio.sleep(0.01)
            assert configs["cleanup.policy"].value == "delete,compact"
            assert configs["retention.ms"].value != "7000"
            with pytest.raises(KafkaError) as raised:
                await admin.alter_topic_configs(topic, {"retention.ms": "soon"})
            assert raised.value.code is ErrorCode.invalid_config
            node = (await admin.describe_cluster()).brokers[0].node_id
            broker = ConfigResource(ResourceType.BROKER, str(node))
            described = (await admin.describe_configs([broker], documentation=True))[broker]
            assert not isinstance(described, KafkaError)
            assert described["message.max.bytes"].value is not None
            assert described["message.max.bytes"].documentation

    run(test())


def test_the_cluster_and_its_log_directories_are_described(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Admin(cluster) as admin, Producer(cluster) as producer:
            await (await producer.send(topic, b"x" * 1_000, partition=1))
            described = await admin.describe_cluster()
            assert described.cluster_id == cluster.cluster_id
            assert {broker.node_id: broker for broker in described.brokers} == cluster.brokers
            (directories,) = (await admin.describe_log_dirs()).values()
            assert not isinstance(directories, KafkaError)
            replicas = {key: each for each in directories for key, each in each.replicas.items()}
            assert replicas[TopicPartition(topic, 1)].size > 1_000
            assert replicas[TopicPartition(topic, 0)].size == 0

    run(test())


def test_offsets_are_listed_by_place_and_by_time(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Admin(cluster) as admin:
            one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
            async with Producer(cluster, linger_ms=0, batch_size=1) as producer:
                for timestamp in (1_000, 3_000, 2_000):
                    await (await producer.send(topic, b"x", partition=0, timestamp_ms=timestamp))

            async def offset(time: int) -> dict[TopicPartition, int]:
                found = await admin.list_offsets({one: time, two: time})
                return {partition: each.offset for partition, each in found.items()}

            assert await offset(LATEST) == {one: 3, two: 0}
            assert await offset(EARLIEST) == {one: 0, two: 0}
            assert await offset(MAX_TIMESTAMP) == {one: 1}
            assert await offset(1_500) == {one: 1}
            assert await offset(9_000) == {}
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.list_offsets({TopicPartition(topic, 2): LATEST})

    run(test())


def test_records_are_deleted_up_to_an_offset(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic), Admin(cluster) as admin, Producer(cluster) as producer:
            partition, missing = TopicPartition(topic, 0), TopicPartition(topic, 3)
            for _ in range(10):
                await producer.send(topic, b"x")
            await producer.flush()
            results = await admin.delete_records({partition: 4, missing: 1})
            assert results[partition] == 4
            refusal = results[missing]
            assert isinstance(refusal, KafkaError)
            assert refusal.code is ErrorCode.unknown_topic_or_partition
            assert (await admin.list_offsets({partition: EARLIEST}))[partition].offset == 4
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({partition: 0})
                assert (await error_of(fetcher)).code is ErrorCode.offset_out_of_range
            too_far = (await admin.delete_records({partition: 99}))[partition]
            assert isinstance(too_far, KafkaError)
            assert too_far.code is ErrorCode.offset_out_of_range

    run(test())


# Groups


def test_a_groups_offsets_are_set_listed_and_deleted(bootstrap: str) -> None:
    async def test() -> None:
        group = unique("group")
        async with with_topic(bootstrap, 3) as (cluster, topic), Admin(cluster) as admin:
            one, two, three = (TopicPartition(topic, index) for index in range(3))
            assert await admin.list_group_offsets(group) == {}
            offsets = {one: OffsetAndMetadata(5, "why", 0), two: 7}
            assert await admin.alter_group_offsets(group, offsets) == {one: None, two: None}
            assert await admin.list_group_offsets(group) == {
                one: OffsetAndMetadata(5, "why", 0),
                two: OffsetAndMetadata(7),
            }
            assert list(await admin.list_group_offsets(group, [two, three])) == [two]
            deleted = await admin.delete_group_offsets(group, [one])
            assert deleted == {one: None}
            assert list(await admin.list_group_offsets(group)) == [two]
            missing = TopicPartition(unique(), 0)
            refused = (await admin.alter_group_offsets(group, {missing: 1}))[missing]
            assert isinstance(refused, KafkaError)
            assert refused.code is ErrorCode.unknown_topic_or_partition

    run(test())


def test_groups_are_listed_described_and_deleted(bootstrap: str) -> None:
    async def test() -> None:
        group, other = unique("group"), unique("group")
        async with with_topic(bootstrap) as (cluster, topic), Admin(cluster) as admin:
            await admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
            described = await admin.describe_group(group)
            assert (described.state, described.members) == ("Empty", ())
            assert described.coordinator in cluster.brokers
            with pytest.raises(KafkaError) as raised:
                await admin.describe_group(other)
            assert raised.value.code is ErrorCode.group_id_not_found
            listed = {each.group_id: each for each in await admin.list_groups()}
            assert (listed[group].state, listed[group].type) == ("Empty", "classic")
            assert group in [each.group_id for each in await admin.list_groups(states=["Empty"])]
            assert group not in [each.group_id for each in await admin.list_groups(states=["Stable"])]
            assert group in [each.group_id for each in await admin.list_groups(types=["classic"])]
            assert group not in [each.group_id for each in await admin.list_groups(types=["consumer"])]
            deleted = await admin.delete_groups([group, other])
            assert deleted[group] is None
            refused = deleted[other]
            assert isinstance(refused, KafkaError)
            assert refused.code is ErrorCode.group_id_not_found
            assert group not in [each.group_id for each in await admin.list_groups()]

    run(test())


def test_members_are_described_and_removed(bootstrap: str) -> None:
    group = unique("group")

    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Admin(cluster) as admin:
            consumer = ConfluentConsumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": group,
                    "group.instance.id": "static-1",
                    "client.id": "someone",
                    "partition.assignment.strategy": "range",
                    # Its heartbeats would tell it that it was removed, and it would join again.
                    "session.timeout.ms": 60_000,
                    "heartbeat.interval.ms": 50_000,
                    "log_level": 0,
                }
            )
            consumer.subscribe([topic])
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
            described = await admin.describe_group(group)
            assert (described.state, described.protocol_type, described.assignor) == ("Stable", "consumer", "range")
            (member,) = described.members
            assert (member.instance_id, member.client_id) == ("static-1", "someone")
            assert member.topics == (topic,)
            assert sorted(member.assignment) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
            (listed,) = [each for each in await admin.list_groups() if each.group_id == group]
            assert listed.protocol_type == "consumer"
            with pytest.raises(KafkaError) as raised:
                await admin.delete_group(group)
            assert raised.value.code is ErrorCode.non_empty_group
            partition = TopicPartition(topic, 0)
            refused = (await admin.alter_group_offsets(group, {partition: 1}))[partition]
            assert isinstance(refused, KafkaError)
            assert refused.code is ErrorCode.unknown_member_id
            subscribed = (await admin.delete_group_offsets(group, [partition]))[partition]
            assert isinstance(subscribed, KafkaError)
            assert subscribed.code is ErrorCode.group_subscribed_to_topic
            unknown = MemberToRemove(instance_id="nobody")
            removed = await admin.remove_members(group, [MemberToRemove(instance_id="static-1"), unknown])
            failure = removed.pop(unknown)
            assert isinstance(failure, KafkaError)
            assert failure.code is ErrorCode.unknown_member_id
            assert list(removed.values()) == [None]
            assert (await admin.describe_group(group)).members == ()
            consumer.close()

    run(test())


# Versions


def test_the_lowest_versions_do_the_same_as_the_highest(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = {api: VersionRange(each.minimum, each.minimum) for api, each in SUPPORTED_VERSIONS.items()}
    monkeypatch.setattr("moldau.client.net.api_versions.SUPPORTED_VERSIONS", lowest)

    async def test() -> None:
        async with with_topic(bootstrap, 2) as (cluster, topic), Admin(cluster) as admin:
            async with Producer(cluster) as producer:
                for _ in range(10):
                    await producer.send(topic, b"x")
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, index): 0 for index in range(2)})
                assert len(await read(fetcher, 10)) == 10
            assert (await admin.topic_configs(topic))["cleanup.policy"].value == "delete"
            await admin.alter_topic_configs(topic, {"retention.ms": "1000"})
            assert (await admin.describe_cluster()).brokers
            assert await admin.describe_log_dirs()
            assert await admin.create_partitions({topic: 3}) == {topic: None}
            partition = TopicPartition(topic, 0)
            assert await admin.delete_records({partition: 0}) == {partition: 0}
            assert (await admin.list_offsets({partition: EARLIEST}))[partition].offset == 0
            await admin.delete_topic(topic)

    run(test())
