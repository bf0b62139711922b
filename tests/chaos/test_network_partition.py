"""Real network partitions, each test with two real clients: a partitioned leader accepts no writes, and the others
elect a new one. Not in `make test`: needs root for network namespaces, and is skipped without.

MOLDAU_SILENT_CUTS sets how many leaders are partitioned under load (10). The length of write pauses is printed, not
asserted.
"""

import itertools
import os
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from chaos.cluster import ChaosCluster, Machine
from chaos.health import Health
from chaos.isolation import exclusive_directory
from chaos.namespaces import IsolationUnavailable
from chaos.operator import Operator
from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check_records
from support.log_reader import all_records
from support.real_clients import CLIENTS, RealClient
from support.replica_files import batches
from support.steady_writer import SteadyWriter, format_pauses
from support.wire import WireClient, batch, fetch, produce

pytestmark = pytest.mark.clients

ISOLATIONS = int(os.environ.get("MOLDAU_SILENT_CUTS", "10"))
PARTITIONS = 6
RECOVERY_TIMEOUT_S = 60
SHORT_TIMEOUTS = {"request.timeout.ms": 2_000, "socket.timeout.ms": 3_000, "topic.metadata.refresh.interval.ms": 1_000}
"""With its defaults a producer takes a minute to notice a silent leader."""
NUMBERS = itertools.count()


class NetworkCluster:
    """Three machines with a switch between them."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self.health = Health(cluster, Operator(cluster), [])
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "socket.timeout.ms": 3_000})

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def create(self, topic: str, partitions: int = 1) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(30)
        self.health.wait(RECOVERY_TIMEOUT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {index: each.leader for index, each in found.items()}

    def leader(self, topic: str) -> Machine:
        return self.cluster.machines[self.leaders(topic)[0]]

    def replica_batches(self, topic: str) -> list[dict[int, bytes]]:
        return [batches(each.data_dir, topic, 0) for each in self.cluster.machines.values()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetworkCluster]:
    try:
        with exclusive_directory() as directory:
            chaos = ChaosCluster(directory, 3, 1, {})
            try:
                chaos.start()
                cluster = NetworkCluster(chaos)
                cluster.health.wait(RECOVERY_TIMEOUT_S)
                yield cluster
                for machine in chaos.machines.values():
                    assert "Traceback" not in machine.node.log_path.read_text()
            finally:
                chaos.close()
    except IsolationUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def topic(cluster: NetworkCluster) -> Iterator[str]:
    """A topic of one partition with three in-sync replicas; all links are open."""
    name = f"cut-{next(NUMBERS)}"
    cluster.create(name)
    yield name
    cluster.cluster.switch.heal()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> RealClient:
    return CLIENTS[request.param]


def texts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_scenario_4_a_partitioned_leader_accepts_no_writes_and_another_is_elected(
    cluster: NetworkCluster, topic: str, client: RealClient
) -> None:
    before, meanwhile, after = texts(20, "before"), texts(20, "meanwhile"), texts(20, "after")
    client.produce(cluster.bootstrap, topic, before)
    old_leader = cluster.leader(topic)
    with WireClient(old_leader.node.bootstrap) as wire:
        cluster.cluster.isolate(old_leader, from_clients=False)
        error, _ = produce(wire, topic, batch([b"alone"]))
        assert error != 0, "a write was acknowledged that only one replica has"
        seen = fetch(wire, topic, 0)
        assert (seen["error_code"], seen["high_watermark"]) == (0, 20)
        assert seen["records"], "what is committed can be read from the old leader"
    assert client.produce(cluster.bootstrap, topic, meanwhile) == list(range(20, 40))
    cluster.cluster.switch.heal()
    cluster.health.wait(RECOVERY_TIMEOUT_S)
    client.produce(cluster.bootstrap, topic, after)
    assert client.read(cluster.bootstrap, topic, 60) == list(enumerate(before + meanwhile + after))
    replica_batches = cluster.replica_batches(topic)
    assert replica_batches[0] == replica_batches[1] == replica_batches[2]
    assert not any(b"alone" in data for data in replica_batches[0].values())


def test_scenario_4_a_leader_partitioned_from_one_follower_continues_with_the_other(
    cluster: NetworkCluster, topic: str, client: RealClient
) -> None:
    before, meanwhile = texts(20, "before"), texts(20, "meanwhile")
    client.produce(cluster.bootstrap, topic, before)
    leader = cluster.leader(topic)
    follower = next(each for each in cluster.cluster.machines.values() if each is not leader)
    cluster.cluster.partition(leader, follower)
    assert client.produce(cluster.bootstrap, topic, meanwhile) == list(range(20, 40))
    cluster.cluster.switch.heal()
    cluster.health.wait(RECOVERY_TIMEOUT_S)
    assert client.read(cluster.bootstrap, topic, 40) == list(enumerate(before + meanwhile))
    replica_batches = cluster.replica_batches(topic)
    assert replica_batches[0] == replica_batches[1] == replica_batches[2]


@pytest.mark.parametrize("from_clients", [False, True])
def test_writes_resume_after_leaders_are_partitioned_silently(
    cluster: NetworkCluster, capsys: pytest.CaptureFixture[str], from_clients: bool
) -> None:
    """Packets are dropped, and no connection is closed."""
    history = History()
    paused: list[float] = []
    topic = f"silent-{next(NUMBERS)}"
    cluster.create(topic, PARTITIONS)
    writer = SteadyWriter(cluster.bootstrap, topic, PARTITIONS, history, SHORT_TIMEOUTS if from_clients else None)
    writer.wait_resumed(range(PARTITIONS), time.monotonic())
    for number in range(ISOLATIONS):
        leaders = cluster.leaders(topic)
        victim = leaders[number % PARTITIONS]
        partitioned_at = time.monotonic()
        cluster.cluster.isolate(cluster.cluster.machines[victim], from_clients=from_clients)
        paused.append(writer.wait_resumed([at for at, leader in leaders.items() if leader == victim], partitioned_at))
        cluster.cluster.switch.heal()
        cluster.health.wait(RECOVERY_TIMEOUT_S)
    writer.finish()
    for record in all_records(cluster.bootstrap, topic):
        history.logs.setdefault((topic, record.partition), []).append(  # type: ignore[attr-defined]
            (record.offset, record.value or b"")
        )
    acknowledged = sum(send.is_acknowledged for send in history.sends)
    with capsys.disabled():
        whom = "other nodes and clients" if from_clients else "other nodes"
        print(
            f"\n{ISOLATIONS} leaders partitioned silently from {whom}, {acknowledged} writes; {format_pauses(paused)}"
        )
    assert check_records(history) == []
    assert not writer.failures
    assert acknowledged == len(history.sends)
