"""Metrics that stay readable when a disk or a topic has failed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.http.pipeline_metrics import DECOMPRESSED_BYTES_MAX, PipelineReports
from moldau.http.system_metrics import disk_families
from moldau.logs.memory import MemoryLogStore
from moldau.logs.store import LogName
from moldau.metadata.image import PartitionRegistration
from moldau.metrics.exposition import write_families
from moldau.partitions.partition import Partition
from moldau.pipelines.query_report import REPORT_TOPIC, QueryReport
from moldau.platform import process
from moldau.platform.os_disk import OsDisk
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.compression import GZIP
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings
from support.replicas import TestClock

REPORT = QueryReport("revenue", "daily", "running", 1_000, "", "host", 1, "local", 1)


def test_the_size_of_a_volume_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    def written(data_dir: Path) -> str:
        settings = SimpleNamespace(static=SimpleNamespace(store="files", data_dir=str(data_dir)))
        broker: Any = SimpleNamespace(
            platform=SimpleNamespace(disk=OsDisk()),
            settings=settings,
            replica_manager=SimpleNamespace(store=MemoryLogStore()),
        )
        return "".join(write_families(disk_families(broker)))

    assert "moldau_disk_size_bytes" in written(tmp_path)
    text = written(tmp_path / "missing")
    assert "moldau_disk_sync_duration_seconds" in text
    assert "moldau_disk_size_bytes" not in text


def test_the_start_of_the_process_is_unknown_without_the_time_of_the_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process._start_time_s.__wrapped__() is not None
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *more: "cpu 1 2 3\n" if str(path) == "/proc/stat" else read_text(path, *more)
    )
    assert process._start_time_s.__wrapped__() is None


def damaged_batch() -> bytes:
    data = bytearray(build_batch([Record(value=b"v", timestamp=1)], compression=GZIP))
    data[-8:] = bytes(8)
    return bytes(data)


def large_batch() -> bytes:
    return build_batch([Record(value=bytes(DECOMPRESSED_BYTES_MAX), timestamp=1)], compression=GZIP)


@pytest.mark.parametrize("unreadable", [damaged_batch, large_batch])
def test_a_batch_that_cannot_be_decoded_does_not_hide_later_reports(unreadable: Any) -> None:
    async def body() -> None:
        store, clock = MemoryLogStore(), TestClock()
        await store.start()
        name = LogName(REPORT_TOPIC, 0)
        partition = Partition(name, UUID(int=9), 1, await store.open(name, UUID(int=9), TopicSettings()), clock)
        await partition.apply_image(PartitionRegistration(0, (1,), (1,), 1, 3, 3))
        record = Record(key=REPORT.key, value=REPORT.to_json(), timestamp=1)
        for data in (unreadable(), build_batch([record])):
            appended = await partition.append([Batch(data)])
            committed = partition.commit_future(appended.next_offset, appended.leader_epoch)
            if committed is not None:
                await committed
        broker: Any = SimpleNamespace(
            replica_manager=SimpleNamespace(get=lambda topic, index: partition), platform=SimpleNamespace(clock=clock)
        )
        reports = PipelineReports()
        for _ in range(2):
            await reports.refresh(broker)
        assert 'pipeline="revenue"' in "".join(write_families(reports.families(1_000)))

    asyncio.run(body())
