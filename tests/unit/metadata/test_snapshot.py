"""Snapshots of images: round trip, loading, and generation when due."""

import asyncio
import gc
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.errors import StorageError
from moldau.metadata.image import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.metadata.image_builder import apply_changes, delta_between
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import TopicRecord, decode, encode
from moldau.metadata.snapshot import image_from_records, image_to_records
from moldau.metadata.snapshot_generator import SnapshotGenerator
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text("abcdefgh.-_", min_size=1, max_size=8)
ids = st.integers(0, 6)
epochs = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**62)
uuids = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
replica_sets = st.lists(ids, max_size=4, unique=True).map(tuple)

endpoints = st.builds(Endpoint, names, texts, st.integers(0, 65_535), st.integers(0, 3))
brokers = st.lists(
    st.builds(
        BrokerRegistration,
        ids,
        offsets,
        uuids,
        st.lists(endpoints, max_size=3).map(tuple),
        st.none() | texts,
        st.booleans(),
        st.booleans(),
        st.lists(st.tuples(names, st.integers(0, 5), st.integers(0, 32_767)), max_size=3).map(tuple),
    ),
    max_size=4,
).map(lambda found: {each.broker_id: each for each in found})


@st.composite
def topics(draw: Any) -> dict[str, TopicImage]:
    made: dict[str, TopicImage] = {}
    topic_ids: set[UUID] = set()
    for name in draw(st.lists(names, max_size=4, unique=True)):
        topic_id = draw(uuids.filter(lambda found: found not in topic_ids))
        topic_ids.add(topic_id)
        partitions = [
            PartitionRegistration(
                index,
                draw(replica_sets),
                draw(replica_sets),
                draw(st.integers(-1, 6)),
                draw(epochs),
                draw(epochs),
                draw(replica_sets),
                draw(replica_sets),
                draw(replica_sets),
                draw(replica_sets),
                draw(st.booleans()),
            )
            for index in range(draw(st.integers(0, 3)))
        ]
        made[name] = TopicImage(name, topic_id, tuple(partitions))
    return made


configs = st.dictionaries(
    st.builds(ConfigResource, st.sampled_from([2, 4, 8, 16, 32]), names),
    st.dictionaries(names, texts, min_size=1, max_size=3),
    max_size=4,
)


@st.composite
def images(draw: Any) -> MetadataImage:
    of_topics = draw(topics())
    return MetadataImage(
        cluster_id="cluster",
        offset=draw(offsets),
        controller_epoch=draw(epochs),
        controller_id=draw(st.integers(-1, 6)),
        features=MappingProxyType(draw(st.dictionaries(names, st.integers(1, 2**15 - 1), max_size=3))),
        brokers=MappingProxyType(draw(brokers)),
        topics=MappingProxyType(of_topics),
        topic_names=MappingProxyType({topic.topic_id: name for name, topic in of_topics.items()}),
        configs=MappingProxyType(draw(configs)),
        next_producer_id=draw(offsets),
    )


def round_trip(image: MetadataImage) -> MetadataImage:
    values = [encode(record) for record in image_to_records(image)]
    return image_from_records(
        map(decode, values),
        cluster_id="cluster",
        end_offset=image.offset + 1,
        epoch=image.controller_epoch,
        leader_id=image.controller_id,
    )


@given(images())
@settings(max_examples=200)
def test_an_image_is_rebuilt_from_its_records(image: MetadataImage) -> None:
    found = round_trip(image)
    assert found == image
    assert list(found.topics) == list(image.topics)
    assert list(found.brokers) == list(image.brokers)


@given(images(), images())
@settings(max_examples=100)
def test_the_delta_between_two_images_names_every_difference(old: MetadataImage, new: MetadataImage) -> None:
    delta = delta_between(old, new)
    assert delta_between(old, old) == MetadataDelta()
    for name, topic in new.topics.items():
        known = old.topics.get(name)
        is_new = known is None or known.topic_id != topic.topic_id
        assert (name in delta.topics_created) == is_new
        assert (known in delta.topics_deleted) == (known is not None and is_new)
        for partition in topic.partitions:
            was = None if known is None or is_new else old.partition(name, partition.index)
            assert ((name, partition.index) in delta.partitions_changed) == (was != partition)
    for name, topic in old.topics.items():
        if name not in new.topics:
            assert topic in delta.topics_deleted
    for resource in {**old.configs, **new.configs}:
        changed = old.configs.get(resource) != new.configs.get(resource)
        assert (resource in delta.configs_changed) == changed
    for broker_id in {**old.brokers, **new.brokers}:
        changed = old.brokers.get(broker_id) != new.brokers.get(broker_id)
        assert (broker_id in delta.brokers_changed) == changed


