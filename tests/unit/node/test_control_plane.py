"""What a node does for the control plane itself: how it stops, whom it lets vote, what it asks, and its clock."""

import asyncio
import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.controller.requests import NewTopic
from moldau.errors import MoldauError, ReplicaNotAvailableError, StorageError
from moldau.logs.files.store import FileLogStore
from moldau.node.log_end_fetcher import LogEndFetcher
from moldau.node.node import Node
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.platform.system import system_platform
from moldau.raft.messages import EpochEndOffset
from moldau.settings.sources import build_settings
from support.broker_process import free_port


def made(directory: Path, ports: list[int], node_id: int) -> Node:
    flags = {
        "node.id": str(node_id),
        "cluster.id": "4L6g3nShT-eMCtK--X86sw",
        "listen": f"127.0.0.1:{ports[node_id - 1]}",
        "data.dir": str(directory / str(node_id)),
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, 1)),
    }
    return Node(system_platform(node_id), build_settings(flags=flags))


def test_a_node_that_never_registered_leaves_the_mark_of_its_last_clean_stop(tmp_path: Path) -> None:
    def store() -> FileLogStore:
        return FileLogStore(OsDisk(), str(tmp_path / "1"), SystemClock(), producer_expiration_ms=1_000)

    async def story() -> None:
        before = store()
        await before.start()
        await before.close(41)
        starting = asyncio.create_task(made(tmp_path, [free_port(), free_port(), free_port()], 1).start())
        await asyncio.sleep(0.3)
        assert not starting.done(), "it has nobody to be elected by"
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        after = store()
        await after.start()
        assert after.previous_broker_epoch == 41
        await after.close(-1)

    asyncio.run(story())


def test_the_quorums_leader_hands_over_before_its_doors_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led: list[bool] = []
    close_listeners = Node._close_listeners

    async def look_and_close(self: Node) -> None:
        led.append(self._quorum.is_leader)
        await close_listeners(self)

    monkeypatch.setattr(Node, "_close_listeners", look_and_close)

    async def story() -> None:
        ports = [free_port(), free_port(), free_port()]
        nodes = [made(tmp_path, ports, node_id) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        leader = next(node for node in nodes if node.broker.quorum.is_leader)
        await leader.stop()
        left = [node for node in nodes if node is not leader]
        async with asyncio.timeout(20):
            while not any(node.broker.controller.is_active for node in left):
                await asyncio.sleep(0.01)
        await asyncio.gather(*(node.stop() for node in left))

    asyncio.run(story())
    assert led[0] is False


def test_a_node_that_failed_stops_though_a_decision_stands_behind_what_waits_for_room() -> None:
    async def story() -> None:
        node = Node(
            system_platform(1),
            build_settings(flags={"store": "memory", "listen": f"127.0.0.1:{free_port()}"}),
        )
        await node.start()
        has_begun, is_queued = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            has_begun.set()
            await is_queued.wait()
            raise StorageError("no room") from OSError(errno.ENOSPC, "no space left")

        quorum, controller = node._quorum, node.broker.controller
        executor = quorum._executor
        waiting = executor.run(lambda: executor._retry_while_disk_full(write))
        await has_begun.wait()
        creating = asyncio.create_task(controller.create_topics([NewTopic("orders", 1, 1)]))
        while not executor._jobs._jobs:
            await asyncio.sleep(0)
        is_queued.set()
        while executor._disk_full_error is None:
            await asyncio.sleep(0)
        node._fail(StorageError("something else"))
        async with asyncio.timeout(10):
            await node.stop()
        assert isinstance(waiting.exception(), StorageError)
        [refused] = await asyncio.gather(creating, return_exceptions=True)
        assert isinstance(refused, MoldauError)

    asyncio.run(story())


def test_a_node_in_memory_votes_alone_and_has_no_directory_to_be_added_by() -> None:
    async def story() -> None:
        flags = {"store": "memory", "listen": f"127.0.0.1:{free_port()}"}
        node = Node(system_platform(1), build_settings(flags=flags))
        await node.start()
        [voter] = node.broker.quorum.voters
        assert (voter.node_id, node.broker.quorum.is_leader) == (1, True)
        [progress] = node.broker.quorum.describe().voters
        assert progress.key.directory_id is None
        await node.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    "topics",
    [
        [],
        [SimpleNamespace(topic="orders", partitions=[])],
        [SimpleNamespace(topic="other", partitions=[SimpleNamespace(partition=0, error_code=0)])],
        [SimpleNamespace(topic="orders", partitions=[SimpleNamespace(partition=1, error_code=0)])],
        [SimpleNamespace(topic="orders", partitions=[SimpleNamespace(partition=0, error_code=3)])],
    ],
)
def test_an_odd_answer_about_the_end_of_a_log_is_no_answer(topics: list[Any]) -> None:
    async def fetch(topics: list[Any]) -> EpochEndOffset:
        async def call(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(topics=topics)

        ends = LogEndFetcher(1, None, SimpleNamespace(call=call))  # type: ignore[arg-type]
        return await ends.fetch(2, "orders", 0)

    whole = SimpleNamespace(partition=0, error_code=0, leader_epoch=4, end_offset=9)
    assert asyncio.run(fetch([SimpleNamespace(topic="orders", partitions=[whole])])) == EpochEndOffset(4, 9)
    with pytest.raises(ReplicaNotAvailableError):
        asyncio.run(fetch(topics))


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock here")
def test_the_monotonic_clock_counts_the_time_in_which_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda clock: 7_000_000 if clock == time.CLOCK_BOOTTIME else 1_000_000
    )
    assert SystemClock().monotonic_ms() == 7
