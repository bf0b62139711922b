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

from chaos.alone import alone
from chaos.health import Health
from chaos.machines import Machine, Machines
from chaos.namespaces import CannotIsolate
from chaos.operating import Operator
from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check
from support.log_reader import all_records
from support.real_clients import CLIENTS, RealClient
from support.replica_files import batches
from support.steady_writer import SteadyWriter, shown
from support.wire import Wire, batch, fetch, produce

pytestmark = pytest.mark.clients

CUTS = int(os.environ.get("MOLDAU_SILENT_CUTS", "10"))
PARTITIONS = 6
SETTLE_TIMEOUT_S = 60
IMPATIENT = {
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 3_000,
    "topic.metadata.refresh.interval.ms": 1_000,
}
"""A producer that hears nothing of a leader finds that out by itself, and by its defaults only after a minute."""
NUMBERS = itertools.count()


class Cabled:
    """Three machines with cables between them that can be cut."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.health = Health(machines, Operator(machines), [])
        self._admin = AdminClient({"bootstrap.servers": machines.bootstrap, "socket.timeout.ms": 3_000})

    @property
    def bootstrap(self) -> str:
        return self.machines.bootstrap

    def create(self, topic: str, partitions: int = 1) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(30)
        self.health.wait(SETTLE_TIMEOUT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {index: each.leader for index, each in found.items()}

    def leader(self, topic: str) -> Machine:
        return self.machines.machines[self.leaders(topic)[0]]

    def held(self, topic: str) -> list[dict[int, bytes]]:
        return [batches(each.data_dir, topic, 0) for each in self.machines.machines.values()]


@pytest.fixture(scope="module")
def cabled() -> Iterator[Cabled]:
    try:
        with alone() as directory:
            machines = Machines(directory, 3, 1, {})
            try:
                machines.start()
                made = Cabled(machines)
                made.health.wait(SETTLE_TIMEOUT_S)
                yield made
                for machine in machines.machines.values():
                    assert "Traceback" not in machine.node.log_path.read_text()
            finally:
                machines.close()
    except CannotIsolate as error:
        pytest.skip(str(error))


@pytest.fixture
def topic(cabled: Cabled) -> Iterator[str]:
    """A topic of one partition with three replicas, all in sync; all cables are whole."""
    name = f"cut-{next(NUMBERS)}"
    cabled.create(name)
    yield name
    cabled.machines.switch.heal()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> RealClient:
    return CLIENTS[request.param]


def texts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_scenario_4_a_leader_that_nobody_hears_takes_no_writes_and_another_does(
    cabled: Cabled, topic: str, client: RealClient
) -> None:
    before, meanwhile, after = texts(20, "before"), texts(20, "meanwhile"), texts(20, "after")
    client.produce(cabled.bootstrap, topic, before)
    old = cabled.leader(topic)
    with Wire(old.node.bootstrap) as wire:
        cabled.machines.cut_off(old, clients_too=False)
        error, _ = produce(wire, topic, batch([b"alone"]))
        assert error != 0, "a write was acknowledged that only one replica has"
        seen = fetch(wire, topic, 0)
        assert (seen["error_code"], seen["high_watermark"]) == (0, 20)
        assert seen["records"], "what is committed can be read from the old leader"
    assert client.produce(cabled.bootstrap, topic, meanwhile) == list(range(20, 40))
    cabled.machines.switch.heal()
    cabled.health.wait(SETTLE_TIMEOUT_S)
    client.produce(cabled.bootstrap, topic, after)
    assert client.read(cabled.bootstrap, topic, 60) == list(enumerate(before + meanwhile + after))
    held = cabled.held(topic)
    assert held[0] == held[1] == held[2]
    assert not any(b"alone" in data for data in held[0].values())


def test_scenario_4_a_leader_that_one_follower_does_not_hear_goes_on_with_the_other(
    cabled: Cabled, topic: str, client: RealClient
) -> None:
    before, meanwhile = texts(20, "before"), texts(20, "meanwhile")
    client.produce(cabled.bootstrap, topic, before)
    leader = cabled.leader(topic)
    follower = next(each for each in cabled.machines.machines.values() if each is not leader)
    cabled.machines.cut(leader, follower)
    assert client.produce(cabled.bootstrap, topic, meanwhile) == list(range(20, 40))
    cabled.machines.switch.heal()
    cabled.health.wait(SETTLE_TIMEOUT_S)
    assert client.read(cabled.bootstrap, topic, 40) == list(enumerate(before + meanwhile))
    held = cabled.held(topic)
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("clients_too", [False, True])
def test_writes_resume_after_leaders_are_cut_off_silently(
    cabled: Cabled, capsys: pytest.CaptureFixture[str], clients_too: bool
) -> None:
    """Nobody is told: no connection closes, packets are gone."""
    history = History()
    paused: list[float] = []
    topic = f"silent-{next(NUMBERS)}"
    cabled.create(topic, PARTITIONS)
    writer = SteadyWriter(cabled.bootstrap, topic, PARTITIONS, history, IMPATIENT if clients_too else None)
    writer.wait_resumed(range(PARTITIONS), time.monotonic())
    for number in range(CUTS):
        leaders = cabled.leaders(topic)
        victim = leaders[number % PARTITIONS]
        cut_at = time.monotonic()
        cabled.machines.cut_off(cabled.machines.machines[victim], clients_too=clients_too)
        paused.append(writer.wait_resumed([at for at, leader in leaders.items() if leader == victim], cut_at))
        cabled.machines.switch.heal()
        cabled.health.wait(SETTLE_TIMEOUT_S)
    writer.finish()
    for record in all_records(cabled.bootstrap, topic):
        history.logs.setdefault((topic, record.partition), []).append(  # type: ignore[attr-defined]
            (record.offset, record.value or b"")
        )
    acknowledged = sum(send.is_acknowledged for send in history.sends)
    with capsys.disabled():
        whom = "other nodes and clients" if clients_too else "other nodes"
        print(f"\n{CUTS} leaders cut off silently from {whom}, {acknowledged} writes; {shown(paused)}")
    assert check(history) == []
    assert not writer.failures
    assert acknowledged == len(history.sends)
