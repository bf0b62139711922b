"""Nodes that restart with an empty disk: nothing that other replicas have is lost."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import clean_environment
from support.broker_process_cluster import BrokerProcessCluster
from support.real_clients import CLIENTS

pytestmark = pytest.mark.clients

CLIENT = CLIENTS[min(CLIENTS)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path) as served:
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.output()


def texts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def replace_disk(cluster: BrokerProcessCluster, node_id: int) -> None:
    shutil.rmtree(cluster.nodes[node_id].data_dir)


def moldau(cluster: BrokerProcessCluster, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", *words, "--bootstrap", cluster.bootstrap],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_nodes_serve_without_the_third_and_its_empty_disk_loses_nothing(cluster: BrokerProcessCluster) -> None:
    cluster.create_topic("orders")
    cluster.wait_in_sync("orders")
    before, after = texts(100, "before"), texts(100, "after")
    CLIENT.produce(cluster.bootstrap, "orders", before)
    third = cluster.leader_of("orders")
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    others = [node_id for node_id in cluster.nodes if node_id != third]
    for node_id in others:
        cluster.nodes[node_id].spawn()
    for node_id in others:
        cluster.nodes[node_id].wait_ready()
    cluster.wait_until(lambda: cluster.isr("orders") == others, "two are in sync")
    assert CLIENT.read(cluster.bootstrap, "orders", 100) == list(enumerate(before))
    assert CLIENT.produce(cluster.bootstrap, "orders", after) == list(range(100, 200))

    replace_disk(cluster, third)
    cluster.start(third)
    cluster.wait_in_sync("orders")
    assert CLIENT.read(cluster.bootstrap, "orders", 200) == list(enumerate(before + after))


def test_a_node_with_an_empty_disk_does_not_become_leader(cluster: BrokerProcessCluster) -> None:
    """Holds no matter how the ISR shrank meanwhile."""
    cluster.create_topic("orders", 6)
    cluster.wait_in_sync("orders")
    values = texts(300, "v")
    for node_id in cluster.nodes:
        # The partitions have leaders on all nodes.
        CLIENT.produce(cluster.bootstrap, "orders", values[(node_id - 1) * 100 : node_id * 100])
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    replace_disk(cluster, 1)
    for node_id in (2, 3, 1):
        cluster.nodes[node_id].spawn()
    for node_id in cluster.nodes:
        cluster.nodes[node_id].wait_ready()
    cluster.wait_in_sync("orders")
    held = [value for _, value in CLIENT.read(cluster.bootstrap, "orders", 300)]
    assert sorted(held) == sorted(values)


def test_a_partition_whose_last_in_sync_replica_lost_its_disk_needs_an_unclean_election(
    cluster: BrokerProcessCluster,
) -> None:
    cluster.create_topic("orders", replicas=2, min_insync_replicas="1")
    cluster.wait_in_sync("orders")
    shared, alone = texts(50, "shared"), texts(50, "alone")
    CLIENT.produce(cluster.bootstrap, "orders", shared)
    replicas = cluster.metadata().topics["orders"].partitions[0].replicas
    last, other = replicas
    bystander = next(node_id for node_id in cluster.nodes if node_id not in replicas)
    cluster.kill(other)
    cluster.wait_until(lambda: cluster.isr("orders") == [last], "one is left in sync")
    CLIENT.produce(cluster.bootstrap, "orders", alone)
    cluster.kill(last)
    cluster.start(other)
    replace_disk(cluster, last)
    cluster.start(last)
    cluster.wait_until(
        lambda: (cluster.leader_of("orders"), cluster.isr("orders")) == (-1, []), "no in-sync replica is left"
    )
    cluster.wait_until(
        lambda: any("partitions have an empty ISR" in cluster.nodes[each].output() for each in (other, bystander)),
        "a warning is in the log",
    )
    status = moldau(cluster, "cluster", "status")
    assert "1 without an in-sync replica: orders-0" in status

    moldau(cluster, "cluster", "elect-leaders", "orders", "--unclean", "--yes")
    cluster.wait_until(lambda: cluster.leader_of("orders") == other, "the longest log leads")
    cluster.wait_in_sync("orders")
    assert CLIENT.read(cluster.bootstrap, "orders", 50) == list(enumerate(shared))
    later = texts(10, "later")
    assert CLIENT.produce(cluster.bootstrap, "orders", later) == list(range(50, 60))
