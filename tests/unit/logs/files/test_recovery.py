"""Opening a log in files after clean shutdowns, crashes, and damage to any of its files."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.errors import StorageError
from moldau.logs.files.log import FileLog
from moldau.logs.files.store import FileLogStore
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.records.batch import HEADER_SIZE
from moldau.settings.topic import TopicSettings
from support.logs import NAME, OTHER_TOPIC_ID, TOPIC_ID, append, batch_at, batches_of, flush_and_finalize, values_of

SMALL = TopicSettings(segment_bytes=1024, index_interval_bytes=100)


class Data:
    """A data directory with one log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / str(NAME)
        self.store: FileLogStore

    async def open(self, settings: TopicSettings = SMALL) -> FileLog:
        self.store = FileLogStore(OsDisk(), str(self.path), SystemClock())
        await self.store.start()
        return await self.store.open(NAME, TOPIC_ID, settings)

    def segment(self, number: int) -> Path:
        return sorted(self.log_path.glob("*.log"))[number]

    def copy(self, path: Path) -> "Data":
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)
        return Data(path)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


async def fill(log: FileLog, count: int = 30, *, is_flushed: bool = True) -> list[bytes]:
    """Appends batches of an idempotent producer to several segments, three per leader epoch."""
    values = [b"%02d" % number * 50 for number in range(count)]
    for number, value in enumerate(values):
        await append(
            log,
            value,
            timestamp_ms=1_000 * number,
            leader_epoch=number // 3,
            producer_id=4,
            producer_epoch=0,
            base_sequence=number,
        )
    if is_flushed:
        await flush_and_finalize(log)
    return values


