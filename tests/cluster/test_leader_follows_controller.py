"""A topic with leader.follows.controller on three processes: the active controller leads it, also after `kill -9` of a
controller, and nothing acknowledged is lost or duplicated."""

import time
from pathlib import Path

import pytest

from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check_records
from support.broker_process_cluster import BrokerProcessCluster
from support.log_reader import all_records
from support.steady_writer import SteadyWriter

pytestmark = pytest.mark.clients

PARTITIONS = 3
TOPIC = "follows"


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
