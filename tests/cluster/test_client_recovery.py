"""What clients get when a leader dies or stops: never the dead leader without an error, and soon the next one, which
accepts writes at once."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self
from uuid import UUID

import pytest

from moldau.server.broker_availability import FENCED_LISTED_MS
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique
from support.wire import (
    FETCH,
    METADATA,
    PRODUCE,
    ConnectionClosedError,
    WireClient,
    batch,
    fetch_tree,
    produce_tree,
    topic_id,
)

LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH = 5, 6, 74
OBSERVED_S = 3.0
TIMEOUT_S = 60.0
LONG_POLL_MS = 30_000
ATTEMPTS = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("cluster")) as served:
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.log_path.read_text()


class Answer(NamedTuple):
    leaders: tuple[tuple[int, int], ...]
    """Leader and error code of each partition."""
    brokers: tuple[int, ...]


class MetadataReader(threading.Thread):
    """Requests the metadata of a topic from one node again and again."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._wire = WireClient(bootstrap)
        self._topic = topic
        self.answers: list[Answer] = []

    def run(self) -> None:
        """Reads for a while, and longer if a partition has no leader yet."""
        start = time.monotonic()
        observed_s = OBSERVED_S
        while time.monotonic() - start < observed_s:
            self.answers.append(self.read())
            is_recovered = all(code == 0 for _, code in self.answers[-1].leaders)
            observed_s = OBSERVED_S if is_recovered else TIMEOUT_S
        self._wire.close()

    def read(self) -> Answer:
        response = self._wire.request(METADATA, 12, {"topics": [{"name": self._topic, "topic_id": None}]})
        partitions = response["topics"][0]["partitions"]
        return Answer(
            tuple((each["leader_id"], each["error_code"]) for each in partitions),
            tuple(each["node_id"] for each in response["brokers"]),
        )


def observe_kill(cluster: BrokerProcessCluster, topic: str, victim: int) -> Sequence[MetadataReader]:
    """Kills a node and returns what the others answer from the moment its process has ended."""
    readers = [MetadataReader(node.bootstrap, topic) for node_id, node in cluster.nodes.items() if node_id != victim]
    for reader in readers:
        assert len(reader.read().brokers) == 3
    cluster.kill(victim)
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return readers


@pytest.mark.parametrize("round_number", range(3))
def test_no_node_names_the_dead_leader(cluster: BrokerProcessCluster, round_number: int) -> None:
    topic = unique()
    cluster.create_topic(topic, partitions=3)
    cluster.wait_in_sync(topic)
    victim = cluster.leader_of(topic, round_number)
    for reader in observe_kill(cluster, topic, victim):
        assert reader.answers
        for answer in reader.answers:
            assert all(
                leader != victim and (leader > 0 or code == LEADER_NOT_AVAILABLE) for leader, code in answer.leaders
            )
            assert victim in answer.brokers, "a client must be able to move its partitions before the broker vanishes"
        assert all(code == 0 for _, code in reader.answers[-1].leaders)
    cluster.start(victim)
    cluster.wait_in_sync(topic)


def produce_to(wire: WireClient, topic: str) -> tuple[int, int]:
    """Produces to partition 0 and returns the error code and the leader that the response names, -1 if none."""
    response = wire.request(PRODUCE, 10, produce_tree(topic, batch()))
    (partition,) = response["responses"][0]["partition_responses"]
    return partition["error_code"], partition["current_leader"]["leader_id"]


def produce_until_refused(wire: WireClient, topic: str) -> tuple[int, int]:
    while True:
        code, leader = produce_to(wire, topic)
        if code != 0:
            return code, leader


@pytest.mark.parametrize("round_number", range(3))
def test_the_next_leader_accepts_writes_as_soon_as_a_node_names_it(
    cluster: BrokerProcessCluster, round_number: int
) -> None:
    topic = unique()
    cluster.create_topic(topic)
    cluster.wait_in_sync(topic)
    victim = cluster.leader_of(topic)
    wires = {node_id: WireClient(node.bootstrap) for node_id, node in cluster.nodes.items() if node_id != victim}
    reader = MetadataReader(cluster.nodes[sorted(wires)[round_number % 2]].bootstrap, topic)
    cluster.kill(victim)
    ((leader, code),) = reader.read().leaders
    deadline = time.monotonic() + TIMEOUT_S
    while code == LEADER_NOT_AVAILABLE:
        assert time.monotonic() < deadline, "no leader is named"
        ((leader, code),) = reader.read().leaders
    assert produce_to(wires[leader], topic) == (0, -1)
    cluster.start(victim)
    cluster.wait_in_sync(topic)


