"""Nodes of other clusters, duplicate node ids, corrupted files and clients that pose as nodes are rejected with a clear
message, and a healthy client notices nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.broker_process import BrokerProcess
from support.broker_process_cluster import CLUSTER_ID, BrokerProcessCluster, as_environment
from support.ports import free_port
from support.replica_files import batches
from support.wire import (
    API_VERSIONS,
    FETCH,
    ConnectionClosedError,
    WireClient,
    batch,
    end_offset,
    fetch_tree,
    produce,
    topic_id,
)
from support.wire import fetch as fetched

VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH = 52, 53, 54
ALTER_PARTITION, BROKER_REGISTRATION, BROKER_HEARTBEAT, ALLOCATE_PRODUCER_IDS = 56, 62, 63, 67
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, STALE_BROKER_EPOCH = 74, 75, 77
INCONSISTENT_VOTER_SET, INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION = 94, 104, 101
INVALID_REQUEST, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER, BROKER_ID_NOT_REGISTERED = 42, 100, 6, 102
POSER = (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, STALE_BROKER_EPOCH)
OTHER_CLUSTER_ID = "YW5vdGhlci1jbHVzdGVyMQ"
EXIT_TIMEOUT_S = 30
OTHER_NODE_ID = 99
LATE_EPOCH = 1_000_000

NAMED = {"client_software_name": "poser", "client_software_version": "1"}

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with BrokerProcessCluster(tmp_path_factory.mktemp("cluster")) as served:
        served.create_topic("honest")
        yield served
        for node in served.nodes.values():
            assert "Traceback" not in node.log_path.read_text()


@pytest.fixture
def voter(running: BrokerProcessCluster) -> Iterator[BrokerProcess]:
    """Node 3, running before and after the test. Tests restore the files that they corrupt."""
    yield running.nodes[3]
    if running.nodes[3].process is None:
        running.start(3)
    running.wait_in_sync("honest")


@pytest.fixture
def cluster(running: BrokerProcessCluster) -> Iterator[BrokerProcessCluster]:
    """Checks that a test changes neither the quorum nor the ISR, and that a client can write before and after."""
    leader, quorum = running.leader_of("honest"), running.quorum()
    with WireClient(running.nodes[leader].bootstrap) as wire:
        assert produce(wire, "honest", batch([b"before"])) == (0, end_offset(wire, "honest") - 1)
        yield running
        assert produce(wire, "honest", batch([b"after"])) == (0, end_offset(wire, "honest") - 1)
    assert running.leader_of("honest") == leader
    assert running.quorum() == quorum
    running.wait_in_sync("honest")
    assert sorted(running.metadata().brokers) == [1, 2, 3]


def foreign_node(cluster: BrokerProcessCluster, data_dir: Path, **settings: str) -> BrokerProcess:
    """Creates a node that tries to join the cluster with wrong settings."""
    voters = ",".join(f"{node_id}@{node.bootstrap}" for node_id, node in cluster.nodes.items())
    settings = {
        "cluster.id": CLUSTER_ID,
        "controller.quorum.voters": voters,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return BrokerProcess(data_dir, environment=as_environment(settings))


def exit_message(node: BrokerProcess) -> str:
    """Returns the output of a node that exits by itself."""
    node.spawn()
    process = node.process
    assert process is not None
    try:
        code = process.wait(EXIT_TIMEOUT_S)
    finally:
        if process.poll() is None:
            node.kill()
        node.process = None
    assert code == 1, node.output()
    output = node.output()
    assert "Traceback" not in output
    assert "is ready" not in output
    return output.splitlines()[-1]


@contextmanager
def changed(path: Path, into: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(into)
    try:
        yield
    finally:
        path.write_bytes(original)


# Nodes


def test_a_node_of_another_cluster_is_rejected(cluster: BrokerProcessCluster, tmp_path: Path) -> None:
    output = exit_message(foreign_node(cluster, tmp_path / "data", node_id="4", cluster_id=OTHER_CLUSTER_ID))
    assert OTHER_CLUSTER_ID in output
    assert "cluster.id" in output


def test_a_voter_with_a_disk_of_another_cluster_does_not_start(voter: BrokerProcess) -> None:
    voter.kill()
    path = voter.data_dir / "meta.properties"
    with changed(path, path.read_bytes().replace(CLUSTER_ID.encode(), OTHER_CLUSTER_ID.encode())):
        output = exit_message(voter)
    assert f"belongs to the cluster {OTHER_CLUSTER_ID}, not {CLUSTER_ID}" in output


def test_a_second_node_with_the_same_id_is_rejected(cluster: BrokerProcessCluster, tmp_path: Path) -> None:
    """The error is detected differently if the other node leads the quorum; nothing else differs."""
    for node_id in ("1", "2", "3"):
        hurried = {"broker_session_timeout_ms": "300", "broker_heartbeat_interval_ms": "100"}
        output = exit_message(foreign_node(cluster, tmp_path / node_id, node_id=node_id, **hurried))
        assert "another process" in output
        assert f"as node {node_id} of this cluster" in output
        assert "node.id" in output
        assert "stop the other one first" in output


def test_two_processes_do_not_share_a_data_directory(cluster: BrokerProcessCluster) -> None:
    output = exit_message(foreign_node(cluster, cluster.nodes[2].data_dir, node_id="2"))
    assert "in use" in output


# Files


@pytest.mark.parametrize("keeps", [0, 20, -1])
def test_a_torn_quorum_state_file_stops_the_node_and_the_others_continue(
    running: BrokerProcessCluster, voter: BrokerProcess, keeps: int
) -> None:
    voter.kill()
    path = voter.data_dir / "__cluster_metadata-0" / "quorum-state"
    with changed(path, path.read_bytes()[:keeps]):
        output = exit_message(voter)
        running.create_topic(f"meanwhile-{keeps}", replicas=2)
    assert "quorum-state cannot be read" in output
    assert "could vote twice" in output
    assert "Restore an intact copy" in output


def is_noted(voter: BrokerProcess) -> bool:
    """Returns whether everything in the metadata log is known to be on disk; a corrupted rest would pass as a torn
    tail."""
    points = (voter.data_dir / "recovery-point-offset-checkpoint").read_text().splitlines()
    noted = [int(line.split()[2]) for line in points if line.startswith("__cluster_metadata 0 ")]
    return bool(noted) and noted[0] > max(batches(voter.data_dir, "__cluster_metadata", 0))


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_flipped_bit_in_the_metadata_log_stops_the_node_and_the_others_continue(
    running: BrokerProcessCluster, voter: BrokerProcess, is_killed: bool
) -> None:
    if is_killed:
        running.wait_until(lambda: is_noted(voter), "it is noted how far the metadata log is synced")
        voter.kill()
    else:
        voter.stop()
    path = voter.data_dir / "__cluster_metadata-0" / f"{0:020}.log"
    original = path.read_bytes()
    middle = len(original) // 2
    flipped = original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :]
    with changed(path, flipped):
        output = exit_message(voter)
        is_kept = path.read_bytes() == flipped
        assert is_kept, f"what could still be mended is kept as it is, but: {output}"
        running.create_topic(f"meanwhile-{is_killed}", replicas=2)
    assert "__cluster_metadata-0" in output
    assert "is damaged" in output
    assert "empty its data directory" in output


# Clients that pose as nodes


def test_a_client_that_poses_as_a_replica_does_not_move_the_high_watermark(cluster: BrokerProcessCluster) -> None:
    leader = cluster.leader_of("honest")
    others = [node_id for node_id in cluster.nodes if node_id != leader]
    with WireClient(cluster.nodes[leader].bootstrap) as writer, WireClient(cluster.nodes[leader].bootstrap) as poser:
        committed, known_id = end_offset(writer, "honest"), topic_id(writer, "honest")
        response = fetched(writer, "honest", committed, current_leader_epoch=0)
        epoch = 0 if response["error_code"] == 0 else -1
        for node_id in others:
            cluster.pause(node_id)
        try:
            # Only the leader has it, so it must not be acknowledged.
            writer.send(0, 9, _produce("honest", b"alone"))
            for replica_id in [*others, OTHER_NODE_ID]:
                for known_epoch in (epoch, -1):
                    for code in _posing_fetches(poser, known_id, replica_id, committed + 1, known_epoch):
                        assert code in POSER
            seen = fetched(poser, "honest", committed)
            assert seen["high_watermark"] == committed
            assert not seen["records"]
        finally:
            for node_id in others:
                cluster.resume(node_id)
        _, acknowledged = writer.receive(0, 9)
        assert acknowledged["responses"][0]["partition_responses"][0]["error_code"] == 0


def _produce(topic: str, value: bytes) -> Tree:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch([value])}]}]
    return {"acks": -1, "timeout": 20_000, "topic_data": data}


def _posing_fetches(wire: WireClient, known_id: UUID, replica_id: int, offset: int, known_epoch: int) -> Iterator[int]:
    """Yields the error codes of fetches as this replica: without a broker epoch, and with wrong ones."""
    fields = {"current_leader_epoch": known_epoch, "replica_id": replica_id}
    yield wire.request(FETCH, 12, fetch_tree("honest", offset, **fields))["responses"][0]["partitions"][0]["error_code"]
    for broker_epoch in (-1, 0, LATE_EPOCH):
        tree = fetch_tree("honest", offset, current_leader_epoch=known_epoch)
        tree["replica_state"] = {"replica_id": replica_id, "replica_epoch": broker_epoch}
        tree["topics"][0]["topic_id"] = known_id
        yield wire.request(FETCH, 17, tree)["responses"][0]["partitions"][0]["error_code"]


def of_log(partition: Tree) -> list[Tree]:
    return [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0, **partition}]}]


def posing_as_leader(node_id: int, sender: int, epoch: int) -> dict[str, tuple[int, int, Tree]]:
    """Returns quorum requests to this node that name `sender`, by name."""
    candidate = {
        "replica_epoch": epoch,
        "replica_id": sender,
        "replica_directory_id": UUID(int=7),
        "last_offset_epoch": epoch - 1,
        "last_offset": 1_000_000,
    }
    leader = {"leader_id": sender, "leader_epoch": epoch}
    voter = {"cluster_id": CLUSTER_ID, "voter_id": node_id}
    return {
        "vote": (VOTE, 2, {**voter, "topics": of_log({**candidate, "pre_vote": False})}),
        "pre-vote": (VOTE, 2, {**voter, "topics": of_log({**candidate, "pre_vote": True})}),
        "begin": (BEGIN_QUORUM_EPOCH, 1, {**voter, "topics": of_log(leader)}),
        "end": (END_QUORUM_EPOCH, 1, {"cluster_id": CLUSTER_ID, "topics": of_log(leader)}),
    }


@pytest.mark.parametrize("request_", ["vote", "pre-vote", "begin", "end"])
def test_a_client_that_poses_as_the_quorum_leader_does_not_depose_it(
    cluster: BrokerProcessCluster, request_: str
) -> None:
    _, epoch = cluster.quorum()
    for node_id, node in cluster.nodes.items():
        with WireClient(node.bootstrap) as wire:
            api_key, version, tree = posing_as_leader(node_id, OTHER_NODE_ID, LATE_EPOCH)[request_]
            response = wire.request(api_key, version, tree)
            code = response["error_code"] or response["topics"][0]["partitions"][0]["error_code"]
            assert code == INCONSISTENT_VOTER_SET
            foreign = wire.request(api_key, version, {**tree, "cluster_id": OTHER_CLUSTER_ID})
            assert foreign["error_code"] == INCONSISTENT_CLUSTER_ID
            api_key, version, tree = posing_as_leader(node_id, OTHER_NODE_ID, epoch)[request_]
            assert not wire.request(api_key, version, tree)["topics"][0]["partitions"][0].get("vote_granted")
        assert "node 99 is not a voter of this cluster" in node.output()


def test_a_client_that_poses_as_a_voter_commits_no_metadata(cluster: BrokerProcessCluster) -> None:
    leader, epoch = cluster.quorum()
    with WireClient(cluster.nodes[leader].bootstrap) as wire:
        for replica_id in (-1, OTHER_NODE_ID, *(each for each in cluster.nodes if each != leader)):
            fields = {
                "partition": 0,
                "current_leader_epoch": epoch,
                "fetch_offset": 1_000_000,
                "last_fetched_epoch": epoch,
                "partition_max_bytes": 1,
            }
            tree: Tree = {
                "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "session_epoch": -1,
                "topics": [{"topic_id": UUID(int=1), "partitions": [fields]}],
            }
            found = wire.request(FETCH, 17, tree)["responses"][0]["partitions"][0]
            assert found["error_code"] == (UNKNOWN_TOPIC_ID if replica_id < 0 else INVALID_REQUEST)
            assert not found["records"]


def test_a_client_that_poses_as_a_leader_does_not_change_the_isr(cluster: BrokerProcessCluster) -> None:
    controller, _ = cluster.quorum()
    leader = cluster.leader_of("honest")
    with WireClient(cluster.nodes[controller].bootstrap) as wire:
        change = {
            "partition_index": 0,
            "leader_epoch": 0,
            "new_isr_with_epochs": [{"broker_id": leader, "broker_epoch": -1}],
            "leader_recovery_state": 0,
            "partition_epoch": 0,
        }
        topics = [{"topic_id": topic_id(wire, "honest"), "partitions": [change]}]
        for broker_id, code in ((leader, STALE_BROKER_EPOCH), (OTHER_NODE_ID, BROKER_ID_NOT_REGISTERED)):
            for broker_epoch in (-1, 0, LATE_EPOCH):
                tree = {"broker_id": broker_id, "broker_epoch": broker_epoch, "topics": topics}
                assert wire.request(ALTER_PARTITION, 3, tree)["error_code"] == code


def test_a_client_that_poses_as_a_broker_does_not_replace_it(cluster: BrokerProcessCluster) -> None:
    controller, _ = cluster.quorum()
    other = next(node_id for node_id in cluster.nodes if node_id != controller)
    with WireClient(cluster.nodes[controller].bootstrap) as wire:
        registration = {
            "broker_id": other,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": UUID(int=9),
            "listeners": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1, "security_protocol": 0}],
            "features": [
                {"name": name, "min_supported_version": 1, "max_supported_version": 100}
                for name in ("metadata.version", "eligible.leader.replicas.version", "transaction.version")
            ],
            "log_dirs": [],
            "previous_broker_epoch": -1,
        }
        taken = wire.request(BROKER_REGISTRATION, 3, registration)
        assert taken["error_code"] == DUPLICATE_BROKER_REGISTRATION
        foreign = wire.request(BROKER_REGISTRATION, 3, {**registration, "cluster_id": OTHER_CLUSTER_ID})
        assert foreign["error_code"] == INCONSISTENT_CLUSTER_ID
        for broker_epoch in (-1, 0, LATE_EPOCH):
            beat = {"broker_id": other, "broker_epoch": broker_epoch, "want_shut_down": True}
            assert wire.request(BROKER_HEARTBEAT, 1, beat)["error_code"] == STALE_BROKER_EPOCH
            ids = {"broker_id": other, "broker_epoch": broker_epoch}
            assert wire.request(ALLOCATE_PRODUCER_IDS, 0, ids)["error_code"] == STALE_BROKER_EPOCH


def test_an_inter_broker_listener_keeps_clients_from_posing_as_nodes(tmp_path: Path) -> None:
    between = f"127.0.0.1:{free_port()}"
    clients = f"127.0.0.1:{free_port()}"
    settings = {"inter.broker.listener.name": "NODES", "cluster.id": CLUSTER_ID}
    listeners = ("--listen", f"CLIENTS://{clients},NODES://{between}")
    node = BrokerProcess(tmp_path / "data", *listeners, environment=as_environment(settings))
    with node:
        with WireClient(clients) as wire:
            served = {each["api_key"] for each in wire.request(API_VERSIONS, 3, NAMED)["api_keys"]}
            assert served.isdisjoint({VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH, ALTER_PARTITION})
            assert FETCH in served
        for api_key, version, tree in posing_as_leader(1, 1, LATE_EPOCH).values():
            with WireClient(clients) as wire, pytest.raises(ConnectionClosedError):
                wire.request(api_key, version, tree)
        assert "is only for nodes of this cluster" in node.output()
        with WireClient(between) as wire:
            assert wire.request(*posing_as_leader(1, 1, 0)["end"])["error_code"] == 0
