"""The metadata loader: publishers in order, one delta at a time, and the published image."""

import asyncio
from uuid import UUID

import pytest

from moldau.errors import CorruptRecordError, UnsupportedVersionError
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import NoOpRecord, RemoveTopicRecord, TopicRecord, encode
from moldau.raft.batches import CommittedBatch


def topic(name: str, offset: int) -> CommittedBatch:
    record = TopicRecord(name=name, topic_id=UUID(int=100 + offset))
    return CommittedBatch(offset, offset, 1, (encode(record),))


async def run_pending_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_publishers_are_called_one_by_one_in_the_order_of_addition() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        events: list[str] = []

        async def logs(delta: MetadataDelta, image: MetadataImage) -> None:
            events.append("logs begin")
            await asyncio.sleep(0)
            events.append("logs end")

        def partitions(delta: MetadataDelta, image: MetadataImage) -> None:
            events.append("partitions")

        loader.add_publisher(logs)
        loader.add_publisher(partitions)
        loader.add_image_listener(lambda image: events.append(f"published {image.offset}"))
        loader.commit([topic("a", 0)])
        await loader.wait_for_offset(0)
        assert events == ["logs begin", "logs end", "partitions", "published 0"]

    asyncio.run(scenario())


def test_pending_changes_are_published_as_one_delta() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        deltas: list[MetadataDelta] = []
        gate = asyncio.Event()

        async def publisher(delta: MetadataDelta, image: MetadataImage) -> None:
            deltas.append(delta)
            await gate.wait()

        loader.add_publisher(publisher)
        loader.commit([topic("a", 0)])
        await run_pending_tasks()
        loader.commit([topic("b", 1)])
        loader.commit([topic("c", 2), CommittedBatch(3, 3, 4, leader_id=7)])
        await run_pending_tasks()
        assert loader.image.offset == -1, "the image waits for all publishers"
        gate.set()
        await loader.wait_for_offset(3)
        assert [delta.topics_created for delta in deltas] == [("a",), ("b", "c")]
        assert (loader.image.controller_id, loader.image.controller_epoch) == (7, 4)
        assert loader.image.cluster_id == "c"

    asyncio.run(scenario())


def test_waiters_for_an_offset_are_woken_when_it_is_published() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        waiting = [asyncio.get_running_loop().create_task(loader.wait_for_offset(offset)) for offset in (1, 0, 5)]
        await run_pending_tasks()
        waiting[1].cancel()
        loader.commit([topic("a", 0)])
        await run_pending_tasks()
        assert not waiting[0].done()
        loader.commit([topic("b", 1)])
        await run_pending_tasks()
        assert [task.done() for task in waiting] == [True, True, False]
        await loader.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting[2]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (encode(RemoveTopicRecord(topic_id=UUID(int=9))), CorruptRecordError),
        (b"\x01\x63\x00\x00", UnsupportedVersionError),
    ],
)
def test_a_record_that_cannot_be_applied_fails_the_loader(value: bytes, kind: type[Exception]) -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        failures: list[BaseException] = []
        loader.on_failure(failures.append)
        loader.commit([topic("a", 0)])
        await loader.wait_for_offset(0)
        loader.commit([CommittedBatch(1, 1, 1, (value,))])
        with pytest.raises(kind):
            await loader.wait_for_offset(1)
        assert [type(failure) for failure in failures] == [kind]
        loader.commit([CommittedBatch(2, 2, 1, (encode(NoOpRecord()),))])
        await run_pending_tasks()
        assert loader.image.offset == 0
        with pytest.raises(kind):
            await loader.wait_for_offset(2)

    asyncio.run(scenario())


def test_publishers_cannot_be_added_after_the_first_commit() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        loader.commit([topic("a", 0)])
        with pytest.raises(RuntimeError, match="before anything is published"):
            loader.add_publisher(lambda delta, image: None)

    asyncio.run(scenario())


def test_commit_listeners_are_called_while_publishers_are_busy() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        foreseen: list[tuple[int, tuple[str, ...]]] = []
        gate = asyncio.Event()

        async def publisher(delta: MetadataDelta, image: MetadataImage) -> None:
            await gate.wait()

        loader.add_publisher(publisher)
        loader.add_commit_listener(lambda delta, image: foreseen.append((image.offset, delta.topics_created)))
        loader.commit([topic("a", 0)])
        await run_pending_tasks()
        loader.commit([topic("b", 1)])
        assert foreseen == [(0, ("a",)), (1, ("b",))]
        assert (loader.committed_image.offset, loader.image.offset) == (1, -1)
        gate.set()
        await loader.wait_for_offset(1)
        assert loader.image is loader.committed_image

    asyncio.run(scenario())


def test_a_closing_loader_ignores_later_commits() -> None:
    async def scenario() -> None:
        loader = MetadataLoader("c")
        gate = asyncio.Event()
        taken: list[int] = []

        async def publisher(delta: MetadataDelta, image: MetadataImage) -> None:
            taken.append(image.offset)
            await gate.wait()

        loader.add_publisher(publisher)
        loader.commit([topic("a", 0)])
        await run_pending_tasks()
        loader.commit([topic("b", 1)])
        closing = asyncio.get_running_loop().create_task(loader.close())
        await run_pending_tasks()
        loader.commit([topic("c", 2)])
        gate.set()
        await closing
        assert taken == [0], "no change after a failed one is published"

    asyncio.run(scenario())
