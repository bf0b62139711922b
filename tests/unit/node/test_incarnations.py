"""The incarnations file: written before a registration, and sent with the next one."""

import asyncio
import json
import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from moldau.controller.cluster_control import retained_data
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.quorum_controller import QuorumController
from moldau.controller.requests import BrokerRegistrationRequest, NewTopic
from moldau.errors import StorageError
from moldau.node.incarnations import FILE_NAME, INCARNATIONS_MAX, IncarnationStore
from moldau.node.node import Node
from moldau.platform.os_disk import OsDisk
from moldau.platform.system import system_platform
from moldau.settings.sources import build_settings
from moldau.testing.simulation.platform.disk import SimulatedDisk

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def incarnation_store(directory: Path) -> IncarnationStore:
    return IncarnationStore(OsDisk(), str(directory))


def test_an_incarnation_is_kept_until_a_later_one_is_registered(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[UUID, ...]]:
        recorded = [await incarnation_store(tmp_path).add(A)]
        await incarnation_store(tmp_path).mark_registered(A)
        # B may have been registered before it ended.
        recorded.append(await incarnation_store(tmp_path).add(B))
        recorded.append(await incarnation_store(tmp_path).add(C))
        await incarnation_store(tmp_path).mark_registered(C)
        recorded.append(incarnation_store(tmp_path).previous_incarnations())
        return recorded

    assert asyncio.run(scenario()) == [(), (A,), (A, B), (C,)]


def test_starts_without_a_registration_do_not_accumulate(tmp_path: Path) -> None:
    async def scenario() -> None:
        await incarnation_store(tmp_path).mark_registered(A)
        for number in range(10, 10 + 2 * INCARNATIONS_MAX):
            await incarnation_store(tmp_path).add(UUID(int=number))

    asyncio.run(scenario())
    kept = incarnation_store(tmp_path).previous_incarnations()
    assert len(kept) == INCARNATIONS_MAX
    assert (kept[0], kept[-1]) == (A, UUID(int=9 + 2 * INCARNATIONS_MAX))


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"incarnation_ids": 5}', b'{"incarnation_ids": ["x"]}', b"\xff\xfe"]
)
def test_a_damaged_file_gives_no_incarnations(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert incarnation_store(tmp_path).previous_incarnations() == ()


def test_an_incarnation_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        asyncio.run(incarnation_store(tmp_path / "nowhere").add(A))


def test_a_saved_incarnation_survives_a_power_failure() -> None:
    async def scenario() -> tuple[UUID, ...]:
        disk = SimulatedDisk(random.Random(1))
        disk.make_directory("/data")
        await disk.sync_directory("/")
        await IncarnationStore(disk, "/data").add(A)
        return IncarnationStore(disk.crash(), "/data").previous_incarnations()

    assert asyncio.run(scenario()) == (A,)


# Nodes


class Killed(Exception):
    pass


def create_node(directory: Path) -> Node:
    flags = {"node.id": "1", "listen": "127.0.0.1:0", "data.dir": str(directory)}
    return Node(system_platform(1), build_settings(flags=flags))


def crash(directory: Path) -> None:
    """Turns a clean shutdown into a crash."""
    (directory / ".kafka_cleanshutdown").unlink()


@pytest.mark.parametrize("has_file", [True, False])
def test_a_single_node_leads_again_after_a_crash_without_an_incarnations_file(tmp_path: Path, has_file: bool) -> None:
    """Data directories of old versions have no incarnations file."""

    async def scenario() -> int:
        node = create_node(tmp_path)
        await node.start()
        await node.broker.controller_channel.create_topics([NewTopic("orders", 1)])
        await node.stop()
        crash(tmp_path)
        if not has_file:
            (tmp_path / FILE_NAME).unlink()
        again = create_node(tmp_path)
        await again.start()
        partition = again.broker.metadata.image.partition("orders", 0)
        assert partition is not None
        await again.stop()
        return partition.leader

    assert asyncio.run(scenario()) == 1


def test_a_node_killed_during_registration_is_recognised_by_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = QuorumController.register_broker
    recorded: list[RetainedData] = []

    async def register_and_be_killed(
        controller: QuorumController, broker: BrokerRegistrationRequest, *, is_remote: bool = False
    ) -> int:
        await register(controller, broker, is_remote=is_remote)
        # As if the process were killed here, with this state of the disk.
        shutil.copy(tmp_path / FILE_NAME, tmp_path / "kept")
        raise Killed

    async def register_and_record(
        controller: QuorumController, broker: BrokerRegistrationRequest, *, is_remote: bool = False
    ) -> int:
        found = json.loads((tmp_path / "kept").read_text())["incarnation_ids"]
        previous_incarnations = tuple(UUID(each) for each in found)
        known = controller._loader.image.brokers[1]
        recorded.append(
            retained_data(known, BrokerRegistrationRequest(1, C, [], previous_incarnations=previous_incarnations))
        )
        return await register(controller, broker, is_remote=is_remote)

    async def scenario() -> None:
        first = create_node(tmp_path)
        await first.start()
        await first.stop()
        monkeypatch.setattr(QuorumController, "register_broker", register_and_be_killed)
        starting = asyncio.create_task(create_node(tmp_path).start())
        while not (tmp_path / "kept").exists():
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        monkeypatch.setattr(QuorumController, "register_broker", register_and_record)
        third = create_node(tmp_path)
        await third.start()
        await third.stop()

    asyncio.run(scenario())
    assert recorded == [RetainedData.SYNCED]
