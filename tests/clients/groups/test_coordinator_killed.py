"""The coordinator of a group is killed: the offsets survive, and the members rebalance at the new coordinator."""

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from group_member import DEADLINE_S, Library, eventually, partitions_of, share
from group_observer import FIND_COORDINATOR
from group_under_test import Group, receive, send

from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique
from support.wire import WireClient

PARTITIONS = 4
EACH = 20
"""Records that are sent to a partition at a time."""
SETTINGS = {"group.min.session.timeout.ms": "1"}


@pytest.fixture(scope="module")
def running(only_moldau: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as served:
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.log_path.read_text()


@pytest.fixture
def cluster(running: BrokerProcessCluster) -> BrokerProcessCluster:
    """All nodes are up, and the offsets topic is on all of them."""
    for node_id, node in running.nodes.items():
        if node.process is None:
            running.start(node_id)
    if "__consumer_offsets" in running.metadata().topics:
        running.wait_in_sync("__consumer_offsets")
    return running


def coordinator_of(cluster: BrokerProcessCluster, group: str) -> int:
    """As any node that is left says it."""
    wanted = {"key_type": 0, "coordinator_keys": [group]}
    alive = next(node for node in cluster.nodes.values() if node.process is not None)
    found: dict[str, int] = {}

    def is_known() -> bool:
        with WireClient(alive.bootstrap) as wire:
            found.update(wire.request(FIND_COORDINATOR, 4, wanted)["coordinators"][0])
        return found["error_code"] == 0

    eventually(is_known, lambda: f"no coordinator: {found}")
    return found["node_id"]


def test_offsets_and_members_outlive_the_coordinator(cluster: BrokerProcessCluster, library: Library) -> None:
    topic = unique()
    cluster.create_topic(topic, PARTITIONS)
    partitions = partitions_of(topic, PARTITIONS)
    with Group(cluster.bootstrap, library) as group:
        members = [group.member(topic), group.member(topic)]
        share(members, partitions)
        receive(members, send(cluster.bootstrap, partitions, EACH, "before"))
        for member in members:
            member.commit()
        killed = coordinator_of(cluster, group.id)
        cluster.kill(killed)
        eventually(lambda: coordinator_of(cluster, group.id) != killed, "no other node coordinates")
        members.append(group.member(topic))
        share(members, partitions)
        for partition in partitions:
            assert members[0].committed(partition) == EACH
        receive(members, send(cluster.bootstrap, partitions, EACH, "after"))
        for member in members:
            member.commit()
        members.pop(0).close()
        share(members, partitions)
        for partition in partitions:
            assert members[0].committed(partition) == 2 * EACH
        receive(members, send(cluster.bootstrap, partitions, EACH, "last"))


@pytest.mark.skipif(shutil.which("kcat") is None, reason="the kcat binary is not installed")
def test_kcat_reads_on_in_its_group_when_the_coordinator_is_killed(
    cluster: BrokerProcessCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topic, group = unique(), unique("group")
    cluster.create_topic(topic, PARTITIONS)
    partitions = partitions_of(topic, PARTITIONS)
    output = tmp_path_factory.mktemp("kcat") / "out"

    def read() -> list[str]:
        return [json.loads(line)["payload"] for line in output.read_text().splitlines()]

    def consume() -> subprocess.Popen[bytes]:
        settings = ["auto.offset.reset=earliest", "auto.commit.interval.ms=100", "reconnect.backoff.max.ms=100"]
        options = [part for setting in settings for part in ("-X", setting)]
        with output.open("ab") as out:
            return subprocess.Popen(
                ["kcat", "-b", cluster.bootstrap, "-q", "-J", "-u", *options, "-G", group, topic],
                stdout=out,
                stderr=subprocess.DEVNULL,
            )

    expected: list[str] = []

    def send_and_wait(word: str) -> None:
        sent = send(cluster.bootstrap, partitions, EACH, word)
        expected.extend(value.decode() for value in sent)
        eventually(lambda: len(read()) >= len(expected), lambda: f"{len(read())} of {len(expected)} records")
        assert sorted(read()) == sorted(expected)

    running = consume()
    try:
        send_and_wait("before")
        cluster.kill(coordinator_of(cluster, group))
        send_and_wait("after")
        running.terminate()
        running.wait(DEADLINE_S)
        # What the first one has committed when it left, the second one does not read again.
        running = consume()
        send_and_wait("again")
    finally:
        running.kill()
        running.wait()
