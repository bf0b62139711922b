"""Replication progresses on a node whose request memory is small compared with what producers send."""

import pytest

from moldau.testing import Cluster
from support.wire import PRODUCE, WireClient, batch, produce_tree

REQUESTS = 40
RECORD_BYTES = 100_000


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(
        2,
        topics=["orders"],
        settings={
            "queued.max.request.bytes": "200000",
            "socket.request.max.bytes": "200000",
            "message.max.bytes": "150000",
        },
    )


def test_records_are_committed_with_many_pending_produce_requests(cluster: Cluster) -> None:
    with cluster, WireClient(cluster.address(cluster.leader_of("orders")), timeout_s=30) as wire:
        large = batch([bytes(RECORD_BYTES)])
        for _ in range(REQUESTS):
            wire.send(PRODUCE, 9, produce_tree("orders", large))
        for number in range(REQUESTS):
            _, response = wire.receive(PRODUCE, 9)
            [result] = response["responses"][0]["partition_responses"]
            assert (result["error_code"], result["base_offset"]) == (0, number)
