"""A full disk: producers get an error, acknowledged records stay readable, and the node recovers with free space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.topics import Topics
from support.wire import METADATA, WireClient, batch, end_offset, fetch, produce

DISK_BYTES = 24 << 20
STORAGE_ERROR = 56
pytestmark = pytest.mark.usefixtures("only_moldau", "only_files")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(where)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command for a small tmpfs")
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill_disk(where: Path, leave: int) -> Path:
    """Fills a disk except for `leave` bytes, as another process would."""
    ballast = where / "ballast"
    space = os.statvfs(where)
    with ballast.open("wb", buffering=0) as file:
        # A short write is fine: the node may have used some of the space since it was measured.
        file.write(bytes(max(0, space.f_bavail * space.f_frsize - leave)))
    return ballast


def produce_until_error(wire: WireClient, topic: str) -> tuple[int, int]:
    """Returns the number of acknowledged records and the error code that ended it."""
    acknowledged = 0
    while True:
        code, offset = produce(wire, topic, batch([b"%06d" % acknowledged + bytes(20_000)]))
        if code:
            return acknowledged, code
        assert offset == acknowledged
        acknowledged += 1
        assert acknowledged < 10_000, "the disk never filled up"


def check_records(wire: WireClient, topic: str, acknowledged: int) -> None:
    assert end_offset(wire, topic) >= acknowledged
    for offset in range(acknowledged):
        response = fetch(wire, topic, offset, partition_max_bytes=100)
        assert response["error_code"] == 0
        assert b"%06d" % offset in response["records"]


def test_produce_fails_on_a_full_disk_and_recovers_with_free_space(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "data") as served, WireClient(served.bootstrap) as wire:
        topics = Topics(served.bootstrap)
        full, other = topics.create(), topics.create()
        assert produce(wire, other, batch([b"before"])) == (0, 0)
        ballast = fill_disk(small_disk, leave=1 << 20)
        acknowledged, code = produce_until_error(wire, full)
        assert code == STORAGE_ERROR
        assert acknowledged > 0

        assert wire.request(METADATA, 1, {"topics": []})["topics"] == []
        assert b"before" in fetch(wire, other, 0)["records"]
        check_records(wire, full, acknowledged)
        assert served.process is not None
        assert served.process.poll() is None

        ballast.unlink()
        assert produce(wire, other, batch([b"after"]))[0] == 0
        code, offset = produce(wire, full, batch([b"%06d" % acknowledged]))
        assert code == 0
        assert offset == acknowledged

        assert served.stop() == 0
        served.start()
        with WireClient(served.bootstrap) as after:
            check_records(after, full, acknowledged + 1)


def test_a_node_killed_on_a_full_disk_keeps_acknowledged_records(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "data") as served:
        topic = Topics(served.bootstrap).create()
        ballast = fill_disk(small_disk, leave=1 << 20)
        with WireClient(served.bootstrap) as wire:
            acknowledged, _ = produce_until_error(wire, topic)
        served.kill()
        ballast.unlink()
        served.start()
        with WireClient(served.bootstrap) as wire:
            check_records(wire, topic, acknowledged)
            code, offset = produce(wire, topic, batch([b"more"]))
            assert code == 0
            assert offset >= acknowledged


def test_topics_are_not_half_created_on_a_full_disk(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "data") as served:
        topics = Topics(served.bootstrap)
        first = topics.create()
        ballast = fill_disk(small_disk, leave=0)
        made = []
        for _ in range(3):
            try:
                made.append(topics.create())
            except Exception:
                break
        ballast.unlink()
        served.kill()
        served.start()
        known = set(Topics(served.bootstrap).admin.list_topics(timeout=20).topics)
        assert {first, *made} <= known
        with WireClient(served.bootstrap) as wire:
            for name in sorted(known):
                assert produce(wire, name, batch())[0] == 0