# Loading


def topic(name: str, offset: int) -> CommittedBatch:
    record = TopicRecord(name=name, topic_id=UUID(int=100 + offset))
    return CommittedBatch(offset, offset, 1, (encode(record),))


def snapshot_of(*batches: CommittedBatch, end_offset: int, epoch: int = 4) -> tuple[list[bytes], SnapshotId]:
    return [value for batch in batches for value in batch.values], SnapshotId(end_offset, epoch)


class RecordingPublisher:
    def __init__(self, loader: MetadataLoader) -> None:
        self.deltas: list[MetadataDelta] = []
        self.images: list[MetadataImage] = []
        loader.add_publisher(lambda delta, image: self.deltas.append(delta))
        loader.add_image_listener(self.images.append)


def test_at_startup_a_snapshot_and_the_log_are_one_delta() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        published = RecordingPublisher(loader)
        values, snapshot = snapshot_of(topic("a", 0), topic("b", 1), end_offset=10)
        loader.load_snapshot(values, snapshot, leader_id=2)
        loader.commit([topic("c", 10)])
        await loader.wait_for_offset(10)
        (delta,) = published.deltas
        assert delta.topics_created == ("a", "b", "c")
        (image,) = published.images
        assert (image.offset, image.controller_epoch, image.controller_id) == (10, 4, 2)
        assert loader.published_bytes == len(topic("c", 10).values[0])

    asyncio.run(scenario())


def test_a_snapshot_alone_makes_an_image() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        loader.load_snapshot([], SnapshotId(10, 4), leader_id=3)
        await loader.wait_for_offset(9)
        assert loader.image == MetadataImage(cluster_id="c", offset=9, controller_epoch=4, controller_id=3)

    asyncio.run(scenario())


def test_a_snapshot_for_a_lagging_node_is_published_as_the_difference() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        published = RecordingPublisher(loader)
        loader.commit([topic("a", 0), topic("b", 1)])
        await loader.wait_for_offset(1)
        values, snapshot = snapshot_of(topic("b", 1), topic("c", 2), end_offset=50)
        loader.load_snapshot(values, snapshot, leader_id=2)
        await loader.wait_for_offset(49)
        delta = published.deltas[1]
        assert delta.topics_created == ("c",)
        assert [each.name for each in delta.topics_deleted] == ["a"]
        assert sorted(loader.image.topics) == ["b", "c"]

    asyncio.run(scenario())


def test_pending_batches_are_superseded_by_a_snapshot() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        published = RecordingPublisher(loader)
        gate = asyncio.Event()

        async def held(delta: MetadataDelta, image: MetadataImage) -> None:
            await gate.wait()

        loader.add_publisher(held)
        loader.commit([topic("a", 0)])
        await asyncio.sleep(0)
        loader.commit([topic("b", 1)])
        values, snapshot = snapshot_of(topic("c", 2), end_offset=5)
        loader.load_snapshot(values, snapshot, leader_id=2)
        loader.commit([topic("d", 5)])
        gate.set()
        await loader.wait_for_offset(5)
        assert [image.offset for image in published.images] == [0, 5]
        assert sorted(loader.image.topics) == ["c", "d"]

    asyncio.run(scenario())


def test_a_snapshot_older_than_the_image_changes_nothing() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        published = RecordingPublisher(loader)
        loader.commit([topic("a", 0), topic("b", 1)])
        loader.load_snapshot([], SnapshotId(2, 1), leader_id=2)
        await loader.wait_for_offset(1)
        loader.load_snapshot([], SnapshotId(1, 1), leader_id=2)
        loader.load_snapshot([], SnapshotId(2, 1), leader_id=2)
        await loader.close()
        assert sorted(loader.image.topics) == ["a", "b"]
        assert len(published.deltas) == 1

    asyncio.run(scenario())


