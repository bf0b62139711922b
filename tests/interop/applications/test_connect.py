"""Kafka Connect copies a file to a topic and the topic to another file, while a node is killed.

The source's producer is idempotent and its task is not restarted, so the topic has every line once, in order. Connect
promises at-least-once delivery to a sink: after the kill the sink may receive again what it received since its last
commit. Nothing is lost, and without a kill nothing is repeated.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from cluster_under_test import ClusterUnderTest
from connect import ConnectWorker, distributed_worker, file_sink, file_source, standalone_worker

from support.log_reader import all_records
from support.topics import unique

LINES = 2_000
COPY_TIMEOUT_S = 60


def lines(first: int, last: int) -> list[str]:
    return [f"line {number:06}" for number in range(first, last)]


def append(file: Path, added: list[str]) -> None:
    with file.open("a") as opened:
        opened.writelines(f"{line}\n" for line in added)


def read(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def append_during_kill(
    source: Path, sink: Path, added: list[str], worker: ConnectWorker, kill: Callable[[], None]
) -> None:
    """Appends lines in small portions, and kills the node when a part of them has arrived in the sink."""
    before = len(read(sink))
    portions = [added[first : first + 20] for first in range(0, len(added), 20)]
    for number, portion in enumerate(portions):
        append(source, portion)
        if number == len(portions) // 3:
            worker.process.wait_until(lambda: len(read(sink)) > before, "lines arrive", COPY_TIMEOUT_S)
            kill()
        time.sleep(0.01)


def check_repeats(delivered: list[str], expected: list[str]) -> None:
    """Checks at-least-once delivery: the lines are in order, but some positions before the end may begin again."""
    position = 0
    for line in delivered:
        index = expected.index(line)
        assert index <= position, f"{expected[position]!r} is missing before {line!r}"
        position = max(position, index + 1)
    assert position == len(expected), f"{expected[position]!r} and what follows are missing"


def values(cluster: ClusterUnderTest, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in all_records(cluster.bootstrap, topic, 60)]


def test_standalone_worker(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    topic, source, sink = unique("lines"), tmp_path / "source.txt", tmp_path / "sink.txt"
    cluster.create_topic(topic)
    append(source, lines(0, LINES))
    connectors = {"source": file_source(source, topic), "sink": file_sink(sink, topic)}
    worker = standalone_worker(tmp_path, cluster.bootstrap, connectors)
    with worker.process:
        worker.process.wait_until(lambda: len(read(sink)) >= LINES, "all lines are copied", COPY_TIMEOUT_S)
        assert read(sink) == lines(0, LINES)
        victim = cluster.leader_of(topic)
        append_during_kill(source, sink, lines(LINES, 2 * LINES), worker, lambda: cluster.kill(victim))
        last = lines(2 * LINES - 1, 2 * LINES)[0]
        worker.process.wait_until(lambda: last in read(sink), "all lines are copied after the kill", COPY_TIMEOUT_S)
        worker.wait_until_running("source", "sink")
    assert values(cluster, topic) == lines(0, 2 * LINES)
    check_repeats(read(sink), lines(0, 2 * LINES))


def test_distributed_workers(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """Two workers; later a third one takes over with what the topics of the group have stored."""
    topic, group, source, sink = unique("lines"), unique("connect"), tmp_path / "source.txt", tmp_path / "sink.txt"
    cluster.create_topic(topic)
    append(source, lines(0, LINES))
    with ExitStack() as stack:
        workers = [distributed_worker(tmp_path, cluster.bootstrap, group, number) for number in (1, 2)]
        for each in workers:
            stack.enter_context(each.process)
        worker = workers[0]
        worker.wait_until_ready()
        for name, configuration in (("source", file_source(source, topic)), ("sink", file_sink(sink, topic))):
            worker.request("PUT", f"/connectors/{name}/config", configuration)
        worker.wait_until_running("source", "sink")
        worker.process.wait_until(lambda: len(read(sink)) >= LINES, "all lines are copied", COPY_TIMEOUT_S)
        assert read(sink) == lines(0, LINES)
        victim = cluster.coordinator_of(group)
        append_during_kill(source, sink, lines(LINES, 2 * LINES), worker, lambda: cluster.kill(victim))
        last = lines(2 * LINES - 1, 2 * LINES)[0]
        worker.process.wait_until(lambda: last in read(sink), "all lines are copied after the kill", COPY_TIMEOUT_S)
        worker.wait_until_running("source", "sink")
    check_repeats(read(sink), lines(0, 2 * LINES))
    assert values(cluster, topic) == lines(0, 2 * LINES)
    delivered = read(sink)
    append(source, lines(2 * LINES, 3 * LINES))
    successor = distributed_worker(tmp_path, cluster.bootstrap, group, 3)
    with successor.process:
        successor.wait_until_running("source", "sink")
        last = lines(3 * LINES - 1, 3 * LINES)[0]
        successor.process.wait_until(lambda: last in read(sink), "the new lines are copied", COPY_TIMEOUT_S)
        offsets = successor.request("GET", "/connectors/source/offsets")
    assert read(sink) == delivered + lines(2 * LINES, 3 * LINES)
    assert values(cluster, topic) == lines(0, 3 * LINES)
    assert offsets
