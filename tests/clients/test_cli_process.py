"""`moldau produce` and `consume` as processes: signals, terminals, files, and pipes with a slow or closed reader."""

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.client import Admin, Consumer, Producer
from moldau.client.admin.types import NewTopic
from moldau.client.record import TopicPartition
from moldau.testing import Broker

COMMAND = [sys.executable, "-m", "moldau"]
MAIN = "from moldau.cli.main import main; main()"
TIMEOUT_S = 60
PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)

    async def create() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 1)])

    asyncio.run(create())
    return name


@contextmanager
def moldau(
    broker: Broker, *arguments: str, stdin: Any = subprocess.DEVNULL, command: list[str] = COMMAND
) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": broker.bootstrap}
    process = subprocess.Popen(
        [*command, *arguments], stdin=stdin, stdout=PIPE, stderr=PIPE, env=environment, bufsize=0
    )
    # Nothing here waits for ever.
    too_late = threading.Timer(TIMEOUT_S, process.kill)
    too_late.start()
    try:
        yield process
    finally:
        too_late.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """The exit code and all that it said to people."""
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert "Traceback" not in said
    return process.wait(), said


def line_of(pipe: Any) -> str:
    """The next line; the pipes have no buffer, so that no more than it is taken."""
    line = b""
    while not line.endswith(b"\n"):
        read = pipe.read(1)
        assert read, f"it ended after {line!r}"
        line += read
    return line.decode().rstrip("\n")


def consume_with(setting: str) -> list[str]:
    """A command that waits less long than people would."""
    return [sys.executable, "-c", f"import moldau.cli.record_printer as it; it.{setting}; {MAIN}"]


def wait_until_stuck(process: "subprocess.Popen[bytes]") -> None:
    """Until its output has no room for more, because nobody reads."""
    assert process.stdout is not None
    size = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
    while int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder) < size:
        assert process.poll() is None
        time.sleep(0.01)


def put(broker: Broker, topic: str, values: list[bytes]) -> None:
    async def run() -> None:
        async with Producer(broker.bootstrap) as producer:
            for value in values:
                await producer.send(topic, value)

    asyncio.run(run())


