"""MarkerSender: routing to leaders, retries, deleted topics, fencing and batching."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.errors import MoldauError, NotLeaderOrFollowerError, PeerUnreachableError, UnknownTopicOrPartitionError
from moldau.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from moldau.transactions import marker_sender
from moldau.transactions.marker_sender import LANE, MarkerSender, PendingMarkers
from moldau.transactions.marker_writer import MarkerErrors, MarkersToWrite
from moldau.transactions.requests import TransactionMarkers
from moldau.wire.api_keys import ApiKey

NODE = 1
RETRIABLE = (3, 6, 7, 19, 20, 56)
STOPPING = (47, 52)
DROPPED = (35, 43)


def image_of(topics: Mapping[str, list[int]], ids: Mapping[str, int] | None = None, **more: Any) -> MetadataImage:
    """Topics with the leaders of their partitions."""
    return MetadataImage(
        topics={
            name: TopicImage(
                name,
                UUID(int=(ids or {}).get(name, 1)),
                tuple(
                    PartitionRegistration(index, (1, 2, 3), (1, 2, 3), leader, 0, 0)
                    for index, leader in enumerate(leaders)
                ),
            )
            for name, leaders in topics.items()
        },
        **more,
    )


def markers_of(*partitions: tuple[str, int], id_: str = "t", producer_id: int = 7) -> TransactionMarkers:
    return TransactionMarkers(
        transactional_id=id_,
        producer_id=producer_id,
        producer_epoch=3,
        commit=True,
        transaction_version=2,
        partitions=frozenset(partitions),
    )


class Cluster:
    """Other brokers, and the writer of this one."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[tuple[int, str, int]]]] = []
        """Broker, and producer id, topic and partition of each marker."""
        self.trees: list[Mapping[str, Any]] = []
        self.codes: dict[tuple[str, int], list[int]] = {}
        """Error codes of the next attempts for a partition."""
        self.unreachable: list[int] = []
        """Brokers whose next requests fail."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.disconnected: list[int] = []
        self.interruptible = False
        """Whether a disconnect ends requests at the gate."""
        self.sender = MarkerSender(NODE, cast(Any, self), cast(Any, self))

    def publish(self, image: MetadataImage, **delta: Any) -> None:
        self.sender.publish(MetadataDelta(**delta), image)

    def add(self, *partitions: tuple[str, int], **more: Any) -> PendingMarkers:
        return self.sender.add(markers_of(*partitions, **more), coordinator_epoch=11)

    def _code(self, partition: tuple[str, int]) -> int:
        codes = self.codes.get(partition)
        return codes.pop(0) if codes else 0

    def disconnect(self, node_id: int, lane: str) -> None:
        assert lane == LANE
        self.disconnected.append(node_id)
        if self.interruptible:
            self.unreachable.append(node_id)
            self.gate.set()

    async def call(
        self, node_id: int, api: ApiKey, tree: Mapping[str, Any], *, lane: str, timeout_ms: int
    ) -> SimpleNamespace:
        assert (api, lane) == (ApiKey.WRITE_TXN_MARKERS, LANE)
        named = [
            (marker["producer_id"], topic["name"], index)
            for marker in tree["markers"]
            for topic in marker["topics"]
            for index in topic["partition_indexes"]
        ]
        self.requests.append((node_id, named))
        self.trees.append(tree)
        await self.gate.wait()
        if node_id in self.unreachable:
            self.unreachable.remove(node_id)
            raise PeerUnreachableError("down")
        return SimpleNamespace(
            markers=[
                SimpleNamespace(
                    producer_id=producer_id,
                    topics=[
                        SimpleNamespace(
                            name=name,
                            partitions=[SimpleNamespace(partition_index=index, error_code=self._code((name, index)))],
                        )
                    ],
                )
                for producer_id, name, index in named
            ]
        )

    async def write(self, markers: list[MarkersToWrite]) -> list[MarkerErrors]:
        named = [(each.marker.producer_id, *partition) for each in markers for partition in each.partitions]
        self.requests.append((NODE, named))
        await self.gate.wait()
        errors: dict[int, MoldauError | None] = {
            0: None,
            3: UnknownTopicOrPartitionError("unknown"),
            6: NotLeaderOrFollowerError("moved"),
        }
        return [{partition: errors[self._code(partition)] for partition in each.partitions} for each in markers]


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(marker_sender, "RETRY_BACKOFF_MAX_MS", 2)


def run(scene: Callable[[Cluster], Awaitable[None]]) -> Cluster:
    async def main() -> Cluster:
        cluster = Cluster()
        async with asyncio.timeout(20):
            await scene(cluster)
        await cluster.sender.close()
        assert cluster.sender.unexpected_errors == 0
        return cluster

    return asyncio.run(main())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_each_leader_gets_its_markers() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [1, 2, 3, 2]}))
        pending = cluster.add(("a", 0), ("a", 1), ("a", 2), ("a", 3))
        assert await pending.is_written
        assert not pending.remaining

    cluster = run(scene)
    assert sorted(cluster.requests) == [(1, [(7, "a", 0)]), (2, [(7, "a", 1), (7, "a", 3)]), (3, [(7, "a", 2)])]
    (marker,) = cluster.trees[0]["markers"]
    assert {name: value for name, value in marker.items() if name != "topics"} == {
        "producer_id": 7,
        "producer_epoch": 3,
        "transaction_result": True,
        "coordinator_epoch": 11,
        "transaction_version": 2,
    }


def test_a_transaction_without_partitions_needs_no_marker() -> None:
    async def scene(cluster: Cluster) -> None:
        assert await cluster.add().is_written

    assert run(scene).requests == []


@pytest.mark.parametrize("code", RETRIABLE)
def test_markers_are_sent_again_after_transient_errors(code: int) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 2]}))
        cluster.codes["a", 1] = [code, code]
        assert await cluster.add(("a", 0), ("a", 1)).is_written

    cluster = run(scene)
    assert cluster.requests == [(2, [(7, "a", 0), (7, "a", 1)]), (2, [(7, "a", 1)]), (2, [(7, "a", 1)])]


@pytest.mark.parametrize("code", [1, 29, -1])
def test_markers_are_sent_again_after_unexpected_errors(code: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.codes["a", 0] = [code]
        assert await cluster.add(("a", 0)).is_written

    assert len(run(scene).requests) == 2
    assert "writing a transaction marker failed" in caplog.text


@pytest.mark.parametrize("code", STOPPING)
def test_sending_stops_if_another_coordinator_has_taken_over(code: int) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 2, 3]}))
        cluster.codes["a", 1] = [code]
        cluster.codes["a", 2] = [6] * 1000
        assert not await cluster.add(("a", 0), ("a", 1), ("a", 2)).is_written
        await asyncio.sleep(0.01)
        sent = len(cluster.requests)
        await asyncio.sleep(0.02)
        assert len(cluster.requests) == sent

    run(scene)


@pytest.mark.parametrize("code", DROPPED)
def test_partitions_that_cannot_have_markers_are_skipped(code: int) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.codes["a", 0] = [code]
        assert await cluster.add(("a", 0)).is_written

    assert len(run(scene).requests) == 1


def test_local_markers_are_sent_again_too() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [1]}))
        cluster.codes["a", 0] = [3, 6]
        assert await cluster.add(("a", 0)).is_written

    assert run(scene).requests == [(1, [(7, "a", 0)])] * 3


def test_an_unreachable_broker_is_tried_again() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.unreachable = [2, 2]
        assert await cluster.add(("a", 0)).is_written

    assert len(run(scene).requests) == 3


def test_a_partition_that_moved_is_sent_to_its_new_leader() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.codes["a", 0] = [6]
        cluster.gate.clear()
        pending = cluster.add(("a", 0))
        await turns()
        cluster.publish(image_of({"a": [3]}))
        cluster.gate.set()
        assert await pending.is_written

    assert run(scene).requests == [(2, [(7, "a", 0)]), (3, [(7, "a", 0)])]


def test_queued_partitions_that_moved_are_not_sent_to_the_old_leader() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 2]}))
        cluster.gate.clear()
        first = cluster.add(("a", 0), producer_id=1)
        await turns()
        second = cluster.add(("a", 1), producer_id=2)
        cluster.publish(image_of({"a": [2, 3]}))
        cluster.gate.set()
        assert await first.is_written
        assert await second.is_written

    assert run(scene).requests == [(2, [(1, "a", 0)]), (3, [(2, "a", 1)])]


def test_a_partition_without_a_leader_waits_for_one() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [-1]}))
        pending = cluster.add(("a", 0))
        await asyncio.sleep(0.01)
        assert cluster.requests == []
        cluster.publish(image_of({"a": [-1]}))
        assert cluster.requests == []
        cluster.publish(image_of({"a": [2]}))
        assert await pending.is_written

    assert run(scene).requests == [(2, [(7, "a", 0)])]


def test_requests_to_a_fenced_broker_are_interrupted() -> None:
    async def scene(cluster: Cluster) -> None:
        registration = BrokerRegistration(2, 5, UUID(int=2), (), None, True)
        cluster.publish(image_of({"a": [2]}))
        cluster.gate.clear()
        pending = cluster.add(("a", 0))
        await turns()
        cluster.publish(image_of({"a": [3]}, brokers=MappingProxyType({2: registration})), brokers_changed=(2, 3))
        assert cluster.disconnected == [2]
        cluster.unreachable = [2]
        cluster.gate.set()
        assert await pending.is_written

    assert [broker for broker, _ in run(scene).requests] == [2, 3]


@pytest.mark.parametrize(
    "after",
    [image_of({}), image_of({"a": [2]}, {"a": 99}), image_of({"a": []})],
    ids=["deleted", "created again", "fewer partitions"],
)
def test_markers_of_deleted_partitions_are_skipped(after: MetadataImage) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.codes["a", 0] = [3] * 1000
        pending = cluster.add(("a", 0))
        await asyncio.sleep(0.01)
        assert not pending.is_written.done()
        cluster.publish(after)
        assert await pending.is_written

    run(scene)


def test_a_topic_that_was_deleted_before_is_skipped() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        assert await cluster.add(("a", 0), ("gone", 0)).is_written

    assert run(scene).requests == [(2, [(7, "a", 0)])]


def test_markers_share_requests_while_one_is_in_flight() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 1]}))
        cluster.gate.clear()
        pending = [cluster.add(("a", 0), ("a", 1), producer_id=number) for number in range(3)]
        await turns()
        pending += [cluster.add(("a", 0), producer_id=number) for number in range(3, 6)]
        await turns()
        cluster.gate.set()
        assert await asyncio.gather(*(each.is_written for each in pending))

    cluster = run(scene)
    assert [len(named) for broker, named in cluster.requests if broker == 2] == [3, 3]
    # This node needs no request, so the first marker is written at once.
    assert [len(named) for broker, named in cluster.requests if broker == 1] == [1, 2]


def test_large_requests_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "PARTITIONS_PER_REQUEST_MAX", 3)

    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2] * 5}))
        cluster.gate.clear()
        pending = [cluster.add(("a", 0), ("a", 1), producer_id=number) for number in range(2)]
        pending.append(cluster.add(*(("a", index) for index in range(5)), producer_id=2))
        cluster.gate.set()
        assert await asyncio.gather(*(each.is_written for each in pending))

    assert [len(named) for _, named in run(scene).requests] == [2, 2, 5]


def test_cancelled_markers_are_not_sent() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 3]}))
        cluster.gate.clear()
        first = cluster.add(("a", 0), producer_id=1)
        await turns()
        second = cluster.add(("a", 0), ("a", 1), producer_id=2)
        second.is_written.cancel()
        third = cluster.add(("a", 0), producer_id=3)
        cluster.gate.set()
        assert await first.is_written
        assert await third.is_written

    assert run(scene).requests == [(2, [(1, "a", 0)]), (2, [(3, "a", 0)])]


def test_an_unexpected_error_is_counted_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = Cluster()
        call = cluster.call
        attempts = 0

        async def breaks_once(*arguments: Any, **more: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise KeyError("a bug")
            return await call(*arguments, **more)

        cluster.call = breaks_once  # type: ignore[method-assign]
        cluster.publish(image_of({"a": [2]}))
        assert await cluster.add(("a", 0)).is_written
        assert cluster.sender.unexpected_errors == 1
        await cluster.sender.close()

    asyncio.run(main())
    assert "sending transaction markers failed unexpectedly" in caplog.text


def test_nothing_is_left_behind() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2, 1]}))
        cluster.codes["a", 0] = [6, 6, 6]
        pending = [cluster.add(("a", 0), ("a", 1), producer_id=number) for number in range(5)]
        await asyncio.gather(*(each.is_written for each in pending))
        await turns()
        sender = cluster.sender
        assert not sender._queues
        assert not sender._tasks
        assert not sender._retry_timers
        assert not sender._leaderless

    run(scene)


def test_closing_interrupts_requests_and_completes_local_appends() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [1, 2]}))
        cluster.gate.clear()
        cluster.interruptible = True
        pending = cluster.add(("a", 0), ("a", 1))
        await turns()
        await cluster.sender.close()
        assert cluster.disconnected == [1, 2]
        assert pending.remaining == {("a", 1)}

    run(scene)


def test_closing_stops_retries() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.publish(image_of({"a": [2]}))
        cluster.codes["a", 0] = [6] * 10_000
        cluster.add(("a", 0))
        await asyncio.sleep(0.01)
        await cluster.sender.close()
        sent = len(cluster.requests)
        await asyncio.sleep(0.02)
        assert len(cluster.requests) == sent

    run(scene)
