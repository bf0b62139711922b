"""Five replication scenarios on real processes, each with two real clients."""

import asyncio
import itertools
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from moldau.testing.simulation.workloads.client import RawClient
from support.broker_process import BrokerProcess
from support.broker_process_cluster import BrokerProcessCluster
from support.real_clients import CLIENTS, RealClient
from support.replica_files import batches

pytestmark = pytest.mark.clients

NUMBERS = itertools.count()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> RealClient:
    return CLIENTS[request.param]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> BrokerProcessCluster:  # type: ignore[misc]
    with BrokerProcessCluster(tmp_path_factory.mktemp("cluster")) as served:
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.output()


@pytest.fixture
def topic(cluster: BrokerProcessCluster) -> str:
    """A topic of one partition with three in-sync replicas; all nodes are up."""
    for node_id, node in cluster.nodes.items():
        if node.process is None:
            cluster.start(node_id)
    name = f"story-{next(NUMBERS)}"
    cluster.create_topic(name)
    cluster.wait_in_sync(name)
    return name


def committed_at(node: BrokerProcess, topic: str) -> list[tuple[int, str]]:
    """Returns what this node returns to a consumer, whether or not it leads."""

    async def fetch() -> list[tuple[int, str]]:
        asking = await RawClient.connect(node.host, node.port, "reader")
        fetched = await asking.fetch((topic, 0), 0)
        asking.close()
        return [(record.offset, (record.value or b"").decode()) for record in fetched.records]

    return asyncio.run(fetch())


def texts(count: int, prefix: str = "v") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_scenario_1_normal_data_synchronisation(cluster: BrokerProcessCluster, topic: str, client: RealClient) -> None:
    values = texts(200)
    assert client.produce(cluster.bootstrap, topic, values) == list(range(200))
    # Consumers read below the high watermark, so it has advanced with the followers.
    assert client.read(cluster.bootstrap, topic, 200) == list(enumerate(values))
    held = [batches(node.data_dir, topic, 0) for node in cluster.nodes.values()]
    assert held[0] == held[1] == held[2]
    assert held[0], "the followers have nothing"


def test_scenario_2_leader_failover(cluster: BrokerProcessCluster, topic: str, client: RealClient) -> None:
    before = texts(100, "before")
    client.produce(cluster.bootstrap, topic, before)
    leader = cluster.leader_of(topic)
    cluster.kill(leader)
    after = texts(100, "after")
    offsets = client.produce(cluster.bootstrap, topic, after)
    assert cluster.leader_of(topic) != leader
    assert offsets == list(range(100, 200))
    assert client.read(cluster.bootstrap, topic, 200) == list(enumerate(before + after))


def test_scenario_3_a_broker_recovers_its_role_without_two_leaders(
    cluster: BrokerProcessCluster, topic: str, client: RealClient
) -> None:
    client.produce(cluster.bootstrap, topic, texts(50, "before"))
    old = cluster.leader_of(topic)
    cluster.nodes[old].stop()
    cluster.wait_until(lambda: cluster.leader_of(topic) not in (-1, old), "another node leads")
    client.produce(cluster.bootstrap, topic, texts(50, "meanwhile"))
    cluster.start(old)
    cluster.wait_in_sync(topic)
    new = cluster.leader_of(topic)
    for node in cluster.nodes.values():
        # All nodes return the same leader, and a write to it reaches all logs.
        assert client.read(node.bootstrap, topic, 100)[-1] == (99, "meanwhile-49")
    client.produce(cluster.bootstrap, topic, texts(1, "last"))
    held = [batches(node.data_dir, topic, 0) for node in cluster.nodes.values()]
    assert held[0] == held[1] == held[2]
    assert new in cluster.nodes


def test_scenario_4_a_leader_partitioned_from_its_followers_accepts_no_writes(
    cluster: BrokerProcessCluster, topic: str, client: RealClient
) -> None:
    """The followers are paused, as if partitioned. (`make chaos` has real partitions.)"""
    client.produce(cluster.bootstrap, topic, texts(20, "before"))
    leader = cluster.leader_of(topic)
    others = [node_id for node_id in cluster.nodes if node_id != leader]
    for node_id in others:
        cluster.pause(node_id)
    producer = Producer(
        {
            "bootstrap.servers": cluster.nodes[leader].bootstrap,
            "acks": "all",
            "message.timeout.ms": 8_000,
            "request.timeout.ms": 3_000,
            "socket.timeout.ms": 4_000,
        }
    )
    outcome: list[KafkaError | None] = []

    def report(error: KafkaError | None, _: Message) -> None:
        outcome.append(error)

    producer.produce(topic, b"alone", on_delivery=report)
    while not outcome:
        producer.poll(0.5)
    assert outcome[0] is not None, "a write was acknowledged that only one replica has"
    # Clients that know the isolated leader can still read committed records from it.
    assert committed_at(cluster.nodes[leader], topic) == list(enumerate(texts(20, "before")))
    for node_id in others:
        cluster.resume(node_id)
    cluster.wait_in_sync(topic)
    client.produce(cluster.bootstrap, topic, texts(20, "after"))
    held = [batches(node.data_dir, topic, 0) for node in cluster.nodes.values()]
    assert held[0] == held[1] == held[2]


def test_scenario_5_concurrent_writes_and_synchronisation(
    cluster: BrokerProcessCluster, topic: str, client: RealClient
) -> None:
    offsets: dict[int, list[int]] = {}
    failures: list[BaseException] = []

    def produce(writer: int) -> None:
        try:
            offsets[writer] = client.produce(cluster.bootstrap, topic, texts(300, f"writer-{writer}"))
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    read = client.read(cluster.bootstrap, topic, 1200)
    assert [offset for offset, _ in read] == list(range(1200))
    for number, own in offsets.items():
        assert [read[offset][1] for offset in own] == texts(300, f"writer-{number}")
    held = [batches(node.data_dir, topic, 0) for node in cluster.nodes.values()]
    assert held[0] == held[1] == held[2]


def test_too_many_replicas_are_an_error_that_names_the_number_of_nodes(cluster: BrokerProcessCluster) -> None:
    with pytest.raises(KafkaException) as refused:
        cluster.create_topic("too-many", replicas=4)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_an_assignment_to_unknown_brokers_is_rejected(cluster: BrokerProcessCluster) -> None:
    from confluent_kafka.admin import NewTopic

    new = NewTopic("unknown-brokers", 1, replica_assignment=[[1, 2, 9]])
    admin = cluster.admin()
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([new])["unknown-brokers"].result(30)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICA_ASSIGNMENT
