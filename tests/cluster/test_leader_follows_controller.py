"""A topic with leader.follows.controller on three processes: the active controller leads it, also after `kill -9` of a
controller, and nothing acknowledged is lost or duplicated."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.metadata.image import PartitionRegistration
from moldau.testing import Cluster
from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check_records
from support.broker_process_cluster import BrokerProcessCluster
from support.log_reader import all_records
from support.steady_writer import SteadyWriter

pytestmark = pytest.mark.clients

PARTITIONS = 3
TOPIC = "follows"
TIMEOUT_S = 30.0


def leaders(cluster: BrokerProcessCluster) -> set[int]:
    return {each.leader for each in cluster.metadata().topics[TOPIC].partitions.values()}


def wait_led_by_controller(cluster: BrokerProcessCluster) -> int:
    cluster.wait_until(lambda: leaders(cluster) == {cluster.quorum()[0]}, "the controller leads all partitions")
    return cluster.quorum()[0]


def test_leadership_follows_the_controller_and_no_record_is_lost(tmp_path: Path) -> None:
    history = History()
    with BrokerProcessCluster(tmp_path, settings={"leader.imbalance.check.interval.seconds": "1"}) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 1, leader_follows_controller="true", min_insync_replicas="2")
        cluster.wait_in_sync(TOPIC)
        assert {len(each.replicas) for each in cluster.metadata().topics[TOPIC].partitions.values()} == {3}
        first = wait_led_by_controller(cluster)
        writer = SteadyWriter(cluster.bootstrap, TOPIC, PARTITIONS, history)
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        killed_at = time.monotonic()
        cluster.kill(first)
        cluster.wait_until(lambda: cluster.quorum()[0] not in (-1, first), "another controller is elected")
        second = wait_led_by_controller(cluster)
        assert second != first
        writer.wait_resumed(range(PARTITIONS), killed_at)
        cluster.start(first)
        cluster.wait_in_sync(TOPIC)
        # Longer than the interval of automatic leader balancing, which must not move the leaders back.
        time.sleep(3)
        assert cluster.quorum()[0] == second
        assert leaders(cluster) == {second}
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        writer.finish()
        for record in all_records(cluster.bootstrap, TOPIC):
            history.logs.setdefault((TOPIC, record.partition), []).append(  # type: ignore[attr-defined]
                (record.offset, record.value or b"")
            )
    assert check_records(history) == []
    assert not writer.failures
    assert sum(send.is_acknowledged for send in history.sends) == len(history.sends) > 100


def partition(cluster: Cluster) -> PartitionRegistration:
    images = [node.broker.metadata.image for node in cluster.nodes.values()]
    found = max(images, key=lambda image: image.offset).partition(TOPIC, 0)
    assert found is not None
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.02)


def moldau(cluster: Cluster, *arguments: str) -> None:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", cluster.bootstrap])
    assert result.exit_code == 0, result.output


def test_a_drained_node_leaves_the_set_and_a_joining_node_enters_it() -> None:
    with Cluster(3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = {"leader.follows.controller": "true", "min.insync.replicas": "2"}
        admin.create_topics([NewTopic(TOPIC, 1, config=configs)])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        controller = cluster.controller_id
        assert sorted(partition(cluster).replicas) == [1, 2, 3]
        assert partition(cluster).leader == controller
        follower = next(each for each in cluster.nodes if each != controller)
        moldau(cluster, "cluster", "drain", str(follower), "--yes")
        assert sorted(partition(cluster).replicas) == sorted({1, 2, 3} - {follower})
        producer.produce(TOPIC, b"drained")
        assert producer.flush(TIMEOUT_S) == 0
        # A restarted node is not a new one: it stays drained.
        cluster.restart(follower)
        assert follower not in partition(cluster).replicas
        cluster.stop(follower)
        moldau(cluster, "cluster", "unregister", str(follower), "--yes")
        cluster.restart(follower)
        wait_until(lambda: follower in partition(cluster).isr, "the node that joined is in sync")
        wait_until(lambda: not partition(cluster).is_reassigning, "the reassignment is complete")
        assert partition(cluster).leader == cluster.controller_id
        producer.produce(TOPIC, b"joined")
        assert producer.flush(TIMEOUT_S) == 0
        assert [record.value for record in all_records(cluster.bootstrap, TOPIC)] == [b"drained", b"joined"]
