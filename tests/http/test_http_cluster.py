"""The simple HTTP API of a cluster: the leader accepts requests, and the other nodes name it with status 421."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import ConfigResource

from support.broker_process_cluster import BrokerProcessCluster
from support.http_node import http_address

SECRET = {"X-Cluster-Secret": "s3cret"}
TIMEOUT_S = 90
"""Longer than the 30 s that a record waits for its replicas."""


@pytest.fixture(scope="module")
def cluster(only_moldau: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    settings = {"http.port": "0", "cluster.secret": "s3cret"}
    with BrokerProcessCluster(tmp_path_factory.mktemp("http-cluster"), 3, settings) as cluster:
        yield cluster
        for node in cluster.nodes.values():
            assert "Traceback" not in node.output()


def request(cluster: BrokerProcessCluster, node_id: int, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, f"http://{http_address(cluster.nodes[node_id])}{path}", timeout=TIMEOUT_S, **options)


def leader(cluster: BrokerProcessCluster) -> int:
    return cluster.quorum()[0]


def followers(cluster: BrokerProcessCluster) -> list[int]:
    return [node_id for node_id in cluster.nodes if node_id != leader(cluster)]


def create(cluster: BrokerProcessCluster, name: str, partitions: int = 2) -> None:
    body = {"topic_name": name, "partition_count": partitions}
    response = request(cluster, leader(cluster), "POST", "/admin/v1/topics", json=body)
    assert response.status_code == 201, response.text


def test_every_node_names_the_leader(cluster: BrokerProcessCluster) -> None:
    for node_id in cluster.nodes:
        expected = {"status": "up", "broker_id": node_id, "leader_broker_id": leader(cluster)}
        assert request(cluster, node_id, "GET", "/healthcheck").json() == expected


def test_topics_are_replicated_to_all_brokers(cluster: BrokerProcessCluster) -> None:
    body = {"topic_name": "everywhere", "partition_count": 2, "replication_factor": 1}
    created = request(cluster, leader(cluster), "POST", "/admin/v1/topics", json=body)
    expected = {
        "topic_name": "everywhere",
        "partitions": [
            {"id": "everywhere-1", "replica_brokers": ["1", "2", "3"]},
            {"id": "everywhere-2", "replica_brokers": ["1", "2", "3"]},
        ],
    }
    assert (created.status_code, created.json()) == (201, expected)
    assert expected in request(cluster, leader(cluster), "GET", "/admin/v1/topics").json()["topics"]
    partitions = cluster.metadata().topics["everywhere"].partitions
    assert [partitions[index].leader for index in (0, 1)] == [leader(cluster)] * 2


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/admin/v1/topics", {"topic_name": "another", "partition_count": 1}),
        ("GET", "/admin/v1/topics", None),
        ("DELETE", "/admin/v1/topics/misdirected", None),
        ("POST", "/data/v1/produce", {"topic_partition": "misdirected-1", "payload": "x", "acks": "all"}),
        ("POST", "/data/v1/produce", {"topic_partition": "misdirected-1", "payload": "x", "acks": "0"}),
        ("POST", "/data/v1/consume", {"topic_partition": "misdirected-1", "last_offset": -1, "max_batch_size": 1}),
        ("POST", "/kraft/v1/fetchMetadata", {"last_offset": -1, "last_offset_epoch": -1, "max_batch_size": 1}),
    ],
)
def test_the_other_nodes_respond_with_421(cluster: BrokerProcessCluster, method: str, path: str, body: Any) -> None:
    if "misdirected" not in cluster.metadata().topics:
        create(cluster, "misdirected")
    for node_id in followers(cluster):
        response = request(cluster, node_id, method, path, json=body, headers=SECRET)
        assert response.status_code == 421, response.text
        assert response.json() == {"detail": f"leader is {leader(cluster)}, can't accept"}
    names = [
        topic["topic_name"] for topic in request(cluster, leader(cluster), "GET", "/admin/v1/topics").json()["topics"]
    ]
    assert ("misdirected" in names, "another" in names) == (True, False)


def test_acks_all_waits_for_the_in_sync_replicas(cluster: BrokerProcessCluster) -> None:
    create(cluster, "acknowledged", 1)
    body = {"topic_partition": "acknowledged-1", "payload": "stored", "acks": "all"}
    assert request(cluster, leader(cluster), "POST", "/data/v1/produce", json=body).status_code == 204
    for node_id in cluster.nodes:
        log = cluster.nodes[node_id].data_dir / "acknowledged-0" / "00000000000000000000.log"
        assert b"stored" in log.read_bytes()


def test_voters_that_have_not_joined_count_for_the_majority(only_moldau: None, tmp_path: Path) -> None:
    cluster = BrokerProcessCluster(tmp_path, 5, {"http.port": "0"})
    started = [cluster.nodes[node_id] for node_id in (1, 2, 3)]
    with ExitStack() as ending:
        for node in started:
            ending.callback(node.kill)
            node.spawn()
        for node in started:
            node.wait_ready()
        create(cluster, "early", 1)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "early")
        admin = cluster.admin()
        configs = admin.describe_configs([resource], request_timeout=30)[resource].result()
        assert configs["min.insync.replicas"].value == "3"


def test_without_a_majority_in_sync_a_record_gets_503(only_moldau: None, tmp_path: Path) -> None:
    settings = {"http.port": "0", "replica.lag.time.max.ms": "1000"}
    with BrokerProcessCluster(tmp_path, 3, settings) as cluster:
        create(cluster, "minority", 1)
        leader_id = leader(cluster)
        for node_id in cluster.nodes:
            if node_id != leader_id:
                cluster.pause(node_id)
        body = {"topic_partition": "minority-1", "payload": "x", "acks": "all"}
        response = request(cluster, leader_id, "POST", "/data/v1/produce", json=body)
        assert response.status_code == 503, response.text
        assert response.headers["retry-after"] == "1"
        for node_id in cluster.nodes:
            cluster.resume(node_id)


def test_another_node_takes_over_from_a_dead_leader(cluster: BrokerProcessCluster) -> None:
    create(cluster, "survivor", 1)
    body = {"topic_partition": "survivor-1", "payload": "before", "acks": "all"}
    dead = leader(cluster)
    assert request(cluster, dead, "POST", "/data/v1/produce", json=body).status_code == 204
    cluster.kill(dead)
    running = next(node_id for node_id in cluster.nodes if node_id != dead)
    statuses: list[int] = []

    def is_taken_over() -> bool:
        target = request(cluster, running, "GET", "/healthcheck").json()["leader_broker_id"]
        if target in (-1, dead):
            return False
        response = request(cluster, target, "POST", "/data/v1/produce", json={**body, "payload": "after"})
        statuses.append(response.status_code)
        return response.status_code == 204

    cluster.wait_until(is_taken_over, "a record is produced to the new leader")
    assert set(statuses) <= {204, 421, 503}
    target = request(cluster, running, "GET", "/healthcheck").json()["leader_broker_id"]
    consumed = request(
        cluster,
        target,
        "POST",
        "/data/v1/consume",
        json={"topic_partition": "survivor-1", "last_offset": -1, "max_batch_size": 10},
    )
    before, *after = [each["payload"] for each in consumed.json()["records"]]
    # A record that got status 503 may have been stored.
    assert (before, set(after)) == ("before", {"after"})
    cluster.start(dead)
    cluster.wait_in_sync("survivor")
    assert request(cluster, dead, "GET", "/healthcheck").json()["leader_broker_id"] == target