def read_request(topic: UUID, leader_epoch: int, max_wait: int = 0) -> dict[str, Any]:
    """Returns a Fetch of partition 0 with the epoch of the leader that the client knows."""
    tree = fetch_tree("", 0, current_leader_epoch=leader_epoch, max_wait=max_wait)
    tree["topics"][0]["topic_id"] = topic
    return tree


def partition_response(response: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """Returns the error code and the leader that the response to a Fetch names."""
    (found,) = response["responses"]
    (partition,) = found["partitions"]
    return partition["error_code"], partition["current_leader"]


class StoppingLeader:
    """A new topic whose leader is stopped in the block. The node runs again afterwards."""

    def __init__(self, cluster: BrokerProcessCluster) -> None:
        self._cluster = cluster
        self.topic = unique()
        cluster.create_topic(self.topic)
        cluster.wait_in_sync(self.topic)
        self.node_id = cluster.leader_of(self.topic)
        self.wires = {node_id: WireClient(node.bootstrap) for node_id, node in cluster.nodes.items()}
        self.wire = self.wires[self.node_id]
        self._stop = threading.Thread(target=cluster.nodes[self.node_id].stop)

    def __enter__(self) -> Self:
        self._stop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.join()
        for wire in self.wires.values():
            wire.close()
        self._cluster.start(self.node_id)
        self._cluster.wait_in_sync(self.topic)


@pytest.mark.parametrize("round_number", range(3))
def test_a_stopping_leader_names_the_next_one_when_that_accepts_writes(
    cluster: BrokerProcessCluster, round_number: int
) -> None:
    for _ in range(ATTEMPTS):
        leader = StoppingLeader(cluster)
        assert produce_to(leader.wire, leader.topic) == (0, -1)
        with leader:
            try:
                code, successor = produce_until_refused(leader.wire, leader.topic)
            except ConnectionClosedError:
                continue  # The node stopped between two requests.
            assert (code, successor > 0) == (NOT_LEADER_OR_FOLLOWER, True)
            assert produce_to(leader.wires[successor], leader.topic) == (0, -1)
            return
    pytest.fail("the stopping leader closed every connection without an answer")


@pytest.mark.parametrize("round_number", range(3))
def test_a_stopping_leader_names_the_next_one_when_that_serves_reads(
    cluster: BrokerProcessCluster, round_number: int
) -> None:
    leader = StoppingLeader(cluster)
    topic = topic_id(leader.wire, leader.topic)
    epoch = 0
    leader.wire.send(FETCH, 16, read_request(topic, epoch, LONG_POLL_MS))
    with leader:
        code, named = partition_response(leader.wire.receive(FETCH, 16)[1])
        while named["leader_id"] == leader.node_id:
            # The epoch is higher because the ISR has changed, not because the node stops.
            epoch = named["leader_epoch"]
            code, named = partition_response(leader.wire.request(FETCH, 16, read_request(topic, epoch, LONG_POLL_MS)))
        assert code == FENCED_LEADER_EPOCH
        assert (named["leader_id"] > 0, named["leader_epoch"] > epoch) == (True, True)
        successor = leader.wires[named["leader_id"]]
        code, _ = partition_response(successor.request(FETCH, 16, read_request(topic, named["leader_epoch"])))
        # A later change of the ISR may have increased the epoch again. UNKNOWN_LEADER_EPOCH would be too early.
        assert code in (0, FENCED_LEADER_EPOCH)


def test_a_dead_broker_is_listed_only_for_a_while(cluster: BrokerProcessCluster) -> None:
    topic = unique()
    cluster.create_topic(topic)
    cluster.wait_in_sync(topic)
    victim = cluster.leader_of(topic)
    cluster.kill(victim)
    killed_at = time.monotonic()
    cluster.wait_until(lambda: victim not in cluster.metadata().brokers, "the dead broker is no longer listed")
    assert time.monotonic() - killed_at >= FENCED_LISTED_MS / 1000
    cluster.start(victim)
    cluster.wait_in_sync(topic)
