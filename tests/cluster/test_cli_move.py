"""`moldau topic move` and `moldau cluster reassign` on running nodes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from moldau.cli import reassignment
from moldau.cli.commands import app
from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.errors import KafkaError
from moldau.testing import Cluster
from support.topics import unique

PARTITIONS = 3
RECORDS = 60
RECORD_BYTES = 2_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(4) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with one replica per partition, on the nodes 1, 2 and 3."""
    name = unique("orders")

    async def create() -> None:
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic(name, PARTITIONS, 1, {"min.insync.replicas": "1"})
            await admin.alter_reassignments({TopicPartition(name, each): [each + 1] for each in range(PARTITIONS)})
            while await admin.list_reassignments():
                await asyncio.sleep(0.02)
            sent = [
                await producer.send(name, b"%d" % number + b"." * RECORD_BYTES, partition=number % PARTITIONS)
                for number in range(RECORDS)
            ]
            await asyncio.gather(*sent)

    asyncio.run(create())
    return name


def moldau(cluster: Cluster, *arguments: str, typed: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=typed, env={"MOLDAU_BOOTSTRAP": cluster.bootstrap})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == code, result.output
    return result


def replicas(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    images = [node.broker.metadata.image for node in cluster.nodes.values()]
    image = max(images, key=lambda image: image.offset)
    return [each.replicas for each in image.topics[topic].partitions]


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def reassignment_file(path: Path, topic: str, targets: Sequence[Sequence[int]]) -> str:
    partitions = [{"topic": topic, "partition": index, "replicas": nodes} for index, nodes in enumerate(targets)]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


async def read(cluster: Cluster, topic: str) -> list[int]:
    found: list[int] = []
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer, asyncio.timeout(60):
        consumer.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        while len(found) < RECORDS:
            found += [int((record.value or b"").rstrip(b".")) for record in await consumer.poll(200)]
    return sorted(found)


def wait_until_down(cluster: Cluster, node: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        (status,) = json_lines(moldau(cluster, "cluster", "status", "--json"))
        if {each["node"]: each["state"] for each in status["nodes"]}[node] == "down":
            return
        assert time.monotonic() < deadline


def test_the_replication_factor_is_raised_after_confirmation_and_undone(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    move = ["topic", "move", topic, "--replication-factor", "3"]
    refused = moldau(cluster, *move, typed="n\n", code=1)
    assert refused.stdout.splitlines()[1].split()[:2] == [f"{topic}-0", "1"]
    assert "Move 3 partitions?" in refused.stderr
    assert replicas(cluster, topic) == [(1,), (2,), (3,)]
    undo = str(tmp_path / "undo.json")
    done = moldau(cluster, *move, "--undo-file", undo, typed="y\n")
    assert "3 moves complete." in done.stdout
    assert [(each[0], len(set(each))) for each in replicas(cluster, topic)] == [(1, 3), (2, 3), (3, 3)]
    assert "There is nothing to move" in moldau(cluster, *move).stderr
    moldau(cluster, "cluster", "reassign", undo, "--yes")
    assert replicas(cluster, topic) == [(1,), (2,), (3,)]
    assert asyncio.run(read(cluster, topic)) == list(range(RECORDS))


def test_a_plan_has_the_bytes_to_copy(cluster: Cluster, topic: str) -> None:
    arguments = ["topic", "move", topic, "--replicas", "4,3", "--dry-run"]
    plan = json_lines(moldau(cluster, *arguments, "--json"))
    assert [each["new_replicas"] for each in plan] == [[4, 3], [3, 4], [4, 3]]
    assert [each["replicas"] for each in plan] == [[1], [2], [3]]
    log_bytes = RECORDS // PARTITIONS * RECORD_BYTES
    # Both replicas of the partitions 0 and 1 are new, and one of partition 2.
    for each, copies in zip(plan, (2, 2, 1), strict=True):
        assert copies * log_bytes < each["bytes_to_copy"] < copies * log_bytes * 1.5
    assert "3 partitions to move" in moldau(cluster, *arguments).stdout
    assert replicas(cluster, topic) == [(1,), (2,), (3,)]


def test_single_partitions_move_to_named_nodes_while_the_others_stay(cluster: Cluster, topic: str) -> None:
    moldau(cluster, "topic", "move", topic, "--replicas", "4,2", "--partition", "0", "--partition", "2", "--yes")
    assert replicas(cluster, topic) == [(4, 2), (2,), (2, 4)]
    assert asyncio.run(read(cluster, topic)) == list(range(RECORDS))


def test_a_file_moves_partitions_of_several_topics(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    file = reassignment_file(tmp_path / "moves.json", topic, [[4], [2], [3, 4]])
    shown = moldau(cluster, "cluster", "reassign", file, "--dry-run")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:3]] == [f"{topic}-0", f"{topic}-2"]
    assert "2 moves complete." in moldau(cluster, "cluster", "reassign", file, "--yes").stdout
    assert replicas(cluster, topic) == [(4,), (2,), (3, 4)]


def test_missing_nodes_partitions_and_topics_are_named(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    assert "Node 9 does not exist" in moldau(cluster, "topic", "move", topic, "--replicas", "1,9", code=3).stderr
    wrong = moldau(cluster, "topic", "move", topic, "--replicas", "1", "--partition", "7", code=3).stderr
    assert f"Partition {topic}-7 does not exist" in wrong
    assert "needs 5 running nodes" in moldau(cluster, "topic", "move", topic, "-r", "5", code=1).stderr
    file = reassignment_file(tmp_path / "moves.json", topic.replace("orders", "ordres"), [[1]])
    assert f"Did you mean {topic}?" in moldau(cluster, "cluster", "reassign", file, code=3).stderr
    file = reassignment_file(tmp_path / "moves.json", topic, [])
    assert "is not a list of partitions" in " ".join(
        moldau(cluster, "cluster", "reassign", file, code=2).stderr.split()
    )


def check_interruption(cluster: Cluster, command: Sequence[str]) -> None:
    """Ctrl-C ends a command that waits for its move, and not the move."""
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": cluster.bootstrap}
    arguments = [sys.executable, "-m", "moldau", *command]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        try:
            while b"cannot be moved yet" not in (line := process.stderr.readline()):
                assert line, "the command ended"
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read().decode()
            assert (process.wait(60), "Traceback" in rest) == (130, False)
            assert "The moves continue." in rest
        finally:
            process.kill()


def test_a_move_to_a_stopped_node_is_watched_reported_and_cancelled(
    topic: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reassignment, "STALLED_POLLS_MAX", 2)
    statuses: list[str] = []

    class RecordedBar:
        def update(self, completed: float, total: float, status: str) -> None:
            statuses.append(status)

    @contextmanager
    def recorded_bar(what: str) -> Iterator[RecordedBar]:
        yield RecordedBar()

    cluster.stop(4)
    try:
        wait_until_down(cluster, 4)
        move = ["topic", "move", topic, "--replicas", "1,4", "--partition", "0"]
        undo = tmp_path / "undo.json"
        undo.write_text("the replicas before other moves")
        refused = moldau(cluster, *move, "--yes", "--undo-file", str(undo), code=1)
        assert f"{undo} exists, and would be overwritten" in refused.stderr
        assert replicas(cluster, topic)[0] == (1,)
        started = moldau(cluster, *move, "--no-wait", "--yes")
        assert "1 move started." in started.stdout
        assert "Node 4 is down" in started.stderr
        # The same command again waits for the move, and asks nothing.
        with monkeypatch.context() as patched:
            patched.setattr(reassignment, "progress_bar", recorded_bar)
            stuck = moldau(cluster, *move, "--undo-file", str(undo), code=1)
        assert undo.read_text() == "the replicas before other moves"
        (status,) = set(statuses)
        size = re.fullmatch(r"0 of 1 partition, (\d+\.\d) kB left", status)
        assert size is not None
        assert RECORDS // PARTITIONS * RECORD_BYTES < float(size[1]) * 1000 < RECORDS // PARTITIONS * RECORD_BYTES * 1.5
        assert "(moving)" in stuck.stdout
        assert f"{topic}-0 cannot be moved yet: its new replica on node 4 is down" in stuck.stderr
        assert "run the command again to wait for them, or with --cancel" in stuck.stderr
        check_interruption(cluster, move)
        other = ["topic", "move", topic, "--replicas", "1,2", "--partition", "0", "--dry-run"]
        assert "(replaces the move to 1,4)" in moldau(cluster, *other).stdout
        assert [each["replaced_replicas"] for each in json_lines(moldau(cluster, *other, "--json"))] == [[1, 4]]
        cancel = ["topic", "move", topic, "--cancel"]
        moldau(cluster, *cancel, typed="n\n", code=1)
        assert f"Moves to cancel: {topic}-0. Nothing was" in moldau(cluster, *cancel, "--dry-run", "--yes").stderr
        moldau(cluster, *cancel, "--json", "--yes", code=2)
        assert set(replicas(cluster, topic)[0]) == {1, 4}
        file = reassignment_file(tmp_path / "moves.json", topic, [[1, 4]])
        cancelled = moldau(cluster, "cluster", "reassign", file, "--cancel", "--yes")
        assert cancelled.stdout == f"{topic}-0: move cancelled\n"
        assert replicas(cluster, topic)[0] == (1,)
        assert "No move is in progress" in moldau(cluster, "topic", "move", topic, "--cancel").stderr
    finally:
        cluster.restart(4)


def test_a_move_that_keeps_a_replica_on_a_stopped_node_does_not_wait_for_ever(
    topic: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "STALLED_POLLS_MAX", 2)
    partition = ["--partition", "0"]
    moldau(cluster, "topic", "move", topic, "--replicas", "1,2,4", *partition, "--yes")
    cluster.stop(4)
    try:
        wait_until_down(cluster, 4)
        stuck = moldau(cluster, "topic", "move", topic, "--replicas", "1,4", *partition, "--yes", code=1)
        assert f"{topic}-0 cannot be moved yet: its replica on node 4 is down" in stuck.stderr
        moldau(cluster, "topic", "move", topic, "--cancel", "--yes")
        assert set(replicas(cluster, topic)[0]) == {1, 2, 4}
        # The replica on the stopped node can be removed.
        moldau(cluster, "topic", "move", topic, "--replicas", "1,2", *partition, "--yes")
        assert replicas(cluster, topic)[0] == (1, 2)
    finally:
        cluster.restart(4)


def test_a_move_that_is_cancelled_while_it_is_watched_is_a_failure(
    topic: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "SETTLE_TIMEOUT_S", 0.5)

    async def main() -> Result:
        moving = TopicPartition(topic, 0)
        async with Admin(cluster.bootstrap) as admin:
            arguments = ["topic", "move", topic, "--replicas", "1,4", "--partition", "0", "--yes"]
            command = asyncio.create_task(asyncio.to_thread(moldau, cluster, *arguments, code=1))
            async with asyncio.timeout(60):
                while not await admin.list_reassignments([moving]):
                    await asyncio.sleep(0.02)
            assert not isinstance((await admin.alter_reassignments({moving: None}))[moving], KafkaError)
            return await command

    cluster.stop(4)
    try:
        failed = asyncio.run(main())
    finally:
        cluster.restart(4)
    assert "the move was cancelled or replaced; the replicas are 1." in failed.stderr
