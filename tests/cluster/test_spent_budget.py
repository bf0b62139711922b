"""A node whose budget of requests is small beside what its producers send: followers must get through to commit it."""

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


def test_records_are_committed_however_many_wait_for_it(cluster: Cluster) -> None:
    with cluster, WireClient(cluster.address(cluster.leader_of("orders")), timeout_s=30) as wire:
        large = batch([bytes(RECORD_BYTES)])
        for _ in range(REQUESTS):
            wire.send(PRODUCE, 9, produce_tree("orders", large))
        for number in range(REQUESTS):
            _, answer = wire.receive(PRODUCE, 9)
            [told] = answer["responses"][0]["partition_responses"]
            assert (told["error_code"], told["base_offset"]) == (0, number)
