"""`__consumer_offsets` grows from one replica to three with Kafka's reassignment tool while a group works; then the
group survives the kill of its coordinator."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CONFIGS, Tools
from java_clients import JavaClients, JavaConsumer, partitions_of, wait_until_shared
from moldau_cluster import OFFSETS_TOPIC, REASSIGN, at, describe_topic, plan, three_nodes

from support.broker_process_cluster import BrokerProcessCluster

PARTITIONS = 50
ROTATION = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
THROTTLE = "1000000"


@pytest.fixture(scope="module")
def cluster(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    settings = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": str(PARTITIONS)}
    with three_nodes(tmp_path_factory.mktemp("offsets"), settings) as served:
        served.create_topic("work", partitions=4)
        yield served


class GroupWorkload:
    """A producer that sends without pause, and two group members that read and commit."""

    def __init__(self, java: JavaClients, cluster: BrokerProcessCluster) -> None:
        self._java = java
        self._bootstrap = cluster.bootstrap
        self.sent = 0
        self._failed: list[BaseException] = []
        self._stop = threading.Event()
        self.members = [
            java.consumer(
                cluster.bootstrap,
                name,
                "work",
                group_id="workers",
                enable_auto_commit=True,
                auto_commit_interval_ms=100,
                partition_assignment_strategy="org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            )
            for name in ("left", "right")
        ]
        wait_until_shared(self.members, partitions_of("work", 4))
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                records = [{"value": f"{number}-{part}", "partition": part} for part in range(4)]
                self._java.produce(self._bootstrap, "work", records)
                self.sent += len(records)
        except BaseException as error:
            self._failed.append(error)

    def finish(self) -> list[str]:
        """Returns everything the members have read, once they have read all that was sent."""
        self._stop.set()
        self._thread.join()
        assert not self._failed, self._failed
        self._java.wait_until(
            lambda: sum(len(member.values) for member in self.members) >= self.sent,
            lambda: f"{[len(member.values) for member in self.members]} of {self.sent} records",
        )
        return [value for member in self.members for value in member.values]


def test_the_offsets_topic_grows_from_one_replica_to_three_while_a_group_works(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster, tmp_path: Path
) -> None:
    work = GroupWorkload(java, cluster)
    assert all(len(replicas) == 1 for _, replicas, _ in describe_topic(tools, cluster, OFFSETS_TOPIC).values())
    wanted = {partition: ROTATION[partition % 3] for partition in range(PARTITIONS)}
    file = ["--reassignment-json-file", str(plan(tmp_path / "reassign.json", OFFSETS_TOPIC, wanted))]

    executed = tools.run(REASSIGN, *at(cluster), *file, "--execute", "--throttle", THROTTLE)
    assert "Successfully started partition reassignments" in executed
    assert f"The inter-broker throttle limit was set to {THROTTLE} B/s" in executed

    def brokers() -> str:
        return tools.run(CONFIGS, *at(cluster), "--entity-type", "brokers", "--describe")

    def is_throttled() -> bool:
        printed = brokers()
        return all(
            printed.count(f"{side}.replication.throttled.rate={THROTTLE} ") == 3 for side in ("leader", "follower")
        )

    # Every node describes its own config, which it may apply a little later.
    cluster.wait_until(is_throttled, "all brokers are throttled")
    cluster.wait_until(
        lambda: "in progress" not in tools.run(REASSIGN, *at(cluster), *file, "--verify", "--preserve-throttles"),
        "the reassignment is complete",
    )
    verified = tools.run(REASSIGN, *at(cluster), *file, "--verify")
    assert verified.count("is completed") == PARTITIONS
    assert "Clearing broker-level throttles on brokers 1,2,3" in verified
    assert f"Clearing topic-level throttles on topic {OFFSETS_TOPIC}" in verified
    cluster.wait_until(lambda: "throttled" not in brokers(), "no broker is throttled")

    def is_moved() -> bool:
        found = describe_topic(tools, cluster, OFFSETS_TOPIC)
        return {partition: replicas for partition, (_, replicas, _) in found.items()} == wanted and all(
            sorted(isr) == [1, 2, 3] for _, _, isr in found.values()
        )

    cluster.wait_until(is_moved, "all partitions have the wanted replicas in sync")
    assert "No partition reassignments found." in tools.run(REASSIGN, *at(cluster), "--list")

    coordinator = java.admin(cluster.bootstrap, "describeGroup", group="workers")["coordinator"]
    cluster.kill(coordinator)
    before = sum(len(member.values) for member in work.members)
    java.wait_until(
        lambda: sum(len(member.values) for member in work.members) > before + 40,
        "the group reads on without its coordinator",
        60,
    )
    read = work.finish()
    assert sorted(read) == sorted(f"{number}-{part}" for number in range(work.sent // 4) for part in range(4))
    assert_committed_to_the_end(java, cluster, work.members)


def assert_committed_to_the_end(java: JavaClients, cluster: BrokerProcessCluster, members: list[JavaConsumer]) -> None:
    """The remaining nodes keep what the members commit when they leave."""
    for member in members:
        member.close()
    committed = java.admin(cluster.bootstrap, "listGroupOffsets", group="workers")
    ends = {
        partition: java.admin(cluster.bootstrap, "listOffset", partition=partition, at="latest")
        for partition in partitions_of("work", 4)
    }
    assert {partition: offset for partition, (offset, _) in committed.items()} == ends