def taken(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    """The first so many records, waited for."""

    async def run() -> list[bytes | None]:
        async with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[bytes | None] = []
            while len(found) < count:
                found += [record.value for record in await consumer.poll(max_records=count - len(found))]
            return found

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def state_and_offset(broker: Broker, group: str, topic: str) -> tuple[str, int | None]:
    async def run() -> tuple[str, int | None]:
        async with Admin(broker.bootstrap) as admin:
            committed = (await admin.list_group_offsets(group)).get(TopicPartition(topic, 0))
            state = (await admin.describe_group(group)).state
            return state, None if committed is None else committed.offset

    return asyncio.run(run())


# Producing


def test_ctrl_c_ends_typed_input_and_reports_the_acknowledged_records(broker: Broker, topic: str) -> None:
    terminal, its_end = pty.openpty()
    try:
        with moldau(broker, "produce", topic, stdin=its_end) as process:
            assert "Ctrl-D ends" in line_of(process.stderr)
            os.write(terminal, b"one\ntwo\nhalf")
            assert taken(broker, topic, 2) == [b"one", b"two"]
            process.send_signal(signal.SIGINT)
            assert ended(process) == (130, "2 records acknowledged.\n")
    finally:
        os.close(terminal)
        os.close(its_end)


def test_records_read_before_sigterm_are_acknowledged(broker: Broker, topic: str) -> None:
    with moldau(broker, "produce", topic, stdin=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n")
        taken(broker, topic, 1)
        process.stdin.write(b"2\n3\n4")
        taken(broker, topic, 3)
        process.terminate()
        assert ended(process) == (143, "3 records acknowledged.\n")


def test_a_file_is_read_to_its_last_line(broker: Broker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\n\nthe last")
    with open(tmp_path / "lines", "rb") as file, moldau(broker, "produce", topic, stdin=file) as process:
        assert ended(process) == (0, "3 records acknowledged.\n")
    assert taken(broker, topic, 3) == [b"a\r", b"", b"the last"]
    with moldau(broker, "produce", topic) as process:
        assert ended(process) == (0, "0 records acknowledged.\n")


def test_a_rejected_record_is_reported_while_input_continues(broker: Broker, topic: str) -> None:
    async def take_small_ones_only() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.alter_topic_configs(topic, {"max.message.bytes": "1000"})

    asyncio.run(take_small_ones_only())
    with moldau(broker, "produce", topic, stdin=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"small\n")
        taken(broker, topic, 1)
        process.stdin.write(b"x" * 5000 + b"\n")
        code, said = ended(process)
        assert code == 1
        assert "MESSAGE_TOO_LARGE" in said
        assert said.endswith("1 of 2 records acknowledged.\n")


# Consuming


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_consumer_commits_and_leaves_its_group(broker: Broker, topic: str, asked: signal.Signals) -> None:
    put(broker, topic, [b"%d" % number for number in range(10)])
    with moldau(broker, "consume", topic, "-g", topic, "--from-beginning") as process:
        assert [line_of(process.stdout) for _ in range(10)] == [str(number) for number in range(10)]
        process.send_signal(asked)
        assert ended(process) == (128 + asked, "")
    assert state_and_offset(broker, topic, topic) == ("Empty", 10)


def test_a_reader_that_has_seen_enough_leaves_the_rest_to_the_group(broker: Broker, topic: str) -> None:
    put(broker, topic, [b"%09d" % number for number in range(20_000)])
    with moldau(broker, "consume", topic, "-g", topic, "--from-beginning") as process:
        assert process.stdout is not None
        assert line_of(process.stdout) == "000000000"
        process.stdout.close()
        assert ended(process) == (0, "")
    state, offset = state_and_offset(broker, topic, topic)
    assert state == "Empty"
    assert offset is not None
    assert offset < 20_000
    with moldau(broker, "consume", topic, "-g", topic, "--exit") as process:
        assert process.stdout is not None
        left = process.stdout.read().split()
        assert ended(process) == (0, "")
    assert left == [b"%09d" % number for number in range(offset, 20_000)]


def test_records_that_a_stuck_reader_does_not_take_are_not_committed(broker: Broker, topic: str) -> None:
    put(broker, topic, [b"x" * 1000] * 500)
    command = consume_with("FINAL_WRITE_TIMEOUT_S = 0.1")
    with moldau(broker, "consume", topic, "-g", topic, "--from-beginning", command=command) as process:
        wait_until_stuck(process)
        process.terminate()
        assert ended(process) == (143, "")
    assert state_and_offset(broker, topic, topic) == ("Empty", 0)


def test_a_full_disk_is_reported_and_nothing_is_committed(broker: Broker, topic: str) -> None:
    put(broker, topic, [b"one"])
    shell = ["sh", "-c", f'exec {sys.executable} -m moldau "$@" > /dev/full', "moldau"]
    with moldau(broker, "consume", topic, "-g", topic, "--exit", command=shell) as process:
        assert ended(process) == (1, "No space left on device\n")
    assert state_and_offset(broker, topic, topic) == ("Empty", 0)


def test_a_group_consumer_reports_that_it_waits_for_a_topic(broker: Broker) -> None:
    with moldau(broker, "consume", "to-come", "-g", "early", "--from-beginning", "-n", "1") as process:
        assert "waiting for to-come to be created" in line_of(process.stderr)
        put(broker, "to-come", [b"here"])
        assert line_of(process.stdout) == "here"
        assert ended(process) == (0, "")


def test_the_end_is_reached_though_others_have_all_partitions(broker: Broker, topic: str) -> None:
    command = consume_with("UNASSIGNED_TIMEOUT_S = 0.1")

    async def run() -> tuple[int, str]:
        # Static members come first when partitions are shared out.
        async with Consumer(
            broker.bootstrap, group_id=topic, group_instance_id="a", heartbeat_interval_ms=100
        ) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment:
                await consumer.poll(100)
            with moldau(broker, "consume", topic, "-g", topic, "--exit", command=command) as process:
                ending = asyncio.create_task(asyncio.to_thread(ended, process))
                while not ending.done():
                    await consumer.poll(100)
                return await ending

    code, said = asyncio.run(run())
    assert code == 1
    assert "have all of them" in said