def test_an_invalid_snapshot_fails_the_loader() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        failures: list[BaseException] = []
        loader.on_failure(failures.append)
        loader.load_snapshot(list(topic("a", 0).values) * 2, SnapshotId(5, 1), leader_id=2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert "created twice" in str(failures[0])

    asyncio.run(scenario())


# Generation


class Clock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class RecordingSnapshotWriter:
    def __init__(self) -> None:
        self.snapshots: list[tuple[Sequence[bytes], SnapshotId, int]] = []
        self.failure: Exception | None = None

    async def write_snapshot(self, values: Sequence[bytes], end: SnapshotId, leader_id: int = -1) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.snapshots.append((values, end, leader_id))


async def run_pending_tasks() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_snapshots_are_generated_from_the_published_image() -> None:
    async def scenario() -> None:
        loader, writer = MetadataLoader("c"), RecordingSnapshotWriter()
        size = len(topic("a", 0).values[0])
        snapshotter = SnapshotGenerator(loader, writer.write_snapshot, Clock(), bytes_max=2 * size, interval_ms=0)
        loader.commit([CommittedBatch(0, 0, 7, leader_id=3), topic("a", 1)])
        await run_pending_tasks()
        assert writer.snapshots == []
        loader.commit([topic("b", 2)])
        await run_pending_tasks()
        ((values, end, leader_id),) = writer.snapshots
        assert (end, leader_id) == (SnapshotId(3, 7), 3)
        assert (
            image_from_records(map(decode, values), cluster_id="c", end_offset=3, epoch=7, leader_id=3) == loader.image
        )
        loader.commit([topic("c", 3)])
        await run_pending_tasks()
        assert len(writer.snapshots) == 1
        loader.commit([topic("d", 4)])
        await run_pending_tasks()
        assert len(writer.snapshots) == 2
        await snapshotter.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [StorageError("the disk is full"), ValueError("a bug")])
def test_a_failed_snapshot_is_retried_when_the_next_is_due(failure: Exception) -> None:
    async def scenario() -> None:
        loader, writer, clock = MetadataLoader("c"), RecordingSnapshotWriter(), Clock()
        unseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        writer.failure = failure
        snapshotter = SnapshotGenerator(loader, writer.write_snapshot, clock, bytes_max=10**6, interval_ms=1000)
        clock.now_ms = 1000
        loader.commit([topic("a", 0)])
        await run_pending_tasks()
        writer.failure = None
        loader.commit([topic("b", 1)])
        await run_pending_tasks()
        assert writer.snapshots == []
        clock.now_ms = 2000
        loader.commit([topic("c", 2)])
        await run_pending_tasks()
        assert [end for _, end, _ in writer.snapshots] == [SnapshotId(3, -1)]
        await snapshotter.close()
        gc.collect()
        assert unseen == []

    asyncio.run(scenario())


def test_a_snapshot_is_due_after_the_interval_if_there_are_new_records() -> None:
    async def scenario() -> None:
        loader, writer, clock = MetadataLoader("c"), RecordingSnapshotWriter(), Clock()
        snapshotter = SnapshotGenerator(loader, writer.write_snapshot, clock, bytes_max=10**6, interval_ms=1000)
        for offset, (now_ms, count) in enumerate([(999, 0), (1000, 1), (1999, 1), (2000, 2)]):
            clock.now_ms = now_ms
            loader.commit([topic(f"t{offset}", offset)])
            await run_pending_tasks()
            assert len(writer.snapshots) == count
        clock.now_ms = 10**9
        loader.commit([CommittedBatch(4, 4, 7, leader_id=3)])
        await run_pending_tasks()
        assert len(writer.snapshots) == 2, "there are no new records"
        await snapshotter.close()

    asyncio.run(scenario())


def test_no_snapshot_is_generated_after_closing() -> None:
    async def scenario() -> None:
        loader, writer = MetadataLoader("c"), RecordingSnapshotWriter()
        snapshotter = SnapshotGenerator(loader, writer.write_snapshot, Clock(), bytes_max=1, interval_ms=0)
        loader.commit([topic("a", 0)])
        await loader.wait_for_offset(0)
        await snapshotter.close()
        loader.commit([topic("b", 1)])
        await run_pending_tasks()
        assert writer.snapshots == []

    asyncio.run(scenario())


def test_applying_the_records_one_by_one_gives_the_same_image() -> None:
    records = [TopicRecord(name="a", topic_id=UUID(int=1)), TopicRecord(name="b", topic_id=UUID(int=2))]
    image, _ = apply_changes(MetadataImage(cluster_id="cluster"), records, 7)
    assert list(image_to_records(image)) == records
