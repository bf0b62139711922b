"""Really cut cables, told with each of two real clients: a leader that the others cannot hear takes no writes, and they
elect another. Not in `make test`: needs root, for network namespaces, and says so where it cannot run.

MOLDAU_SILENT_CUTS sets how often a leader is cut off under load (10); how long writes paused is printed, not judged.
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
SHORT_TIMEOUTS = {
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 3_000,
    "topic.metadata.refresh.interval.ms": 1_000,
}
"""A producer that hears nothing of a leader finds that out by itself, and by its defaults only after a minute."""
NUMBERS = itertools.count()


class NetworkCluster:
    """Three machines with cables between them that can be cut."""

    def __init__(self, machines: ChaosCluster) -> None:
        self.machines = machines
        self.health = Health(machines, Operator(machines), [])
        self._admin = AdminClient({"bootstrap.servers": machines.bootstrap, "socket.timeout.ms": 3_000})

    @property
    def bootstrap(self) -> str:
        return self.machines.bootstrap

    def create(self, topic: str, partitions: int = 1) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(30)
        self.health.wait(RECOVERY_TIMEOUT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {index: each.leader for index, each in found.items()}

    def leader(self, topic: str) -> Machine:
        return self.machines.machines[self.leaders(topic)[0]]

    def held(self, topic: str) -> list[dict[int, bytes]]:
        return [batches(each.data_dir, topic, 0) for each in self.machines.machines.values()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetworkCluster]:
    try:
        with exclusive_directory() as directory:
            machines = ChaosCluster(directory, 3, 1, {})
            try:
                machines.start()
                made = NetworkCluster(machines)
                made.health.wait(RECOVERY_TIMEOUT_S)
                yield made
                for machine in machines.machines.values():
                    assert "Traceback" not in machine.node.log_path.read_text()
            finally:
                machines.close()
    except IsolationUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def topic(cluster: NetworkCluster) -> Iterator[str]:
    """A topic of one partition with three replicas, all in sync; all cables are whole."""
    name = f"cut-{next(NUMBERS)}"
    cluster.create(name)
    yield name
    cluster.machines.switch.heal()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> RealClient:
    return CLIENTS[request.param]


def texts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_scenario_4_a_leader_that_nobody_hears_takes_no_writes_and_another_does(
    cluster: NetworkCluster, topic: str, client: RealClient
) -> None:
    before, meanwhile, after = texts(20, "before"), texts(20, "meanwhile"), texts(20, "after")
    client.produce(cluster.bootstrap, topic, before)
    old = cluster.leader(topic)
    with WireClient(old.node.bootstrap) as wire:
        cluster.machines.cut_off(old, from_clients=False)
        error, _ = produce(wire, topic, batch([b"alone"]))
        assert error != 0, "a write was acknowledged that only one replica has"
        seen = fetch(wire, topic, 0)
        assert (seen["error_code"], seen["high_watermark"]) == (0, 20)
        assert seen["records"], "what is committed can be read from the old leader"
    assert client.produce(cluster.bootstrap, topic, meanwhile) == list(range(20, 40))
    cluster.machines.switch.heal()
    cluster.health.wait(RECOVERY_TIMEOUT_S)
    client.produce(cluster.bootstrap, topic, after)
    assert client.read(cluster.bootstrap, topic, 60) == list(enumerate(before + meanwhile + after))
    held = cluster.held(topic)
    assert held[0] == held[1] == held[2]
    assert not any(b"alone" in data for data in held[0].values())


def test_scenario_4_a_leader_that_one_follower_does_not_hear_goes_on_with_the_other(
    cluster: NetworkCluster, topic: str, client: RealClient
) -> None:
    before, meanwhile = texts(20, "before"), texts(20, "meanwhile")
    client.produce(cluster.bootstrap, topic, before)
    leader = cluster.leader(topic)
    follower = next(each for each in cluster.machines.machines.values() if each is not leader)
    cluster.machines.cut(leader, follower)
    assert client.produce(cluster.bootstrap, topic, meanwhile) == list(range(20, 40))
    cluster.machines.switch.heal()
    cluster.health.wait(RECOVERY_TIMEOUT_S)
    assert client.read(cluster.bootstrap, topic, 40) == list(enumerate(before + meanwhile))
    held = cluster.held(topic)
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("from_clients", [False, True])
def test_writes_resume_after_leaders_are_cut_off_silently(
    cluster: NetworkCluster, capsys: pytest.CaptureFixture[str], from_clients: bool
) -> None:
    """Nobody is told: no connection closes, packets are gone."""
    history = History()
    paused: list[float] = []
    topic = f"silent-{next(NUMBERS)}"
    cluster.create(topic, PARTITIONS)
    writer = SteadyWriter(
        cluster.bootstrap, topic, PARTITIONS, history, SHORT_TIMEOUTS if from_clients else None
    )
    writer.wait_resumed(range(PARTITIONS), time.monotonic())
    for number in range(ISOLATIONS):
        leaders = cluster.leaders(topic)
        victim = leaders[number % PARTITIONS]
        cut_at = time.monotonic()
        cluster.machines.cut_off(cluster.machines.machines[victim], from_clients=from_clients)
        paused.append(writer.wait_resumed([at for at, leader in leaders.items() if leader == victim], cut_at))
        cluster.machines.switch.heal()
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
            f"\n{ISOLATIONS} leaders cut off silently from {whom}, {acknowledged} writes; {format_pauses(paused)}"
        )
    assert check_records(history) == []
    assert not writer.failures
    assert acknowledged == len(history.sends)