def knows_last_five(log: FileLog) -> bool:
    end = log.end_offset
    for number in range(end - 5, end):
        reopened = batch_at(0, [b""], producer_id=4, producer_epoch=0, base_sequence=number)
        repeated = log.producers.check(reopened)
        if repeated is None or repeated.base_offset != number:
            return False
    return True


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def test_a_clean_shutdown_writes_kafkas_files(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        await fill(log)
        await log.advance_start_offset(3)
        await data.store.close()

    run(body)
    names = {path.name for path in data.log_path.iterdir()}
    bases = sorted(name[:20] for name in names if name.endswith(".log"))
    assert len(bases) > 2
    for base in bases:
        assert {f"{base}.index", f"{base}.timeindex"} <= names
    assert "00000000000000000030.snapshot" in names
    assert (data.log_path / "partition.metadata").read_text() == "version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w"
    assert (data.log_path / "leader-epoch-checkpoint").read_text().startswith("0\n9\n1 3\n2 6\n")
    assert (data.path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 30\n"
    assert (data.path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    assert (data.path / ".kafka_cleanshutdown").exists()


def test_index_files_are_in_kafkas_format(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        await fill(log)
        await data.store.close()

    run(body)
    for log_file in sorted(data.log_path.glob("*.log")):
        content = log_file.read_bytes()
        base = int(log_file.stem)
        positions, position = {}, 0
        while position < len(content):
            offset = int.from_bytes(content[position : position + 8], "big")
            positions[position] = offset + int.from_bytes(content[position + 23 : position + 27], "big")
            timestamp = int.from_bytes(content[position + 35 : position + 43], "big")
            position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        index = log_file.with_suffix(".index").read_bytes()
        entries = [
            (int.from_bytes(index[at : at + 4], "big"), int.from_bytes(index[at + 4 : at + 8], "big"))
            for at in range(0, len(index), 8)
        ]
        assert len(entries) == len(positions) - 1
        assert all(positions[where] == base + relative for relative, where in entries)
        times = log_file.with_suffix(".timeindex").read_bytes()
        last_entry = (int.from_bytes(times[-12:-4], "big"), int.from_bytes(times[-4:], "big"))
        assert last_entry == (timestamp, max(positions.values()) - base)


def test_a_clean_shutdown_preserves_everything_without_reading_batches_again(data: Data) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        await data.store.close()
        # Damage that a read of the batches would find.
        flip(data.segment(0), 70)
        log = await data.open()
        assert data.store.had_clean_shutdown
        assert data.store.list_logs() == [(NAME, TOPIC_ID)]
        assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 30, 30)
        assert list(log.epochs) == [(number, 3 * number) for number in range(10)]
        assert knows_last_five(log)
        assert (await values_of(log))[-1] == values[-1]
        await append(log, b"more")
        await flush_and_finalize(log)
        await data.store.close()
        assert (await (await data.open()).read(30, 1000, 31)).size

    run(body)


def test_a_second_clean_shutdown_without_changes_is_clean_too(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        for _ in range(3):
            await data.store.close()
            log = await data.open()
            assert data.store.had_clean_shutdown
            assert log.end_offset == 30
            assert knows_last_five(log)

    run(body)


def test_the_broker_epoch_of_a_clean_shutdown_is_returned_once(data: Data) -> None:
    marker = data.path / ".kafka_cleanshutdown"

    async def body() -> None:
        await data.open()
        assert data.store.previous_broker_epoch == -1
        await data.store.close(41)
        assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": 41}
        await data.open()
        assert data.store.previous_broker_epoch == 41
        # A crash: the log was not closed.
        await data.open()
        assert data.store.previous_broker_epoch == -1
        assert not data.store.had_clean_shutdown

    run(body)


@pytest.mark.parametrize("content", ["", "torn", "[]", '{"version": 0}', '{"brokerEpoch": "x"}'])
def test_an_empty_clean_shutdown_file_has_no_broker_epoch(data: Data, content: str) -> None:
    async def body() -> None:
        await data.open()
        await data.store.close(41)
        (data.path / ".kafka_cleanshutdown").write_text(content)
        await data.open()
        assert data.store.had_clean_shutdown
        assert data.store.previous_broker_epoch == -1

    run(body)


def test_a_log_not_opened_after_a_crash_is_recovered_later(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        with data.segment(-1).open("ab") as file:
            file.write(b"torn")
        store = FileLogStore(OsDisk(), str(data.path), SystemClock())
        await store.start()
        await store.close()
        log = await data.open()
        assert not data.store.had_clean_shutdown
        assert log.end_offset == 30

    run(body)


def test_a_torn_last_batch_is_truncated(data: Data, tmp_path: Path) -> None:
    async def body() -> None:
        log = await data.open()
        values = await fill(log)
        last = await append(log, b"not synced", producer_id=4, producer_epoch=0, base_sequence=30)
        whole = data.segment(-1).stat().st_size
        for torn in range(1, last.size + 1):
            copy = data.copy(tmp_path / "copy")
            with copy.segment(-1).open("r+b") as file:
                file.truncate(whole - torn)
            log = await copy.open()
            assert log.end_offset == 30
            assert copy.segment(-1).stat().st_size == whole - last.size
            assert knows_last_five(log)
            if torn % 40 == 1:
                assert await values_of(log) == values
                await append(log, b"instead", leader_epoch=99)
                await flush_and_finalize(log)
                assert await values_of(log) == [*values, b"instead"]
                assert log.epochs.latest == 99

    run(body)


@pytest.mark.parametrize(
    "tail",
    [b"\0", b"\0" * 61, b"\0" * 5000, random.Random(1).randbytes(7), random.Random(2).randbytes(3000)],
    ids=["a zero", "zeros as long as a header", "many zeros", "little garbage", "much garbage"],
)
def test_garbage_after_the_last_batch_is_truncated(data: Data, tail: bytes) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        size = data.segment(-1).stat().st_size
        with data.segment(-1).open("ab") as file:
            file.write(tail)
        log = await data.open()
        assert log.end_offset == 30
        assert data.segment(-1).stat().st_size == size
        assert await values_of(log) == values

    run(body)


def test_a_batch_with_repeated_offsets_is_truncated(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        with data.segment(-1).open("ab") as file:
            file.write(batch_at(3, [b"old"]).to_bytes())
        assert (await data.open()).end_offset == 30

    run(body)


def test_a_batch_with_a_lower_epoch_is_truncated(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        with data.segment(-1).open("ab") as file:
            file.write(batch_at(30, [b"of whom"], leader_epoch=2).to_bytes())
        log = await data.open()
        assert log.end_offset == 30
        assert log.epochs.latest == 9

    run(body)


def test_segments_after_a_torn_one_are_deleted(data: Data) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        (data.path / "recovery-point-offset-checkpoint").unlink()
        with data.segment(-2).open("r+b") as file:
            file.truncate(data.segment(-2).stat().st_size - 1)
        count = len(list(data.log_path.glob("*.log")))
        log = await data.open()
        assert len(list(data.log_path.glob("*.log"))) == count - 1
        assert 20 < log.end_offset < 30
        assert await values_of(log) == values[: log.end_offset]

    run(body)


def test_an_interrupted_truncation_of_a_torn_segment_is_completed(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truncated segment ends with a whole batch, and the segment after it is still there."""

    async def body() -> None:
        values = await fill(await data.open())
        (data.path / "recovery-point-offset-checkpoint").unlink()
        torn = data.segment(-3)
        with torn.open("r+b") as file:
            file.truncate(torn.stat().st_size - 1)
        remove = OsDisk.remove

        def remove_no_segment(disk: OsDisk, path: str) -> None:
            if path.endswith(".log"):
                raise OSError("the process is killed")
            remove(disk, path)

        with monkeypatch.context() as patch:
            patch.setattr(OsDisk, "remove", remove_no_segment)
            with pytest.raises(StorageError, match="the process is killed"):
                await data.open()
        log = await data.open()
        assert log.end_offset < int(torn.stem) + 10
        assert await values_of(log) == values[: log.end_offset]

    run(body)


def test_an_unflushed_segment_without_its_last_batches_is_detected(data: Data) -> None:
    async def body() -> None:
        values = await fill(await data.open(), is_flushed=False)
        last = (await batches_of(data.store._logs[NAME]))[-1]
        with data.segment(-2).open("r+b") as file:
            file.truncate(data.segment(-2).stat().st_size - last.size)
        log = await data.open()
        assert log.end_offset < int(data.segment(-1).stem) + 30
        assert await values_of(log) == values[: log.end_offset]
        assert log.end_offset < 30

    run(body)


@pytest.mark.parametrize("position", range(HEADER_SIZE + 5))
def test_damage_below_the_recovery_point_is_an_error_and_not_truncated(data: Data, position: int) -> None:
    async def body() -> None:
        log = await data.open()
        await fill(log)
        await data.store.close()
        (data.path / ".kafka_cleanshutdown").unlink()
        damaged = data.segment(-1)
        flip(damaged, position)
        before = damaged.read_bytes()
        with pytest.raises(StorageError, match="moldau log verify"):
            await data.open()
        assert damaged.read_bytes() == before
        # Other logs are not affected.
        other = await data.store.open(NAME._replace(partition=1), TOPIC_ID, SMALL)
        await append(other, b"fine")

    run(body)


def test_missing_records_below_the_recovery_point_are_an_error(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        await data.store.close()
        (data.path / ".kafka_cleanshutdown").unlink()
        with data.segment(-1).open("r+b") as file:
            file.truncate(0)
        with pytest.raises(StorageError, match="before its recovery point 30"):
            await data.open()
        for path in data.log_path.glob("*.log"):
            path.unlink()
        with pytest.raises(StorageError, match="before its recovery point 30"):
            await data.open()

    run(body)


def test_closed_segments_below_the_recovery_point_are_not_read(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        flip(data.segment(0), 70)
        log = await data.open()
        assert not data.store.had_clean_shutdown
        assert log.end_offset == 30
        assert knows_last_five(log)
        assert list(log.epochs) == [(number, 3 * number) for number in range(10)]

    run(body)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crashed"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("harm", ["missing", "empty", "truncated", "garbage", "bit flips"])
def test_damaged_indexes_snapshots_and_epochs_are_rebuilt(data: Data, clean: bool, suffix: str, harm: str) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        if clean:
            await data.store.close()
        randomness = random.Random(f"{suffix} {harm}")
        for path in data.log_path.glob(f"*{suffix}"):
            content = path.read_bytes()
            match harm:
                case "missing":
                    path.unlink()
                case "empty":
                    path.write_bytes(b"")
                case "truncated":
                    path.write_bytes(content[: len(content) // 2 + 1])
                case "garbage":
                    path.write_bytes(randomness.randbytes(len(content)))
                case "bit flips":
                    for _ in range(3):
                        if content:
                            flip(path, randomness.randrange(len(content)))
        log = await data.open()
        assert log.end_offset == 30
        assert await values_of(log) == values
        for number in range(30):
            assert (await batches_of(log, number))[0].base_offset == number
            found = await log.offset_for_timestamp(1_000 * number, 30)
            assert found is not None
            assert found.offset == number
        if suffix != ".snapshot" or not clean:
            assert knows_last_five(log)
        await log.apply_retention(1_000, 30)
        assert log.start_offset == 0
        await append(log, b"more", leader_epoch=50)
        await flush_and_finalize(log)
        await data.store.close()
        assert await values_of(await data.open()) == [*values, b"more"]

    run(body)


def test_without_snapshots_producer_state_is_rebuilt_from_the_log(data: Data) -> None:
    async def body() -> None:
        await fill(await data.open())
        await data.store.close()
        for path in data.log_path.glob("*.snapshot"):
            path.unlink()
        assert knows_last_five(await data.open())

    run(body)


def test_leftovers_of_deletions_and_compactions_are_removed(data: Data) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        leftovers = [
            data.log_path / "00000000000000000000.log.deleted",
            data.log_path / "00000000000000000000.log.cleaned",
            data.log_path / "00000000000000000000.index.tmp",
            data.log_path / "00000000000000000777.index",
            data.log_path / "00000000000000000777.timeindex",
            data.log_path / "00000000000000000777.snapshot",
            data.log_path / "00000000000000000000.index.swap",
            data.path / "recovery-point-offset-checkpoint.tmp",
        ]
        for path in leftovers:
            path.write_bytes(b"left behind")
        (data.path / "orders-5.0123456789abcdef0123456789abcdef-delete").mkdir()
        (data.path / "orders-6").mkdir()
        log = await data.open()
        assert await values_of(log) == values
        assert not any(path.exists() for path in leftovers)
        names = {path.name for path in data.path.iterdir()}
        assert "orders-6" not in names
        assert not any(name.endswith("-delete") for name in names)

    run(body)


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: !!", b"\xff\xfe"])
def test_a_log_with_records_and_no_topic_id_is_neither_served_nor_made_stray(data: Data, content: bytes | None) -> None:
    async def body() -> None:
        values = await fill(await data.open())
        await data.store.close()
        path = data.log_path / "partition.metadata"
        whole = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(StorageError, match=r"partition\.metadata"):
            await data.open()
        path.write_bytes(whole)
        assert await values_of(await data.open()) == values
        assert data.store.list_logs() == [(NAME, TOPIC_ID)]

    run(body)


def test_a_log_without_records_and_topic_id_is_reused(data: Data) -> None:
    async def body() -> None:
        await data.open()
        await data.store.close()
        (data.log_path / "partition.metadata").write_bytes(b"")
        await data.open()
        await data.store.close()
        await data.open()
        assert data.store.list_logs() == [(NAME, TOPIC_ID)]

    run(body)


def test_a_log_emptied_by_retention_keeps_its_offsets(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        await fill(log)
        await log.apply_retention(2**62, 30)
        assert (log.start_offset, log.end_offset, log.size) == (30, 30, 0)
        log = await data.open()
        assert (log.start_offset, log.end_offset) == (30, 30)
        assert knows_last_five(log)
        assert log.epochs.latest == 9
        await data.store.close()
        log = await data.open()
        assert (log.start_offset, log.end_offset) == (30, 30)
        assert knows_last_five(log)

    run(body)


def test_a_start_offset_inside_a_segment_survives_a_restart(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        values = await fill(log)
        await log.advance_start_offset(10)
        log = await data.open()
        assert log.start_offset == 10
        assert await values_of(log) == values[10:]

    run(body)


def test_a_log_with_a_reused_name_starts_at_zero(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        await fill(log)
        await log.advance_start_offset(10)
        log = await data.store.open(NAME, OTHER_TOPIC_ID, SMALL)
        assert (log.start_offset, log.end_offset) == (0, 0)
        await append(log, b"new")
        await flush_and_finalize(log)
        store = FileLogStore(OsDisk(), str(data.path), SystemClock())
        await store.start()
        log = await store.open(NAME, OTHER_TOPIC_ID, SMALL)
        assert (log.start_offset, log.end_offset) == (0, 1)

    run(body)


def test_a_log_can_be_closed_and_reopened(data: Data) -> None:
    async def body() -> None:
        log = await data.open()
        values = await fill(log)
        await log.close()
        with pytest.raises(StorageError, match="closed"):
            await append(log, b"late")
        log = await data.store.open(NAME, TOPIC_ID, SMALL)
        assert await values_of(log) == values
        await append(log, b"more")
        await data.store.close()
        assert await values_of(await data.open()) == [*values, b"more"]

    run(body)


def test_segments_roll_by_size_time_and_index(data: Data) -> None:
    async def body() -> None:
        log = await data.open(TopicSettings(segment_ms=1_000))
        for timestamp_ms in (5_000, 6_000, 6_001, 4_000, 7_001, 7_002):
            await append(log, b"v", timestamp_ms=timestamp_ms)
        assert [int(path.stem) for path in sorted(data.log_path.glob("*.log"))] == [0, 2, 5]
        log.configure(TopicSettings(index_interval_bytes=0, segment_index_bytes=24))
        for _ in range(6):
            await append(log, b"v", timestamp_ms=7_000)
        assert [int(path.stem) for path in sorted(data.log_path.glob("*.log"))] == [0, 2, 5, 8, 11]
        far = batch_at(2**31 + 100, [b"far"])
        await log.append([far])
        await append(log, b"further")
        await flush_and_finalize(log)
        assert (await batches_of(log))[-2].to_bytes() == far.to_bytes()
        (data.path / "recovery-point-offset-checkpoint").unlink()
        log = await data.open()
        assert log.end_offset == 2**31 + 102
        assert len(await values_of(log)) == 14

    run(body)


def test_retention_rolls_an_idle_segment_by_segment_ms(data: Data) -> None:
    async def body() -> None:
        log = await data.open(TopicSettings(segment_ms=1_000, retention_ms=-1))
        await append(log, b"v", timestamp_ms=5_000)
        await log.apply_retention(6_000, 1)
        assert len(list(data.log_path.glob("*.log"))) == 1
        await log.apply_retention(6_001, 1)
        assert len(list(data.log_path.glob("*.log"))) == 2
        await log.apply_retention(99_000, 1)
        assert len(list(data.log_path.glob("*.log"))) == 2
        assert await values_of(log) == [b"v"]

    run(body)
