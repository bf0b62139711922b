"""What clients get when a leader dies or stops: never the dead leader without an error, and soon the next one, which
accepts writes at once."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from moldau.server.broker_availability import FENCED_LISTED_MS
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique
from support.wire import METADATA, PRODUCE, WireClient, batch, produce_tree

LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER = 5, 6
OBSERVED_S = 3.0
TIMEOUT_S = 60.0


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
        end = time.monotonic() + OBSERVED_S
        while time.monotonic() < end:
            self.answers.append(self.read())
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
        reader.join(TIMEOUT_S)
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
    if code != LEADER_NOT_AVAILABLE:
        assert produce_to(wires[leader], topic) == (0, -1)
    cluster.start(victim)
    cluster.wait_in_sync(topic)


@pytest.mark.parametrize("round_number", range(3))
def test_a_stopping_leader_names_the_next_one_when_that_accepts_writes(
    cluster: BrokerProcessCluster, round_number: int
) -> None:
    topic = unique()
    cluster.create_topic(topic)
    cluster.wait_in_sync(topic)
    victim = cluster.leader_of(topic)
    wires = {node_id: WireClient(node.bootstrap) for node_id, node in cluster.nodes.items()}
    assert produce_to(wires[victim], topic) == (0, -1)
    stopping = threading.Thread(target=cluster.nodes[victim].stop)
    stopping.start()
    code, leader = 0, -1
    while code == 0:
        code, leader = produce_to(wires[victim], topic)
    assert (code, leader > 0) == (NOT_LEADER_OR_FOLLOWER, True)
    assert produce_to(wires[leader], topic) == (0, -1)
    stopping.join()
    cluster.start(victim)
    cluster.wait_in_sync(topic)


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
