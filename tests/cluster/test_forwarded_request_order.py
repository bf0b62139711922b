"""The order of requests on one connection if the controller or the replicas are on other nodes."""

from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from support.requests import (
    LATEST,
    alter_retention,
    create_partitions,
    create_topic,
    delete_topic,
    describe_retention,
    described_retention,
    fetch_at,
    fetched_bytes,
    list_offset,
    listed_offset,
    metadata,
    partition_count,
    produce_error,
    produce_one,
    request_at_once,
)
from support.topics import unique
from support.wire import WireClient

TRIES = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def test_a_request_sees_a_change_that_another_node_made(cluster: Cluster) -> None:
    forwarding = next(node_id for node_id in cluster.nodes if node_id != cluster.controller_id)
    with WireClient(cluster.address(forwarding)) as wire:
        for _ in range(TRIES):
            name = unique()
            responses = request_at_once(
                wire,
                create_topic(name, replication_factor=3),
                metadata(name),
                alter_retention(name, 1_000_000),
                describe_retention(name),
                create_partitions(name, 3),
                metadata(name),
                delete_topic(name),
                metadata(name),
            )
            created, with_one, _, configs, grown, with_three, deleted, without = responses
            assert created["topics"][0]["error_code"] == 0
            assert partition_count(with_one) == 1
            assert described_retention(configs) == 1_000_000
            assert grown["results"][0]["error_code"] == 0
            assert partition_count(with_three) == 3
            assert deleted["responses"][0]["error_code"] == 0
            assert partition_count(without) == 0


def test_a_request_sees_records_that_the_replicas_have(cluster: Cluster) -> None:
    name = unique()
    with WireClient(cluster.bootstrap.split(",")[0]) as wire:
        assert wire.request(*create_topic(name, replication_factor=3))["topics"][0]["error_code"] == 0
    with WireClient(cluster.address(cluster.leader_of(name))) as wire:
        for number in range(TRIES):
            first, second, fetched, listed = request_at_once(
                wire, produce_one(name), produce_one(name), fetch_at(name, 2 * number + 1), list_offset(name, LATEST)
            )
            assert produce_error(first) == produce_error(second) == 0
            assert fetched_bytes(fetched) > 0
            assert listed_offset(listed) == 2 * number + 2
