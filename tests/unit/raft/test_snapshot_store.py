"""Snapshot format and store: complete or missing, damage detected, and the log that continues them."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from moldau.errors import CorruptRecordError, PositionOutOfRangeError, SnapshotNotFoundError, StorageError
from moldau.logs.files.store import FileLogStore
from moldau.logs.store import Log
from moldau.platform.clock import SystemClock
from moldau.raft import snapshot_store
from moldau.raft.messages import NO_LEADER, SnapshotId, VoterEndpoint, VoterNode
from moldau.raft.snapshot_format import SnapshotContents, decode_snapshot, encode_snapshot
from moldau.raft.snapshot_store import FileSnapshotStore, MemorySnapshotStore, SnapshotStore, load_latest_snapshot
from moldau.records.batch import split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import NAME, TOPIC_ID, append, flush_and_finalize, values_of

QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
DIRECTORY = f"data/{NAME}"
VOTERS = (
    VoterNode(1, UUID(int=11), (VoterEndpoint("NODES", "n1", 9092), VoterEndpoint("CLIENTS", "c1", 65_535))),
    VoterNode(2, None),
)


def contents(end_offset: int = 100, epoch: int = 3, **more: Any) -> SnapshotContents:
    made: dict[str, Any] = {
        "voters": VOTERS,
        "values": (b"first", b"second", b"x" * 70_000, b"last"),
        "timestamp_ms": 1_700_000_000_000,
        "leader_id": 2,
    }
    return SnapshotContents(SnapshotId(end_offset, epoch), **(made | more))


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def make_disk(seed: int = 1) -> SimulatedDisk:
    return prepared(SimulatedDisk(random.Random(seed), settings=QUICK))


def prepared(disk: SimulatedDisk) -> SimulatedDisk:
    """Creates the directory of the metadata log."""

    async def body() -> None:
        await open_log(disk)

    run(body)
    return disk


# Format


@pytest.mark.parametrize(
    "made",
    [
        contents(),
        contents(voters=()),
        contents(values=(), leader_id=NO_LEADER),
        contents(values=tuple(b"%d" % number * 100 for number in range(2000))),
        contents(end_offset=0, epoch=0),
    ],
)
def test_a_snapshot_round_trips(made: SnapshotContents) -> None:
    assert decode_snapshot(made.id, b"".join(encode_snapshot(made))) == made


def test_large_snapshots_have_many_small_batches() -> None:
    made = contents(values=[b"v" * 1000] * 500)
    batches = list(encode_snapshot(made))
    assert len(batches) > 5
    assert max(map(len, batches)) < 100_000


def test_a_flipped_bit_anywhere_is_detected() -> None:
    made = contents(values=(b"one", b"two"))
    data = b"".join(encode_snapshot(made))
    for position in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                decode_snapshot(made.id, bytes(damaged))


def test_a_truncated_snapshot_is_detected() -> None:
    made = contents(values=(b"one", b"two"))
    data = b"".join(encode_snapshot(made))
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decode_snapshot(made.id, data[:size])


def test_a_snapshot_with_another_id_is_rejected() -> None:
    made = contents()
    with pytest.raises(CorruptRecordError, match="wrong base offset"):
        decode_snapshot(SnapshotId(made.id.end_offset, made.id.epoch + 1), b"".join(encode_snapshot(made)))


def test_missing_repeated_and_misplaced_batches_are_detected() -> None:
    made = contents(values=(b"x" * 70_000, b"y" * 70_000))
    parts = list(encode_snapshot(made))
    header, first, second, footer = parts
    stray = build_batch([Record(value=b"stray")], base_offset=6, leader_epoch=made.id.epoch)
    for wrong in (
        [first, second, footer],
        [header, second, footer],
        [header, second, first, footer],
        [header, first, first, second, footer],
        [header, first, second],
        [*parts, footer],
        [*parts, stray],
        [header, *parts],
        [],
    ):
        with pytest.raises(CorruptRecordError):
            decode_snapshot(made.id, b"".join(wrong))
    assert [batch.is_control for batch in split(b"".join(parts))] == [True, False, False, True]


# Store


@pytest.fixture(params=["files", "memory"])
def snapshots(request: pytest.FixtureRequest) -> SnapshotStore:
    return FileSnapshotStore(make_disk(), DIRECTORY) if request.param == "files" else MemorySnapshotStore()


def test_the_latest_two_snapshots_are_retained(snapshots: SnapshotStore) -> None:
    async def body() -> None:
        assert (snapshots.latest(), snapshots.oldest()) == (None, None)
        for end_offset in (10, 20, 30):
            await snapshots.store(contents(end_offset))
        assert (snapshots.latest(), snapshots.oldest()) == (SnapshotId(30, 3), SnapshotId(20, 3))
        assert snapshots.read(SnapshotId(20, 3)) == contents(20)
        with pytest.raises(SnapshotNotFoundError):
            snapshots.read(SnapshotId(10, 3))
        with pytest.raises(SnapshotNotFoundError):
            snapshots.read_chunk(SnapshotId(10, 3), 0, 100)
        with pytest.raises(SnapshotNotFoundError):
            snapshots.read(SnapshotId(20, 4))

    run(body)


def test_a_snapshot_is_read_in_chunks(snapshots: SnapshotStore) -> None:
    async def body() -> None:
        await snapshots.store(contents())
        received = b""
        while True:
            size, data = snapshots.read_chunk(SnapshotId(100, 3), len(received), 7_000)
            assert len(data) <= 7_000
            received += data
            if len(received) == size:
                break
        for position in (-1, size, size + 1, 2**63 - 1):
            with pytest.raises(PositionOutOfRangeError):
                snapshots.read_chunk(SnapshotId(100, 3), position, 10)
        other = MemorySnapshotStore()
        assert await other.store_fetched(SnapshotId(100, 3), received) == contents()
        assert other.read(SnapshotId(100, 3)) == contents()

    run(body)


def test_a_snapshot_is_read_in_steps_between_which_other_tasks_run(
    snapshots: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "STEP_BYTES", 50_000)
    made = contents(values=[b"v" * 1000] * 500)
    iterations = 0

    async def body() -> None:
        await snapshots.store(made)

        def count() -> None:
            nonlocal iterations
            iterations += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        assert await snapshots.read_in_steps(made.id) == replace(made, values=tuple(made.values))
        assert iterations > len(list(encode_snapshot(made))) + 10

    run(body)


def test_a_snapshot_that_is_replaced_while_it_is_read_is_not_found(
    snapshots: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "STEP_BYTES", 1_000)

    async def body() -> None:
        await snapshots.store(contents(100))
        reading = asyncio.create_task(snapshots.read_in_steps(SnapshotId(100, 3)))
        await asyncio.sleep(0)
        for end_offset in (200, 300):
            snapshots._ids.append(SnapshotId(end_offset, 3))
        snapshots._remove(snapshots._ids.pop(0))
        with pytest.raises(SnapshotNotFoundError):
            await reading

    run(body)


def test_an_incomplete_fetched_snapshot_is_not_stored(snapshots: SnapshotStore) -> None:
    async def body() -> None:
        data = b"".join(encode_snapshot(contents()))
        with pytest.raises(CorruptRecordError):
            await snapshots.store_fetched(SnapshotId(100, 3), data[:-1])
        assert snapshots.latest() is None

    run(body)


def test_file_names_are_kafkas_and_are_found_on_restart() -> None:
    disk = make_disk()

    async def body() -> None:
        await FileSnapshotStore(disk, DIRECTORY).store(contents())
        assert f"{DIRECTORY}/00000000000000000100-0000000003.checkpoint" in [
            path.lstrip("/") for path, _ in disk.volume.files()
        ]
        for name in ("00000000000000000200-0000000003.checkpoint.tmp", "1-2.checkpoint", "quorum-state"):
            disk.open(f"{DIRECTORY}/{name}")
        found = FileSnapshotStore(disk.crash(), DIRECTORY)
        assert found.latest() == found.oldest() == SnapshotId(100, 3)
        assert found.read(SnapshotId(100, 3)) == contents()

    run(body)


class PowerFailureDisk(SimulatedDisk):
    """Fails at its n-th change."""

    left = 10**9

    def trace_event(self, kind: str, *facts: Any) -> None:
        super().trace_event(kind, *facts)
        if kind in ("append", "truncate", "rename", "remove", "sync", "sync_directory", "create", "mkdir"):
            self.left -= 1
            if self.left == 0:
                self._is_dead = True

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def after_power_failure(self) -> SimulatedDisk:
        self._is_dead = False
        return self.crash()


def test_a_power_failure_at_any_step_leaves_complete_snapshots_only() -> None:
    async def body() -> None:
        for failing_change in range(1, 100):
            disk = PowerFailureDisk(random.Random(failing_change), settings=QUICK)
            await open_log(disk)
            snapshots = FileSnapshotStore(disk, DIRECTORY)
            await snapshots.store(contents(10))
            await snapshots.store(contents(20))
            disk.left = failing_change
            try:
                await snapshots.store(contents(30))
                stored = not disk.is_dead
            except StorageError:
                stored = False
            is_complete = not disk.is_dead
            found = FileSnapshotStore(disk.after_power_failure(), DIRECTORY)
            latest = found.latest()
            assert latest is not None
            assert latest.end_offset in ((30,) if stored else (20, 30))
            assert found.read(latest) == contents(latest.end_offset)
            assert found.read(SnapshotId(20, 3)) == contents(20)
            if is_complete:
                return
        raise AssertionError("the snapshot was never stored")

    run(body)


def test_a_full_disk_leaves_existing_snapshots_intact() -> None:
    disk = make_disk()

    async def body() -> None:
        snapshots = FileSnapshotStore(disk, DIRECTORY)
        await snapshots.store(contents(10))
        disk.inject("append", "*.checkpoint*", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            await snapshots.store(contents(20))
        assert snapshots.latest() == SnapshotId(10, 3)
        assert snapshots.read(SnapshotId(10, 3)) == contents(10)

    run(body)


# Loading at startup


async def open_log(disk: SimulatedDisk) -> Log:
    store = FileLogStore(disk, "data", SystemClock())
    await store.start()
    return await store.open(NAME, TOPIC_ID, TopicSettings(segment_bytes=1024))


async def filled(disk: SimulatedDisk, count: int = 10, first_epoch: int = 3) -> Log:
    log = await open_log(disk)
    for number in range(count):
        await append(log, b"%d" % number * 300, leader_epoch=first_epoch + number // 5)
    await flush_and_finalize(log)
    return log


async def damage(disk: SimulatedDisk, snapshot: SnapshotId) -> None:
    path = f"{DIRECTORY}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"
    file = disk.open(path)
    data = bytearray(file.read(0, file.size))
    data[len(data) // 2] ^= 1
    await disk.replace(path, bytes(data))


def test_a_log_from_offset_zero_needs_no_snapshot() -> None:
    disk = make_disk()

    async def body() -> None:
        log = await filled(disk)
        assert await load_latest_snapshot(log, FileSnapshotStore(disk, DIRECTORY)) is None
        assert len(await values_of(log)) == 10

    run(body)


def test_the_latest_snapshot_and_the_log_after_it_are_loaded() -> None:
    disk = make_disk()

    async def body() -> None:
        log = await filled(disk)
        snapshots = FileSnapshotStore(disk, DIRECTORY)
        await snapshots.store(contents(4, 3))
        await snapshots.store(contents(6, 4))
        await log.advance_start_offset(4)
        assert await load_latest_snapshot(log, snapshots) == contents(6, 4)
        assert (log.start_offset, log.end_offset) == (4, 10)

    run(body)


def test_a_damaged_snapshot_is_quarantined_and_the_previous_one_is_used() -> None:
    disk = make_disk()

    async def body() -> None:
        log = await filled(disk)
        snapshots = FileSnapshotStore(disk, DIRECTORY)
        await snapshots.store(contents(4, 3))
        await snapshots.store(contents(6, 4))
        await log.advance_start_offset(4)
        await damage(disk, SnapshotId(6, 4))
        assert await load_latest_snapshot(log, snapshots) == contents(4, 3)
        assert (log.start_offset, log.end_offset) == (4, 10)
        assert FileSnapshotStore(disk, DIRECTORY).latest() == SnapshotId(4, 3)
        assert any(path.endswith("-0000000004.checkpoint.damaged") for path, _ in disk.volume.files())

    run(body)


def test_a_log_without_its_start_and_without_a_snapshot_is_rejected() -> None:
    disk = make_disk()

    async def body() -> None:
        log = await filled(disk)
        snapshots = FileSnapshotStore(disk, DIRECTORY)
        await snapshots.store(contents(4, 3))
        await snapshots.store(contents(6, 4))
        await log.advance_start_offset(6)
        await damage(disk, SnapshotId(6, 4))
        with pytest.raises(StorageError, match="starts at offset 6, and the latest intact snapshot ends at offset 4"):
            await load_latest_snapshot(log, snapshots)
        with pytest.raises(StorageError, match="there is no intact snapshot"):
            await load_latest_snapshot(log, MemorySnapshotStore())

    run(body)


@pytest.mark.parametrize(
    ("snapshot", "why"), [(SnapshotId(50, 6), "the log is behind it"), (SnapshotId(7, 6), "the log diverges")]
)
def test_a_crash_between_storing_a_fetched_snapshot_and_resetting_the_log(snapshot: SnapshotId, why: str) -> None:
    disk = make_disk()

    async def body() -> None:
        nonlocal disk
        await filled(disk)
        snapshots = FileSnapshotStore(disk, DIRECTORY)
        fetched = contents(*snapshot)
        await snapshots.store_fetched(snapshot, b"".join(encode_snapshot(fetched)))
        disk = disk.crash()
        log = await open_log(disk)
        assert await load_latest_snapshot(log, FileSnapshotStore(disk, DIRECTORY)) == fetched, why
        assert (log.start_offset, log.end_offset, log.size) == (snapshot.end_offset, snapshot.end_offset, 0)
        disk = disk.crash()
        log = await open_log(disk)
        assert await load_latest_snapshot(log, FileSnapshotStore(disk, DIRECTORY)) == fetched
        assert log.start_offset == snapshot.end_offset

    run(body)
