"""The disk of the operating system: order of writes, shared syncs, permanent failures."""

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.platform import os_disk
from moldau.platform.os_disk import OsDisk
from moldau.platform.system import system_platform


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_appends_go_to_the_end_and_reads_go_anywhere(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "a"))
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 0
    assert file.append([b"four"]) == 11
    assert file.size == 15
    assert file.read(3, 3) == b"two"
    assert file.read(11, 100) == b"four"
    assert file.read(15, 10) == b""


def test_an_append_after_a_truncate_goes_to_the_new_end(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "a"))
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size == 4
    assert file.append([b"xy"]) == 4
    assert file.read(0, 100) == b"0123xy"


def test_dropping_the_cache_loses_nothing_that_was_written(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "a"))
    file.append([b"x" * 100_000])
    file.drop_cache()
    assert file.read(0, 200_000) == b"x" * 100_000
    asyncio.run(file.sync())
    file.drop_cache()
    assert file.read(0, 200_000) == b"x" * 100_000


def test_more_parts_than_writev_takes_are_all_written(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "a"))
    parts = [bytes([index % 251]) * (index % 7) for index in range(5000)]
    file.append(parts)
    assert file.read(0, 1 << 20) == b"".join(parts)
    assert file.size == sum(map(len, parts))


def test_short_writes_are_continued_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev

    def short(descriptor: int, parts: list[bytes]) -> int:
        return real(descriptor, [b"".join(parts)[:5]])

    monkeypatch.setattr(os, "writev", short)
    file = OsDisk().open(str(tmp_path / "a"))
    file.append([b"abc", b"", b"defgh", b"ijklmnop"])
    assert file.read(0, 100) == b"abcdefghijklmnop"
    assert file.size == 16


def test_after_a_failed_append_the_size_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    left = [5]

    def filling(descriptor: int, parts: list[bytes]) -> int:
        data = b"".join(parts)[: left[0]]
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        return real(descriptor, [data])

    file = OsDisk().open(str(tmp_path / "a"))
    file.append([b"head"])
    monkeypatch.setattr(os, "writev", filling)
    with pytest.raises(OSError, match="No space") as caught:
        file.append([b"12345678"])
    assert caught.value.errno == errno.ENOSPC
    assert file.size == 9 == os.path.getsize(tmp_path / "a")
    file.truncate(4)
    assert file.read(0, 100) == b"head"


