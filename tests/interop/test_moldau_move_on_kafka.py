"""`moldau topic move` and `moldau cluster reassign` against a cluster of Apache Kafka."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_kafka import available
from java_clients import poll_until
from kafka_cluster import KafkaCluster
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.client import Admin, Producer, TopicPartition

PARTITIONS = 3
RECORDS = 300


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap


def moldau(bootstrap: str, *arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"MOLDAU_BOOTSTRAP": bootstrap})
    assert result.exit_code == 0, result.output
    return result


def replicas(bootstrap: str) -> list[tuple[int, ...]]:
    async def describe() -> list[tuple[int, ...]]:
        async with Admin(bootstrap) as admin:
            return [each.replicas for each in (await admin.describe_topic("orders")).partitions]

    return asyncio.run(describe())


def wait_for_replicas(bootstrap: str, expected: list[list[int]]) -> None:
    """Waits for a broker that applies the end of a move a little later than the controller reports it."""
    poll_until(lambda: [sorted(each) for each in replicas(bootstrap)] == expected, f"the replicas are {expected}")


def test_replicas_are_moved_and_moved_back(bootstrap: str, tmp_path: Path) -> None:
    async def create() -> None:
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            await admin.create_topic("orders", PARTITIONS, 1, {"min.insync.replicas": "1"})
            sent = [await producer.send("orders", b"." * 1000, partition=each % PARTITIONS) for each in range(RECORDS)]
            await asyncio.gather(*sent)
            targets = {TopicPartition("orders", each): [each + 1] for each in range(PARTITIONS)}
            assert set((await admin.alter_reassignments(targets)).values()) == {None}
            async with asyncio.timeout(60):
                while await admin.list_reassignments():
                    await asyncio.sleep(0.1)

    asyncio.run(create())
    wait_for_replicas(bootstrap, [[1], [2], [3]])
    undo = str(tmp_path / "undo.json")
    plan = moldau(bootstrap, "topic", "move", "orders", "--replication-factor", "3", "--dry-run").stdout
    assert "3 partitions to move, 6" in plan
    moved = moldau(bootstrap, "topic", "move", "orders", "-r", "3", "--yes", "--undo-file", undo)
    assert "3 moves complete." in moved.stdout
    everywhere = [1, 2, 3]
    wait_for_replicas(bootstrap, [everywhere] * PARTITIONS)
    assert [each[0] for each in replicas(bootstrap)] == [1, 2, 3]
    assert "3 moves complete." in moldau(bootstrap, "cluster", "reassign", undo, "--yes").stdout
    wait_for_replicas(bootstrap, [[1], [2], [3]])
    assert "No move is in progress" in moldau(bootstrap, "topic", "move", "orders", "--cancel").stderr
