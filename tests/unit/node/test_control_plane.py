"""The node's part of the control plane: shutdown, votes, log end queries, and its clock."""

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
from moldau.node.log_end import fetch_log_end
from moldau.node.node import Node
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.platform.system import system_platform
from moldau.raft.messages import EpochEndOffset
from moldau.settings.sources import build_settings
from support.ports import free_port


def create_node(directory: Path, ports: list[int], node_id: int) -> Node:
    flags = {
        "node.id": str(node_id),
        "cluster.id": "4L6g3nShT-eMCtK--X86sw",
        "listen": f"127.0.0.1:{ports[node_id - 1]}",
        "data.dir": str(directory / str(node_id)),
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, 1)),
    }
    return Node(system_platform(node_id), build_settings(flags=flags))


def test_a_node_that_never_registered_keeps_the_epoch_of_its_last_clean_shutdown(tmp_path: Path) -> None:
    def store() -> FileLogStore:
        return FileLogStore(OsDisk(), str(tmp_path / "1"), SystemClock(), producer_expiration_ms=1_000)

    async def scenario() -> None:
        before = store()
        await before.start()
        await before.close(41)
        starting = asyncio.create_task(create_node(tmp_path, [free_port(), free_port(), free_port()], 1).start())
        await asyncio.sleep(0.3)
        assert not starting.done(), "there is no majority to elect it"
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        after = store()
        await after.start()
        assert after.previous_broker_epoch == 41
        await after.close(-1)

    asyncio.run(scenario())


def test_the_leader_resigns_before_its_listeners_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led: list[bool] = []
    close_listeners = Node._close_listeners

    async def check_and_close(self: Node) -> None:
        led.append(self._quorum.is_leader)
        await close_listeners(self)

    monkeypatch.setattr(Node, "_close_listeners", check_and_close)

    async def scenario() -> None:
        ports = [free_port(), free_port(), free_port()]
        nodes = [create_node(tmp_path, ports, node_id) for node_id in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        leader = next(node for node in nodes if node.broker.quorum.is_leader)
        await leader.stop()
        left = [node for node in nodes if node is not leader]
        async with asyncio.timeout(20):
            while not any(node.broker.controller.is_active for node in left):
                await asyncio.sleep(0.01)
        await asyncio.gather(*(node.stop() for node in left))

    asyncio.run(scenario())
    assert led[0] is False


def test_a_failed_node_stops_while_an_operation_waits_for_disk_space() -> None:
    async def scenario() -> None:
        node = Node(system_platform(1), build_settings(flags={"store": "memory", "listen": f"127.0.0.1:{free_port()}"}))
        await node.start()
        has_started, is_queued = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            has_started.set()
            await is_queued.wait()
            raise StorageError("no space") from OSError(errno.ENOSPC, "no space left")

        quorum, controller = node._quorum, node.broker.controller
        executor = quorum._executor
        waiting = executor.run(lambda: executor._retry_while_disk_full(write))
        await has_started.wait()
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

    asyncio.run(scenario())


def test_a_node_with_store_memory_is_the_only_voter_and_has_no_directory() -> None:
    async def scenario() -> None:
        flags = {"store": "memory", "listen": f"127.0.0.1:{free_port()}"}
        node = Node(system_platform(1), build_settings(flags=flags))
        await node.start()
        [voter] = node.broker.quorum.voters
        assert (voter.node_id, node.broker.quorum.is_leader) == (1, True)
        [progress] = node.broker.quorum.describe().voters
        assert progress.key.directory_id is None
        await node.stop()

    asyncio.run(scenario())


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
def test_an_invalid_log_end_response_is_rejected(topics: list[Any]) -> None:
    async def fetch(topics: list[Any]) -> EpochEndOffset:
        async def call(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(topics=topics)

        peers: Any = SimpleNamespace(call=call)
        return await fetch_log_end(1, None, peers, 2, "orders", 0)  # type: ignore[arg-type]

    whole = SimpleNamespace(partition=0, error_code=0, leader_epoch=4, end_offset=9)
    assert asyncio.run(fetch([SimpleNamespace(topic="orders", partitions=[whole])])) == EpochEndOffset(4, 9)
    with pytest.raises(ReplicaNotAvailableError):
        asyncio.run(fetch(topics))


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock here")
def test_the_monotonic_clock_includes_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda clock: 7_000_000 if clock == time.CLOCK_BOOTTIME else 1_000_000
    )
    assert SystemClock().monotonic_ms() == 7
