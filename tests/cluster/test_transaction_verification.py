"""Leaders in a cluster ask the transaction coordinator on another node, also while that node dies."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from moldau.testing import Cluster
from support.transaction_cluster import PATIENCE_S, STATE_PARTITIONS, ClusterProducer
from support.transaction_wire import (
    ABORTABLE,
    CONCURRENT,
    INVALID_EPOCH,
    INVALID_STATE,
    NONE,
    Producer,
    committed_values,
    last_stable_offset,
    produce_codes,
    transactional_batch,
)
from support.wire import WireClient, end_offset, wait_until

PARTITIONS = 6
TOPIC = "orders"
ALL = [(TOPIC, index) for index in range(PARTITIONS)]
NOT_ENOUGH_REPLICAS, NOT_LEADER = 19, 6
TV1, TV2 = 11, 12
"""Versions of Produce."""


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with started_cluster() as started:
        yield started


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with started_cluster() as started:
        yield started


def started_cluster() -> Cluster:
    settings = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
    return Cluster(3, topics={TOPIC: PARTITIONS}, settings=settings)


class Leaders:
    """Connections to the leaders of all partitions."""

    def __init__(self, cluster: Cluster, producer: ClusterProducer) -> None:
        self.cluster = cluster
        self.producer = producer
        self._closing = ExitStack()
        self._clients: dict[int, WireClient] = {}

    def __enter__(self) -> "Leaders":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def client(self, index: int) -> WireClient:
        leader = self.cluster.leader_of(TOPIC, index)
        if leader not in self._clients:
            self._clients[leader] = self._closing.enter_context(WireClient(self.cluster.address(leader)))
        return self._clients[leader]

    def send(self, producer: Producer, index: int, value: bytes, *, version: int, sequence: int = 0) -> int:
        data = {(TOPIC, index): transactional_batch(producer, value, sequence=sequence)}
        (code,) = produce_codes(self.client(index), self.producer.id, data, version=version)
        return code

    def send_all(self, producer: Producer, value: bytes, *, version: int) -> dict[int, int]:
        """Sends one request per leader and returns the error codes by partition."""
        by_leader: dict[WireClient, list[int]] = {}
        for index in range(PARTITIONS):
            by_leader.setdefault(self.client(index), []).append(index)
        codes: dict[int, int] = {}
        for client, indexes in by_leader.items():
            data = {(TOPIC, index): transactional_batch(producer, value) for index in indexes}
            codes |= zip(indexes, produce_codes(client, self.producer.id, data, version=version), strict=True)
        return codes

    def until_sent(self, producer: Producer, index: int, value: bytes, *, version: int) -> list[int]:
        """Retries as producers do, and returns the error codes before the success."""
        deadline = time.monotonic() + PATIENCE_S
        codes = []
        while (code := self.send(producer, index, value, version=version)) != NONE:
            assert code in (NOT_ENOUGH_REPLICAS, CONCURRENT, NOT_LEADER), code
            assert time.monotonic() < deadline, codes
            codes.append(code)
            time.sleep(0.05)
        return codes


def producers_of_all_coordinators(cluster: Cluster) -> Mapping[int, ClusterProducer]:
    """Returns a producer for each node, whose coordinator is that node."""
    found: dict[int, ClusterProducer] = {}
    ClusterProducer(cluster).begin()
    while len(found) < 3:
        producer = ClusterProducer(cluster)
        found.setdefault(producer.coordinator_id, producer)
    return found


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("commit", [True, False])
def test_every_leader_asks_every_coordinator(shared_cluster: Cluster, version: int, commit: bool) -> None:
    cluster = shared_cluster
    assert {cluster.leader_of(TOPIC, index) for index in range(PARTITIONS)} == {1, 2, 3}
    for producer in producers_of_all_coordinators(cluster).values():
        with Leaders(cluster, producer) as leaders:
            before = [committed_values(leaders.client(index), TOPIC, index) for index in range(PARTITIONS)]
            identity = producer.begin(*(ALL if version == TV1 else ()), version=3)
            value = producer.id.encode()
            assert set(leaders.send_all(identity, value, version=version).values()) == {NONE}
            state = producer.wait_for("Ongoing")
            assert [(each["topic"], sorted(each["partitions"])) for each in state["topics"]] == [
                (TOPIC, list(range(PARTITIONS)))
            ]
            producer.end(identity, commit=commit, version=3 if version == TV1 else 5)
            for index, values in enumerate(before):
                client = leaders.client(index)
                end = end_offset(client, TOPIC, index)
                wait_until(lambda: last_stable_offset(client, TOPIC, index) == end, "the end")  # noqa: B023
                assert committed_values(client, TOPIC, index) == values + [value] * commit


def test_leaders_reject_what_the_coordinator_on_another_node_does_not_know(shared_cluster: Cluster) -> None:
    for producer in producers_of_all_coordinators(shared_cluster).values():
        with Leaders(shared_cluster, producer) as leaders:
            ends = [end_offset(leaders.client(index), TOPIC, index) for index in range(PARTITIONS)]
            old = producer.begin()
            assert set(leaders.send_all(old, b"x", version=TV1).values()) == {ABORTABLE}
            assert set(leaders.send_all(old, b"x", version=10).values()) == {INVALID_STATE}
            producer.begin()
            for version in (10, TV1, TV2):
                assert set(leaders.send_all(old, b"x", version=version).values()) == {INVALID_EPOCH}
            assert [end_offset(leaders.client(index), TOPIC, index) for index in range(PARTITIONS)] == ends


@pytest.mark.parametrize("fault", ["kill", "pause", "stop"])
@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_producer_continues_when_the_coordinator_is_lost(cluster: Cluster, fault: str, version: int) -> None:
    producer = ClusterProducer(cluster)
    identity = producer.begin(*(ALL if version == TV1 else ()), version=3)
    lost = producer.coordinator_id
    others = [index for index in range(PARTITIONS) if cluster.leader_of(TOPIC, index) != lost]
    with Leaders(cluster, producer) as leaders:
        # One partition has the transaction already, the other has not.
        assert leaders.until_sent(identity, others[0], b"before", version=version) == []
        getattr(cluster, fault)(lost)
        start = time.monotonic()
        leaders.until_sent(identity, others[1], b"after", version=version)
        assert leaders.send(identity, others[0], b"more", version=version, sequence=1) == NONE
        assert time.monotonic() - start < PATIENCE_S / 2
        producer.reconnect()
        producer.end(identity, commit=True, version=3 if version == TV1 else 5)
        for index, expected in ((others[0], [b"before", b"more"]), (others[1], [b"after"])):
            client = leaders.client(index)
            wait_until(
                lambda: committed_values(client, TOPIC, index) == expected,  # noqa: B023
                "the transaction is committed",
            )
    if fault == "pause":
        cluster.resume(lost)
