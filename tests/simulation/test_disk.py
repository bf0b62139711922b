"""The simulated disk: durable data survives every crash, and anything may happen to the rest."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.platform.disk import Disk, File
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from moldau.testing.simulation.platform.loop import SimulatedLoop

SEEDS = range(300)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return SimulatedLoop().run_until_complete(main())


def make_disk(seed: int = 0, **settings: Any) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), settings=DiskSettings(**settings))


async def make_file(disk: SimulatedDisk, path: str, data: bytes) -> File:
    """Creates a durable file with a durable name."""
    file = disk.open(path)
    file.append([data])
    await file.sync()
    await disk.sync_directory("/".join(path.split("/")[:-1]))
    return file


def read(disk: Disk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    return file.read(0, file.size)


def test_a_disk_without_faults_reads_and_lists_what_was_written() -> None:
    async def main() -> None:
        disk: Disk = make_disk()
        disk.make_directory("/a/b")
        file = disk.open("/a/b/x")
        assert file.append([b"one", memoryview(b"two")]) == 0
        assert file.append([b"three"]) == 6
        assert (file.size, file.descriptor, file.read(3, 3), file.read(9, 9)) == (11, None, b"two", b"ee")
        file.truncate(4)
        assert file.append([b"!"]) == 4
        await file.sync()
        await disk.sync_directory("/a/b")
        await disk.replace("/a/b/y", b"content")
        assert disk.list("/a/b") == ["x", "y"]
        assert disk.list("/nowhere") == []
        assert disk.is_directory("/a/b")
        assert not disk.is_directory("/a/b/x")
        disk.rename("/a/b/x", "/a/b/y")
        assert read(disk, "/a/b/y") == b"onet!"
        disk.rename("/a/b", "/c")
        assert disk.list("/") == ["a", "c"]
        disk.remove("/c")
        disk.remove("/c")
        assert not disk.exists("/c/y")
        assert file.read(0, 99) == b"onet!"
        file.close()
        with pytest.raises(OSError, match="closed"):
            file.append([b"x"])
        assert file.read(0, 1) == b"o"
        with pytest.raises(FileNotFoundError):
            disk.open("/nowhere/x")
        with pytest.raises(FileNotFoundError):
            disk.rename("/x", "/y")
        with pytest.raises(IsADirectoryError):
            disk.open("/a")

    run(main)


def test_what_was_synced_survives_every_crash() -> None:
    async def one(seed: int) -> None:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"safe" * 300)
        file.append([b"unsafe" * 300])
        after = disk.crash()
        content = read(after, "/x")
        assert content is not None
        assert content.startswith(b"safe" * 300)

    for seed in SEEDS:
        run(lambda seed=seed: one(seed))


def test_unsynced_appends_are_lost_kept_truncated_or_torn() -> None:
    new = bytes(range(1, 251)) * 20

    async def one(seed: int) -> str:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"s" * 700)
        file.append([new])
        tail = (read(disk.crash(), "/x") or b"")[700:]
        assert len(tail) <= len(new)
        if not tail:
            return "lost"
        if tail == new:
            return "kept"
        if new.startswith(tail):
            return "truncated"
        first_hole = next(index for index in range(len(tail)) if tail[index] != new[index])
        if tail.endswith(new[len(tail) - 20 : len(tail)]):
            return "a later sector without an earlier one"
        return "zeros" if tail[first_hole] == 0 else "garbage"

    seen = {run(lambda seed=seed: one(seed)) for seed in SEEDS}
    assert seen == {"lost", "kept", "truncated", "zeros", "garbage", "a later sector without an earlier one"}


def test_a_sync_covers_what_was_appended_before_it_and_not_more() -> None:
    async def one(seed: int) -> bool:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"")
        file.append([b"before"])
        syncing = asyncio.create_task(file.sync())
        await asyncio.sleep(0)
        file.append([b"after"])
        await syncing
        content = read(disk.crash(), "/x") or b""
        assert content.startswith(b"before")
        return content == b"before"

    assert {run(lambda seed=seed: one(seed)) for seed in SEEDS} == {True, False}


def test_callers_during_a_sync_share_the_next_one() -> None:
    async def main() -> None:
        disk = make_disk()
        file = disk.open("/x")
        finished: list[int] = []

        async def sync(number: int) -> None:
            await file.sync()
            finished.append(number)

        file.append([b"1"])
        first = asyncio.create_task(sync(1))
        await asyncio.sleep(0)
        file.append([b"2"])
        fault = disk.inject("sync", after=2)
        later = [asyncio.create_task(sync(number)) for number in range(2, 12)]
        await asyncio.gather(first, *later)
        assert finished == list(range(1, 12))
        assert fault.after == 0

    run(main)


def test_an_unsynced_truncation_may_be_undone_and_a_synced_one_may_not() -> None:
    async def one(seed: int) -> tuple[bytes, bytes]:
        disk = make_disk(seed)
        one = await make_file(disk, "/one", b"0123456789")
        two = await make_file(disk, "/two", b"0123456789")
        one.truncate(4)
        two.truncate(4)
        await two.sync()
        after = disk.crash()
        return read(after, "/one") or b"", read(after, "/two") or b""

    outcomes = [run(lambda seed=seed: one(seed)) for seed in SEEDS]
    assert {first for first, _ in outcomes} == {b"0123", b"0123456789"}
    assert {second for _, second in outcomes} == {b"0123"}


def test_a_truncation_during_a_sync_is_not_covered_by_it() -> None:
    async def one(seed: int) -> bytes:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"0123")
        file.append([b"4567"])
        syncing = asyncio.create_task(file.sync())
        await asyncio.sleep(0)
        file.truncate(2)
        file.append([b"ab"])
        await syncing
        return read(disk.crash(), "/x") or b""

    seen = {run(lambda seed=seed: one(seed)) for seed in SEEDS}
    assert b"01234567" in seen
    assert b"01ab" in seen
    assert all(content.startswith(b"01") for content in seen)


def test_syncs_of_two_handles_do_not_undo_each_other() -> None:
    async def one(seed: int) -> None:
        disk = make_disk(seed, slow_sync_chance=0.5)
        first, second = await make_file(disk, "/x", b""), disk.open("/x")
        first.append([b"1"])
        early = asyncio.create_task(first.sync())
        await asyncio.sleep(0)
        second.append([b"2"])
        await second.sync()
        assert (read(disk, "/x") or b"").startswith(b"12")
        await early
        assert (read(disk.crash(), "/x") or b"").startswith(b"12")

    for seed in range(50):
        run(lambda seed=seed: one(seed))


@pytest.mark.parametrize("synced", [False, True])
def test_names_are_durable_after_a_sync_of_their_directory(synced: bool) -> None:
    async def one(seed: int) -> tuple[str, ...]:
        disk = make_disk(seed)
        for name in ("renamed", "removed"):
            await make_file(disk, f"/{name}", b"x")
        created = disk.open("/created")
        created.append([b"x"])
        await created.sync()
        disk.rename("/renamed", "/new-name")
        disk.remove("/removed")
        if synced:
            await disk.sync_directory("/")
        return tuple(disk.crash().list("/"))

    seen = {run(lambda seed=seed: one(seed)) for seed in SEEDS}
    if synced:
        assert seen == {("created", "new-name")}
    else:
        assert len(seen) == 8
        for names in seen:
            assert ("renamed" in names) != ("new-name" in names)


def test_a_directory_with_an_unsynced_name_loses_its_files() -> None:
    async def one(seed: int) -> bool:
        disk = make_disk(seed)
        disk.make_directory("/d")
        await make_file(disk, "/d/x", b"x")
        return disk.crash().exists("/d/x")

    assert {run(lambda seed=seed: one(seed)) for seed in range(20)} == {True, False}


def test_a_move_between_directories_leaves_one_name() -> None:
    async def one(seed: int) -> tuple[bool, bool]:
        disk = make_disk(seed)
        disk.make_directory("/a")
        disk.make_directory("/b")
        await disk.sync_directory("/")
        disk.open("/a/x")
        disk.rename("/a/x", "/b/x")
        await disk.sync_directory("/b")
        after = disk.crash()
        return after.exists("/a/x"), after.exists("/b/x")

    assert {run(lambda seed=seed: one(seed)) for seed in range(20)} == {(False, True)}


def test_replace_is_atomic() -> None:
    async def one(seed: int) -> bytes | None:
        disk = make_disk(seed)
        await disk.replace("/x", b"old")
        assert read(disk, "/x") == b"old"
        asyncio.create_task(disk.replace("/x", b"new and longer" * 100))
        await asyncio.sleep(random.Random(seed).uniform(0, 0.01))
        return read(disk.crash(), "/x")

    seen = {run(lambda seed=seed: one(seed)) for seed in SEEDS}
    assert seen == {b"old", b"new and longer" * 100}


def test_replace_is_durable_and_ordered() -> None:
    async def one(seed: int) -> None:
        disk = make_disk(seed)
        calls = [asyncio.create_task(disk.replace("/x", b"%d" % number)) for number in range(5)]
        await asyncio.sleep(0)
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert read(disk.crash(), "/x") == b"4"

    for seed in range(30):
        run(lambda seed=seed: one(seed))


def test_writes_survive_a_kill_but_not_a_later_power_cut() -> None:
    async def one(seed: int) -> bytes | None:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"safe")
        file.append([b"-"])
        disk = disk.kill()
        assert read(disk, "/x") == b"safe-"
        return read(disk.crash(), "/x")

    assert {run(lambda seed=seed: one(seed)) for seed in range(30)} >= {b"safe", b"safe-"}


def test_disk_objects_of_an_earlier_boot_raise() -> None:
    async def main() -> None:
        disk = make_disk()
        file = await make_file(disk, "/x", b"x")
        disk.crash()
        for forbidden in (
            lambda: file.append([b"x"]),
            lambda: file.read(0, 1),
            lambda: file.truncate(0),
            lambda: file.size,
            lambda: disk.open("/x"),
            lambda: disk.remove("/x"),
            lambda: disk.list("/"),
        ):
            with pytest.raises(OSError, match="crashed"):
                forbidden()
        for forbidden_call in (file.sync(), disk.replace("/x", b""), disk.sync_directory("/")):
            with pytest.raises(OSError, match="crashed"):
                await forbidden_call

    run(main)


def test_injected_errors_fail_the_matching_calls() -> None:
    async def main() -> None:
        disk = make_disk()
        file, other = await make_file(disk, "/x.log", b"abc"), await make_file(disk, "/y", b"abc")
        disk.inject("read", "*.log", after=1)
        assert file.read(0, 3) == b"abc"
        assert other.read(0, 3) == b"abc"
        with pytest.raises(OSError, match="injected") as caught:
            file.read(0, 3)
        assert caught.value.errno == errno.EIO
        assert file.read(0, 3) == b"abc"
        for operation, call in (
            ("open", lambda: disk.open("/z")),
            ("truncate", lambda: file.truncate(0)),
            ("append", lambda: file.append([b"12345"])),
        ):
            disk.inject(operation)
            with pytest.raises(OSError, match="injected"):
                call()
        assert file.size in range(3, 9)
        assert b"abc12345".startswith(file.read(0, 100))
        disk.inject("sync_directory")
        with pytest.raises(OSError, match="injected"):
            await disk.sync_directory("/")
        await disk.sync_directory("/")

    run(main)


def test_after_a_failed_sync_later_syncs_fail_and_nothing_is_durable() -> None:
    async def one(seed: int) -> bytes | None:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"safe")
        file.append([b"lost"])
        disk.inject("sync")
        for _ in range(2):
            with pytest.raises(OSError, match="sync"):
                await file.sync()
        return read(disk.crash(), "/x")

    assert b"safe" in {run(lambda seed=seed: one(seed)) for seed in range(20)}


def test_a_sync_of_a_reopened_file_does_not_cover_what_a_failed_sync_lost() -> None:
    async def one(seed: int) -> bytes | None:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"safe")
        file.append([b"lost"])
        disk.inject("sync")
        with pytest.raises(OSError, match="sync"):
            await file.sync()
        await disk.open("/x").sync()
        return read(disk.crash(), "/x")

    assert bytes(4) in {(run(lambda seed=seed: one(seed)) or b"")[4:] for seed in range(20)}


def test_dropping_the_cache_shows_what_a_failed_sync_lost() -> None:
    async def one(seed: int) -> bytes:
        disk = make_disk(seed)
        file = await make_file(disk, "/x", b"safe")
        file.append([b"lost"])
        disk.inject("sync")
        with pytest.raises(OSError, match="sync"):
            await file.sync()
        disk = disk.kill()
        again = disk.open("/x")
        assert again.read(0, 99) == b"safelost"
        again.drop_cache()
        seen = again.read(0, 99)
        await again.sync()
        assert read(disk.crash(), "/x") == seen
        return seen

    seen = {run(lambda seed=seed: one(seed)) for seed in range(20)}
    assert seen == {b"safelost", b"safe" + bytes(4)}


def test_a_full_disk_writes_a_part_and_recovers_with_free_space() -> None:
    async def main() -> None:
        disk = make_disk(capacity_bytes=100)
        file = disk.open("/x")
        file.append([bytes(60)])
        assert disk.space("/") == (100, 40)
        with pytest.raises(OSError, match="no space") as caught:
            file.append([bytes(50)])
        assert caught.value.errno == errno.ENOSPC
        assert 60 <= file.size <= 100
        file.truncate(60)
        file.append([bytes(40)])
        with pytest.raises(OSError, match="no space"):
            await disk.replace("/y", b"more")
        disk.remove("/x")
        await disk.replace("/y", b"more")

    run(main)


def test_ignored_fsyncs_make_nothing_durable() -> None:
    async def one(seed: int) -> bool:
        disk = make_disk(seed, ignored_fsync_glob="*")
        await make_file(disk, "/x", b"safe?")
        return read(disk.crash(), "/x") == b"safe?"

    assert {run(lambda seed=seed: one(seed)) for seed in range(20)} == {True, False}


def test_slow_syncs_take_virtual_time() -> None:
    async def main() -> float:
        disk = make_disk(sync_ms_min=5000, sync_ms_max=5000)
        await disk.open("/x").sync()
        return asyncio.get_running_loop().time()

    assert run(main) >= 5
