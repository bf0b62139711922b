"""Java's idempotent producer and a group of Java consumers continue through `kill -9` of the node they need: every
record is written once, in order, and read once."""

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from java_clients import Event, JavaClients, JavaConsumer, partitions_of, wait_until_shared
from moldau_cluster import restore_cluster, three_nodes

from support.broker_process_cluster import BrokerProcessCluster
from support.log_reader import all_records
from support.topics import unique

PARTITIONS = 3
RECORDS = 9_000
RECORDS_BEFORE = 1_000
"""Records read before the node is killed."""


@pytest.fixture(scope="module")
def running(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with three_nodes(tmp_path_factory.mktemp("java")) as served:
        yield served


@pytest.fixture
def cluster(running: BrokerProcessCluster) -> BrokerProcessCluster:
    return restore_cluster(running)


class ProducerThread(threading.Thread):
    """A producer with default settings but small batches, so that many are in flight at the kill."""

    def __init__(self, java: JavaClients, cluster: BrokerProcessCluster, topic: str) -> None:
        super().__init__()
        self._java = java
        self._servers = cluster.bootstrap
        self._topic = topic
        self.places: list[Event] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        records = [{"value": f"{number:06}", "partition": number % PARTITIONS, "key": "k"} for number in range(RECORDS)]
        try:
            self.places = self._java.produce(self._servers, self._topic, records, batch_size=100, linger_ms=0)
        except BaseException as error:
            self.failure = error

    def finish(self) -> list[Event]:
        self.join()
        assert self.failure is None, self.failure
        return self.places


def victim_of(role: str, java: JavaClients, cluster: BrokerProcessCluster, topic: str, group: str) -> int:
    if role == "partition leader":
        return cluster.leader_of(topic)
    if role == "group coordinator":
        coordinator: int = java.admin(cluster.bootstrap, "describeGroup", group=group)["coordinator"]
        return coordinator
    controller, _ = cluster.quorum()
    return controller


def check_log(cluster: BrokerProcessCluster, topic: str, places: list[Event]) -> None:
    """Checks that every record is at its acknowledged position, in order, and that there are no others."""
    held: dict[int, list[str]] = defaultdict(list)
    for record in all_records(cluster.bootstrap, topic):
        assert record.offset == len(held[record.partition])
        held[record.partition].append((record.value or b"").decode())
    for part in range(PARTITIONS):
        assert held[part] == [f"{number:06}" for number in range(part, RECORDS, PARTITIONS)]
    assert [held[place["partition"]][place["offset"]] for place in places] == [
        f"{number:06}" for number in range(RECORDS)
    ]


def check_read(members: list[JavaConsumer]) -> None:
    read: dict[int, list[str]] = defaultdict(list)
    for member in members:
        for record in member.events_of("record"):
            read[int(record["partition"].rpartition(":")[2])].append(record["value"])
    for part in range(PARTITIONS):
        assert read[part] == [f"{number:06}" for number in range(part, RECORDS, PARTITIONS)]


@pytest.mark.parametrize("role", ["partition leader", "group coordinator", "controller"])
def test_java_clients_continue_when_a_node_is_killed(
    java: JavaClients, cluster: BrokerProcessCluster, role: str
) -> None:
    topic, group = unique(), unique("group")
    cluster.create_topic(topic, PARTITIONS)
    members = [java.consumer(cluster.bootstrap, name, topic, group_id=group) for name in ("left", "right")]
    wait_until_shared(members, partitions_of(topic, PARTITIONS))
    victim = victim_of(role, java, cluster, topic, group)

    def read() -> int:
        return sum(len(member.values) for member in members)

    sending = ProducerThread(java, cluster, topic)
    java.wait_until(lambda: read() >= RECORDS_BEFORE, lambda: f"{read()} records are read")
    assert sending.is_alive(), "all was sent before the node is killed"
    cluster.kill(victim)
    places = sending.finish()
    java.wait_until(lambda: read() >= RECORDS, lambda: f"{read()} of {RECORDS} records are read", 60)
    check_read(members)
    check_log(cluster, topic, places)
    for member in members:
        member.commit()
    ends = {f"{topic}:{part}": RECORDS // PARTITIONS for part in range(PARTITIONS)}
    committed = java.admin(cluster.bootstrap, "listGroupOffsets", group=group)
    assert {partition: offset for partition, (offset, _) in committed.items()} == ends


def test_a_new_member_continues_after_the_kill_of_its_coordinator(
    java: JavaClients, cluster: BrokerProcessCluster
) -> None:
    topic, group = unique(), unique("group")
    cluster.create_topic(topic, PARTITIONS)
    first = java.consumer(cluster.bootstrap, "first", topic, group_id=group)
    wait_until_shared([first], partitions_of(topic, PARTITIONS))
    java.produce(cluster.bootstrap, topic, [{"value": str(each), "partition": each % 3} for each in range(30)])
    first.wait_for_records(30)
    first.commit()
    cluster.kill(victim_of("group coordinator", java, cluster, topic, group))
    second = java.consumer(cluster.bootstrap, "second", topic, group_id=group)
    wait_until_shared([first, second], partitions_of(topic, PARTITIONS), 60)
    java.produce(cluster.bootstrap, topic, [{"value": str(each), "partition": each % 3} for each in range(30, 60)])
    java.wait_until(
        lambda: len(first.values) + len(second.values) >= 60,
        lambda: f"{len(first.values)} and {len(second.values)} records",
        60,
    )
    assert sorted(first.values + second.values, key=int) == [str(each) for each in range(60)]
    assert second.values
