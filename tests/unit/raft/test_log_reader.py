"""Validation of the metadata log at startup: every changed byte is detected."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from moldau.errors import StorageError
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.raft.batches import leader_change_batch, values_batch
from moldau.raft.effects import AppendLeaderChange
from moldau.raft.log_reader import load_log_state
from moldau.raft.messages import VoterNode
from moldau.raft.raft_client import METADATA_LOG, open_metadata_log
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.snapshot_store import MemorySnapshotStore

VOTERS = (VoterNode(1), VoterNode(2))


async def write_log(directory: Path) -> Path:
    """Writes a log with two epochs."""
    store = FileLogStore(OsDisk(), str(directory), SystemClock())
    await store.start()
    log = await open_metadata_log(store)
    begin = leader_change_batch(AppendLeaderChange(1, 1, VOTERS, (1,), True), base_offset=0, timestamp=1)
    await log.append([begin])
    await log.append([values_batch([b"one", b"two"], base_offset=begin.next_offset, epoch=1, timestamp=2)])
    await log.append([values_batch([b"three"], base_offset=log.end_offset, epoch=2, timestamp=3)])
    await log.append([values_batch([b"four"], base_offset=log.end_offset, epoch=2, timestamp=4)])
    await log.flush()
    await store.close()
    return directory / str(METADATA_LOG) / f"{0:020}.log"


async def load(directory: Path) -> RaftLogState:
    store = FileLogStore(OsDisk(), str(directory), SystemClock())
    await store.start()
    try:
        return await load_log_state(await open_metadata_log(store), MemorySnapshotStore(), None, VOTERS)
    finally:
        await store.close()


def test_an_intact_log_is_loaded(tmp_path: Path) -> None:
    async def body() -> RaftLogState:
        await write_log(tmp_path)
        return await load(tmp_path)

    found = asyncio.run(body())
    assert (found.start_offset, found.end_offset, found.log_end.epoch) == (0, 7, 2)


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    async def body() -> list[int]:
        file = await write_log(tmp_path)
        whole = file.read_bytes()
        unnoticed = []
        for position in range(len(whole)):
            changed = bytearray(whole)
            changed[position] ^= 1
            file.write_bytes(changed)
            with suppress(StorageError):
                await load(tmp_path)
                unnoticed.append(position)
        return unnoticed

    assert asyncio.run(body()) == []


def test_damage_is_reported_with_a_repair_hint(tmp_path: Path) -> None:
    async def body() -> None:
        file = await write_log(tmp_path)
        changed = bytearray(file.read_bytes())
        changed[7] ^= 1
        file.write_bytes(changed)
        await load(tmp_path)

    with pytest.raises(StorageError, match="empty its data directory"):
        asyncio.run(body())