def test_a_reopened_file_continues_at_its_end(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.open(str(tmp_path / "a")).append([b"first"])
    reopened = disk.open(str(tmp_path / "a"))
    assert reopened.size == 5
    assert reopened.append([b"second"]) == 5


class Gate:
    """Replaces fdatasync: counts the calls and blocks each until it is released."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Semaphore(0)
        self.failure: OSError | None = None

    def __call__(self, descriptor: int) -> None:
        self.begun += 1
        self.go.acquire()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(os_disk, "_sync_data", made)
    return made


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_callers_during_a_sync_share_the_next_one(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        file = OsDisk().open(str(tmp_path / "a"))
        file.append([b"1"])
        first = asyncio.create_task(file.sync())
        await until(lambda: gate.begun == 1)
        file.append([b"2"])
        later = [asyncio.create_task(file.sync()) for _ in range(10)]
        await asyncio.sleep(0)
        gate.go.release()
        await first
        assert not any(task.done() for task in later)
        gate.go.release()
        await asyncio.gather(*later)
        assert gate.begun == 2

    asyncio.run(main())


def test_a_caller_without_changes_waits_for_the_running_sync(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        file = OsDisk().open(str(tmp_path / "a"))
        file.append([b"1"])
        both = [asyncio.create_task(file.sync()), asyncio.create_task(file.sync())]
        await until(lambda: gate.begun == 1)
        gate.go.release()
        await asyncio.gather(*both)
        await file.sync()
        assert gate.begun == 1

    asyncio.run(main())


def test_a_cancelled_caller_does_not_cancel_the_others(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        file = OsDisk().open(str(tmp_path / "a"))
        file.append([b"1"])
        first, second = asyncio.create_task(file.sync()), asyncio.create_task(file.sync())
        await until(lambda: gate.begun == 1)
        first.cancel()
        gate.go.release()
        await second
        assert first.cancelled()

    asyncio.run(main())


def test_after_a_failed_sync_every_later_one_fails(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        file = OsDisk().open(str(tmp_path / "a"))
        file.append([b"1"])
        gate.failure = OSError(errno.EIO, "Input/output error")
        first = asyncio.create_task(file.sync())
        await until(lambda: gate.begun == 1)
        file.append([b"2"])
        second = asyncio.create_task(file.sync())
        await asyncio.sleep(0)
        gate.go.release(5)
        for task in (first, second):
            with pytest.raises(OSError, match="rror") as caught:
                await task
            assert caught.value.errno == errno.EIO
        gate.failure = None
        with pytest.raises(OSError, match="an earlier sync failed"):
            await file.sync()
        assert gate.begun == 1

    asyncio.run(main())


def test_files_sync_concurrently(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        disk = OsDisk()
        files = [disk.open(str(tmp_path / str(index))) for index in range(8)]
        tasks = [asyncio.create_task(file.sync()) for file in files]
        await until(lambda: gate.begun == 8)
        gate.go.release(8)
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_a_sync_calls_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), real(descriptor))[1])

    async def main() -> None:
        file = OsDisk().open(str(tmp_path / "a"))
        file.append([b"1"])
        await file.sync()
        assert synced == [file.descriptor]

    asyncio.run(main())


def test_a_closed_or_removed_file_stays_readable_while_referenced(tmp_path: Path) -> None:
    disk = OsDisk()
    gc.collect()
    before = descriptors()
    file = disk.open(str(tmp_path / "a"))
    file.append([b"still here"])
    file.close()
    disk.remove(str(tmp_path / "a"))
    assert file.read(0, 100) == b"still here"
    with pytest.raises(OSError, match="closed"):
        file.append([b"x"])
    with pytest.raises(OSError, match="closed"):
        file.truncate(0)
    assert descriptors() == before + 1
    gc.disable()
    try:
        del file
        assert descriptors() == before
    finally:
        gc.enable()


def test_a_synced_file_closes_its_descriptor_without_the_garbage_collector(tmp_path: Path) -> None:
    async def main() -> None:
        disk = OsDisk()
        before = descriptors()
        file = disk.open(str(tmp_path / "a"))
        file.append([b"x"])
        await file.sync()
        del file
        await until(lambda: descriptors() == before)

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_replace_leaves_no_temporary_file(tmp_path: Path) -> None:
    async def main() -> None:
        disk = OsDisk()
        path = str(tmp_path / "state")
        await disk.replace(path, b"old and longer")
        await disk.replace(path, b"new")
        assert Path(path).read_bytes() == b"new"
        assert disk.list(str(tmp_path)) == ["state"]

    asyncio.run(main())


def test_replacements_of_one_file_happen_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async def main() -> None:
        disk = OsDisk()
        path = str(tmp_path / "state")
        tasks = [asyncio.create_task(disk.replace(path, b"%d" % index)) for index in range(20)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert Path(path).read_bytes() == b"19"

    asyncio.run(main())


def test_a_failed_replace_leaves_the_old_content(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        disk = OsDisk()
        path = tmp_path / "state"
        path.write_bytes(b"old")
        gate.failure = OSError(errno.EIO, "Input/output error")
        gate.go.release()
        with pytest.raises(OSError, match="Input/output"):
            await disk.replace(str(path), b"new")
        assert path.read_bytes() == b"old"
        gate.failure = None
        gate.go.release()
        await disk.replace(str(path), b"new")
        assert path.read_bytes() == b"new"

    asyncio.run(main())


def test_names_and_directories(tmp_path: Path) -> None:
    async def main() -> None:
        disk = OsDisk()
        root = str(tmp_path)
        disk.make_directory(f"{root}/x/y")
        disk.make_directory(f"{root}/x/y")
        disk.open(f"{root}/x/y/b")
        disk.open(f"{root}/x/y/a")
        await asyncio.gather(*(disk.sync_directory(f"{root}/x/y") for _ in range(5)))
        assert disk.list(f"{root}/x/y") == ["a", "b"]
        assert disk.list(f"{root}/nowhere") == []
        assert disk.is_directory(f"{root}/x")
        assert not disk.is_directory(f"{root}/x/y/a")
        disk.rename(f"{root}/x/y/a", f"{root}/x/y/b")
        assert disk.list(f"{root}/x/y") == ["b"]
        disk.rename(f"{root}/x", f"{root}/z")
        assert disk.exists(f"{root}/z/y/b")
        assert not disk.exists(f"{root}/x")
        disk.remove(f"{root}/z")
        disk.remove(f"{root}/z")
        assert disk.list(root) == []
        with pytest.raises(FileNotFoundError):
            await disk.sync_directory(f"{root}/z")
        total, usable = disk.space(root)
        assert 0 < usable <= total

    asyncio.run(main())


def test_the_threads_of_a_disk_end_with_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        disk = OsDisk()
        await disk.sync_directory(str(tmp_path))
        started = [thread for thread in threading.enumerate() if thread not in before]
        assert len(started) == 1
        del disk
        await until(lambda: not started[0].is_alive())

    asyncio.run(main())


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def test_syncs_fail_without_threads_and_succeed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk, path = OsDisk(), tmp_path / "a"
        file = disk.open(str(path))
        file.append([b"data"])
        synced: list[int] = []
        with monkeypatch.context() as patch:
            refuse_threads(patch)
            for work in (file.sync, lambda: disk.sync_directory(str(tmp_path))):
                with pytest.raises(OSError, match="can't start new thread"):
                    await work()
            with pytest.raises(OSError, match="can't start new thread"):
                await disk.replace(str(tmp_path / "b"), b"first")
        monkeypatch.setattr(os_disk, "_sync_data", synced.append)
        await file.sync()
        assert synced == [file.descriptor], "the failed sync has covered nothing"
        await disk.sync_directory(str(tmp_path))
        await disk.replace(str(tmp_path / "b"), b"second")
        assert (tmp_path / "b").read_bytes() == b"second"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_one_thread_does_all_syncs_if_no_other_can_start(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = OsDisk()
        files = [disk.open(str(tmp_path / name)) for name in "ab"]
        first = asyncio.create_task(files[0].sync())
        await until(lambda: gate.begun == 1)
        refuse_threads(monkeypatch)
        second = asyncio.create_task(files[1].sync())
        gate.go.release(2)
        await asyncio.gather(first, second)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_thread_survives_any_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise MemoryError("no memory")

    async def main() -> None:
        disk = OsDisk(fsync_threads_max=1)
        with monkeypatch.context() as patch:
            patch.setattr(os_disk, "_sync_data", fail)
            with pytest.raises(OSError, match="no memory"):
                await disk.open(str(tmp_path / "a")).sync()
        await disk.open(str(tmp_path / "b")).sync()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_seeded_platform_repeats_its_random_choices() -> None:
    assert system_platform(7).random.random() == system_platform(7).random.random()
    assert system_platform().random.random() != system_platform().random.random()
