"""Which lives a disk has seen: kept before the cluster hears of a life, and told at the next registration."""

import asyncio
import json
import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from moldau.controller.cluster_control import retained_data
from moldau.controller.driver import QuorumController
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.requests import BrokerRegistrationRequest, NewTopic
from moldau.errors import StorageError
from moldau.node.incarnations import FILE_NAME, INCARNATIONS_MAX, IncarnationStore
from moldau.node.node import Node
from moldau.platform.os_disk import OsDisk
from moldau.platform.system import system_platform
from moldau.settings.sources import build_settings
from moldau.testing.simulation.platform.disk import SimulatedDisk

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def lives(directory: Path) -> IncarnationStore:
    return IncarnationStore(OsDisk(), str(directory))


def test_a_life_is_remembered_until_a_later_one_is_registered(tmp_path: Path) -> None:
    async def story() -> list[tuple[UUID, ...]]:
        told = [await lives(tmp_path).add(A)]
        await lives(tmp_path).mark_registered(A)
        # Nobody knows whether B came to be registered before it ended.
        told.append(await lives(tmp_path).add(B))
        told.append(await lives(tmp_path).add(C))
        await lives(tmp_path).mark_registered(C)
        told.append(lives(tmp_path).previous_incarnations())
        return told

    assert asyncio.run(story()) == [(), (A,), (A, B), (C,)]


def test_starts_that_find_no_cluster_do_not_add_up_for_ever(tmp_path: Path) -> None:
    async def story() -> None:
        await lives(tmp_path).mark_registered(A)
        for number in range(10, 10 + 2 * INCARNATIONS_MAX):
            await lives(tmp_path).add(UUID(int=number))

    asyncio.run(story())
    kept = lives(tmp_path).previous_incarnations()
    assert len(kept) == INCARNATIONS_MAX
    assert (kept[0], kept[-1]) == (A, UUID(int=9 + 2 * INCARNATIONS_MAX))


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"incarnation_ids": 5}', b'{"incarnation_ids": ["x"]}', b"\xff\xfe"]
)
def test_a_damaged_file_says_nothing_of_any_life(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert lives(tmp_path).previous_incarnations() == ()


def test_a_life_that_cannot_be_written_down_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        asyncio.run(lives(tmp_path / "nowhere").add(A))


def test_a_power_cut_leaves_a_life_that_has_begun() -> None:
    async def story() -> tuple[UUID, ...]:
        disk = SimulatedDisk(random.Random(1))
        disk.make_directory("/data")
        await disk.sync_directory("/")
        await IncarnationStore(disk, "/data").add(A)
        return IncarnationStore(disk.crash(), "/data").previous_incarnations()

    assert asyncio.run(story()) == (A,)


# Nodes


class Killed(Exception):
    pass


def made(directory: Path) -> Node:
    flags = {"node.id": "1", "listen": "127.0.0.1:0", "data.dir": str(directory)}
    return Node(system_platform(1), build_settings(flags=flags))


def crash(directory: Path) -> None:
    """What a clean stop leaves, without its mark."""
    (directory / ".kafka_cleanshutdown").unlink()


@pytest.mark.parametrize("has_file", [True, False])
def test_a_node_that_is_alone_leads_again_after_a_crash_also_where_no_life_was_kept(
    tmp_path: Path, has_file: bool
) -> None:
    """Data directories of versions that did not keep them have no such file."""

    async def story() -> int:
        node = made(tmp_path)
        await node.start()
        await node.broker.controller_channel.create_topics([NewTopic("orders", 1)])
        await node.stop()
        crash(tmp_path)
        if not has_file:
            (tmp_path / FILE_NAME).unlink()
        again = made(tmp_path)
        await again.start()
        partition = again.broker.metadata.image.partition("orders", 0)
        assert partition is not None
        await again.stop()
        return partition.leader

    assert asyncio.run(story()) == 1


def test_a_node_that_ends_before_it_hears_of_its_registration_is_known_by_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = QuorumController.register_broker
    told: list[RetainedData] = []

    async def register_and_be_killed(
        controller: QuorumController, broker: BrokerRegistrationRequest, *, is_remote: bool = False
    ) -> int:
        await register(controller, broker, is_remote=is_remote)
        # As if the process ended here: what the disk has now is what the next life finds.
        shutil.copy(tmp_path / FILE_NAME, tmp_path / "kept")
        raise Killed

    async def register_and_tell(
        controller: QuorumController, broker: BrokerRegistrationRequest, *, is_remote: bool = False
    ) -> int:
        found = json.loads((tmp_path / "kept").read_text())["incarnation_ids"]
        previous_incarnations = tuple(UUID(each) for each in found)
        known = controller._loader.image.brokers[1]
        told.append(
            retained_data(
                known, BrokerRegistrationRequest(1, C, [], previous_incarnations=previous_incarnations)
            )
        )
        return await register(controller, broker, is_remote=is_remote)

    async def story() -> None:
        first = made(tmp_path)
        await first.start()
        await first.stop()
        monkeypatch.setattr(QuorumController, "register_broker", register_and_be_killed)
        starting = asyncio.create_task(made(tmp_path).start())
        while not (tmp_path / "kept").exists():
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        monkeypatch.setattr(QuorumController, "register_broker", register_and_tell)
        third = made(tmp_path)
        await third.start()
        await third.stop()

    asyncio.run(story())
    assert told == [RetainedData.SYNCED]
