"""Transaction coordinators in a cluster: markers on other nodes, and nodes that die before and after a decision."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.records.batch import Batch, split
from moldau.records.control_records import EndTransaction, decode
from moldau.records.record import iterate_records
from moldau.testing import Cluster
from support.transaction_cluster import PATIENCE_S, STATE_PARTITIONS, ClusterProducer
from support.transaction_wire import NOT_AVAILABLE, Coordinator

PARTITIONS = 6
TOPIC = "orders"
ALL = [(TOPIC, index) for index in range(PARTITIONS)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
    with Cluster(3, topics={TOPIC: PARTITIONS}, settings=settings) as started:
        yield started


def outcomes(cluster: Cluster, producer_id: int) -> dict[int, set[tuple[int, bool]]]:
    """Returns the epoch and outcome of the markers on all replicas, by partition."""
    found: dict[int, set[tuple[int, bool]]] = {index: set() for index in range(PARTITIONS)}
    for node in cluster.nodes.values():
        for index in range(PARTITIONS):
            partition = node.broker.replica_manager.get(TOPIC, index)
            assert partition is not None
            for batch in batches(node, partition):
                if batch.is_control and batch.producer_id == producer_id:
                    for record in iterate_records(batch):
                        control = decode(record)
                        assert isinstance(control, EndTransaction)
                        found[index].add((batch.producer_epoch, control.commit))
    return found


def batches(node: Any, partition: Any) -> list[Batch]:
    log = Path(node.broker.settings.static.data_dir) / f"{TOPIC}-{partition.name.partition}"
    data = b"".join(each.read_bytes() for each in sorted(log.glob("*.log")))
    return list(split(data, allow_partial=True))


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_reaches_the_leaders_on_all_nodes(cluster: Cluster, commit: bool) -> None:
    producers = [ClusterProducer(cluster) for _ in range(4)]
    started = [producer.begin(*ALL) for producer in producers]
    assert {cluster.leader_of(TOPIC, index) for index in range(PARTITIONS)} == {1, 2, 3}
    for producer, (producer_id, epoch) in zip(producers, started, strict=True):
        assert producer.end_once((producer_id, epoch), commit=commit) == 0
        producer.wait_for("CompleteCommit" if commit else "CompleteAbort")
        expected = {index: {(epoch + 1, commit)} for index in range(PARTITIONS)}
        assert outcomes(cluster, producer_id) == expected


def test_the_next_coordinator_completes_the_transaction(cluster: Cluster) -> None:
    producer = ClusterProducer(cluster)
    for commit in (True, False):
        producer_id, epoch = producer.begin(*ALL)
        producer.end_once((producer_id, epoch), commit=commit)
        killed = producer.coordinator_id
        cluster.kill(killed)
        # The decision may be lost with its coordinator, so the producer repeats its request.
        code = producer.run(partial(Coordinator.end_code, producer=(producer_id, epoch), commit=commit))
        assert code == 0
        state = producer.wait_for("CompleteCommit" if commit else "CompleteAbort")
        assert state["producer_epoch"] == epoch + 1
        cluster.restart(killed)
        assert {
            index: {found for found in each if found[0] == epoch + 1}
            for index, each in outcomes(cluster, producer_id).items()
        } == {index: {(epoch + 1, commit)} for index in range(PARTITIONS)}


def test_markers_wait_for_the_next_leader_of_a_partition(cluster: Cluster) -> None:
    producer = ClusterProducer(cluster)
    producer_id, epoch = producer.begin(*ALL)
    others = [node for node in cluster.nodes if node != producer.coordinator_id]
    cluster.kill(others[0])
    assert producer.end_once((producer_id, epoch), commit=True) in (0, NOT_AVAILABLE)
    assert producer.run(lambda coordinator: coordinator.end_code((producer_id, epoch), commit=True)) == 0
    producer.wait_for("CompleteCommit")
    cluster.restart(others[0])
    assert outcomes(cluster, producer_id) == {index: {(epoch + 1, True)} for index in range(PARTITIONS)}


def test_a_paused_coordinator_does_not_end_the_transaction_of_its_successor(cluster: Cluster) -> None:
    producer = ClusterProducer(cluster)
    old = producer.begin(*ALL)
    paused = producer.coordinator_id
    cluster.pause(paused)
    deadline = time.monotonic() + PATIENCE_S
    while producer.coordinator_id in (paused, -1):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    producer.reconnect()
    new = producer.run(lambda coordinator: coordinator.init())
    assert new == (old[0], old[1] + 2)
    producer.run(lambda coordinator: coordinator.add(new, *ALL, version=5))
    cluster.resume(paused)
    assert producer.end_once(new, commit=True) == 0
    producer.wait_for("CompleteCommit")
    expected = {(old[1] + 1, False), (new[1] + 1, True)}
    assert outcomes(cluster, old[0]) == dict.fromkeys(range(PARTITIONS), expected)
