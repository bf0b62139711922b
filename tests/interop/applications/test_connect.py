"""Kafka Connect copies a file to a topic and the topic to another file, while a node is killed.

The source's producer is idempotent and its task is not restarted, so the topic has every line once, in order. Connect
promises at-least-once delivery to a sink: after the kill the sink may receive again what it received since its last
commit. Nothing is lost, and without a kill nothing is repeated.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from applications.cluster_under_test import ClusterUnderTest
from applications.connect import ConnectWorker, distributed_worker, file_sink, file_source, standalone_worker
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
    """Checks at-least-once delivery: each line follows its predecessor, or delivery begins again at an earlier line."""
    index_of = {line: index for index, line in enumerate(expected)}
    previous = -1
    for line in delivered:
        assert index_of[line] <= previous + 1, f"{expected[previous + 1]!r} is missing before {line!r}"
        previous = index_of[line]
    assert previous == len(expected) - 1, f"{expected[previous + 1]!r} and the lines after it are missing"


def wait_until_copied(worker: ConnectWorker, sink: Path, expected: list[str]) -> None:
    worker.process.wait_until(lambda: read(sink)[-1:] == expected[-1:], "all lines are copied", COPY_TIMEOUT_S)


def check_after_kill(cluster: ClusterUnderTest, topic: str, sink: Path, expected: list[str]) -> None:
    assert [(record.value or b"").decode() for record in all_records(cluster.bootstrap, topic, 60)] == expected
    check_repeats(read(sink), expected)


def test_standalone_worker(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    topic, source, sink = unique("lines"), tmp_path / "source.txt", tmp_path / "sink.txt"
    source_name, sink_name = unique("source"), unique("sink")
    cluster.create_topic(topic)
    append(source, lines(0, LINES))
    connectors = {source_name: file_source(source, topic), sink_name: file_sink(sink, topic)}
    worker = standalone_worker(tmp_path, cluster.bootstrap, connectors)
    with worker.process:
        wait_until_copied(worker, sink, lines(0, LINES))
        assert read(sink) == lines(0, LINES)
        victim = cluster.leader_of(topic)
        append_during_kill(source, sink, lines(LINES, 2 * LINES), worker, lambda: cluster.kill(victim))
        wait_until_copied(worker, sink, lines(0, 2 * LINES))
        worker.wait_until_running(source_name, sink_name)
    check_after_kill(cluster, topic, sink, lines(0, 2 * LINES))


def test_distributed_workers(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """Two workers copy; later another one continues with what the topics of their group have stored."""
    topic, group, source, sink = unique("lines"), unique("workers"), tmp_path / "source.txt", tmp_path / "sink.txt"
    source_name, sink_name = unique("source"), unique("sink")
    cluster.create_topic(topic)
    append(source, lines(0, LINES))
    with ExitStack() as stack:
        workers = [distributed_worker(tmp_path, cluster.bootstrap, group, number) for number in (1, 2)]
        for each in workers:
            stack.enter_context(each.process)
        for each in workers:
            each.wait_until_ready()
        # Each of them accepts requests for the whole group.
        workers[0].create_connector(source_name, file_source(source, topic))
        workers[1].create_connector(sink_name, file_sink(sink, topic))
        worker = workers[0]
        wait_until_copied(worker, sink, lines(0, LINES))
        assert read(sink) == lines(0, LINES)
        victim = cluster.coordinator_of(group)
        append_during_kill(source, sink, lines(LINES, 2 * LINES), worker, lambda: cluster.kill(victim))
        wait_until_copied(worker, sink, lines(0, 2 * LINES))
        worker.wait_until_running(source_name, sink_name)
    check_after_kill(cluster, topic, sink, lines(0, 2 * LINES))
    copied = read(sink)
    append(source, lines(2 * LINES, 3 * LINES))
    successor = distributed_worker(tmp_path, cluster.bootstrap, group, 3)
    with successor.process:
        wait_until_copied(successor, sink, lines(0, 3 * LINES))
        successor.wait_for_offset(source_name, {"filename": str(source)}, {"position": source.stat().st_size})
        end = {"kafka_offset": 3 * LINES}
        successor.wait_for_offset(sink_name, {"kafka_topic": topic, "kafka_partition": 0}, end)
    assert read(sink) == copied + lines(2 * LINES, 3 * LINES)
    check_after_kill(cluster, topic, sink, lines(0, 3 * LINES))
