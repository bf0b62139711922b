"""Moldau's client for bulk readers and writers: prebuilt batches and bounded reads."""

import asyncio

import pytest

from clients.test_moldau_client import read, records_in, run, with_topic
from moldau.client import Cluster, ErrorCode, Fetcher, KafkaError, Producer, TopicPartition
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.records.batch import Batch
from moldau.records.batch_builder import Section, build_batch
from moldau.records.compression import CODECS_BY_NAME
from moldau.records.record import Record


def section_of(*values: bytes, codec: str = "none", timestamp: int = 1_700_000_000_000) -> Section:
    """The values in one section, a millisecond apart."""
    records = [Record(timestamp=timestamp + number, value=value) for number, value in enumerate(values)]
    batch = Batch(build_batch(records, compression=CODECS_BY_NAME[codec]))
    return Section(batch.section, len(values), timestamp, timestamp + len(values) - 1, CODECS_BY_NAME[codec])


async def read_up_to(cluster: Cluster, ends: dict[TopicPartition, int]) -> list[tuple[int, int, bytes | None]]:
    """Partition, offset and value of all records from the log's start up to these ends."""
    starts = await list_offsets(cluster, dict.fromkeys(ends, EARLIEST))
    found: list[tuple[int, int, bytes | None]] = []
    async with Fetcher(cluster, max_wait_ms=60_000) as fetcher:
        fetcher.assign({each: place.offset for each, place in starts.items()}, until=ends)
        while not fetcher.is_finished:
            for fetched in await fetcher.next(1_000):
                assert fetched.error is None, fetched.error
                found += [
                    (record.partition, record.offset, record.value)
                    for record in records_in(fetched)
                    if record.offset < ends[fetched.partition]
                ]
    return found


@pytest.mark.parametrize("codec", CODECS_BY_NAME)
def test_sections_and_records_are_in_the_log_in_the_order_of_their_sending(bootstrap: str, codec: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic):
            async with Producer(cluster, compression=codec) as producer:
                places = []
                for number in range(0, 50, 5):
                    values = [f"{number + each:04d}".encode() for each in range(5)]
                    places.append(await producer.send(topic, values[0]))
                    places.append(await producer.send_section(topic, 0, section_of(*values[1:3], codec=codec)))
                    places += [await producer.send(topic, value) for value in values[3:]]
            offsets = [(await place).offset for place in places]
            assert offsets == [start + each for start in range(0, 50, 5) for each in (0, 1, 3, 4)]
            assert (await places[1]).timestamp == 1_700_000_000_000
            async with Fetcher(cluster) as fetcher:
                fetcher.assign({TopicPartition(topic, 0): 0})
                records = await read(fetcher, 50)
            assert [record.value for record in records] == [f"{each:04d}".encode() for each in range(50)]
            assert [record.timestamp for record in records[1:3]] == [1_700_000_000_000, 1_700_000_000_001]

    run(test())


def test_a_section_too_large_for_the_topic_fails_and_later_records_are_written(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap, max_message_bytes="1000") as (cluster, topic), Producer(cluster) as producer:
            await (await producer.send_section(topic, 0, section_of(b"first")))
            large = await producer.send_section(topic, 0, section_of(b"x" * 600, b"y" * 600))
            small = await producer.send_section(topic, 0, section_of(b"last"))
            with pytest.raises(KafkaError, match=r"batch\.size.*max\.message\.bytes") as failure:
                await large
            assert failure.value.code is ErrorCode.message_too_large
            assert (await small).offset == 1

    run(test())


def test_send_section_waits_while_the_buffer_is_full(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic), Producer(cluster, buffer_memory=5_000) as producer:
            sections = [section_of(f"{number:03d}".encode() * 300) for number in range(30)]
            futures = [await producer.send_section(topic, 0, section) for section in sections]
            assert [(await each).offset for each in futures] == list(range(30))

    run(test())


def test_a_bounded_read_returns_everything_up_to_its_end(bootstrap: str) -> None:
    """Every read is behind the last on the same connection: a long poll left there would take a minute."""

    async def test() -> None:
        async with with_topic(bootstrap, 3) as (cluster, topic):
            async with Producer(cluster, batch_size=200) as producer:
                for number in range(300):
                    await producer.send(topic, b"%d" % number, partition=number % 3)
            partitions = [TopicPartition(topic, index) for index in range(3)]
            latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
            whole = {each: place.offset for each, place in latest.items()}
            for ends in (whole, {partitions[0]: 50, partitions[2]: 33}, {partitions[1]: 1}):
                found = await read_up_to(cluster, ends)
                expected = {(each.partition, offset) for each, end in ends.items() for offset in range(end)}
                assert len(found) == len(expected)
                assert {(partition, offset) for partition, offset, _ in found} == expected
                assert all(value == b"%d" % (offset * 3 + partition) for partition, offset, value in found)

    run(test())


def test_a_bounded_read_waits_for_records_that_are_not_written_yet(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topic(bootstrap) as (cluster, topic), Producer(cluster) as producer:
            await (await producer.send(topic, b"one"))
            reading = asyncio.ensure_future(read_up_to(cluster, {TopicPartition(topic, 0): 2}))
            await asyncio.sleep(0.1)
            assert not reading.done()
            await (await producer.send(topic, b"two"))
            assert await reading == [(0, 0, b"one"), (0, 1, b"two")]

    run(test())
