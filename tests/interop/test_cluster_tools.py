"""Kafka's command-line tools on three Moldau nodes: elections, the quorum, dead nodes and reassignments."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_kafka import ApacheKafka, KafkaFailed
from command_line import CLUSTER, CONFIGS, LOG_DIRS, TOPICS, VERSIONS, Tools
from java_clients import JavaClients
from moldau_cluster import ELECTION, FEATURES, QUORUM, REASSIGN, at, describe_topic, plan, restore_cluster, three_nodes

from support.broker_process import BrokerProcess
from support.broker_process_cluster import CLUSTER_ID, BrokerProcessCluster
from support.topics import unique

VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"


@pytest.fixture(scope="module")
def running(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    with three_nodes(tmp_path_factory.mktemp("tools")) as served:
        yield served


@pytest.fixture
def cluster(running: BrokerProcessCluster) -> BrokerProcessCluster:
    return restore_cluster(running)


def new_topic(cluster: BrokerProcessCluster, partitions: int = 1, replicas: int = 3, **configs: str) -> str:
    topic = unique()
    cluster.create_topic(topic, partitions, replicas, **configs)
    return topic


def leaders(tools: Tools, cluster: BrokerProcessCluster, topic: str) -> dict[int, int]:
    return {part: leader for part, (leader, _, _) in describe_topic(tools, cluster, topic).items()}


def values(count: int) -> list[dict[str, object]]:
    return [{"value": f"value-{number}", "partition": 0} for number in range(count)]


def test_kafka_topics_spreads_replicas_and_shows_under_replicated_partitions(
    tools: Tools, cluster: BrokerProcessCluster
) -> None:
    topic = unique()
    made = ["--create", "--topic", topic, "--partitions", "6", "--replication-factor", "3"]
    tools.run(TOPICS, *at(cluster), *made)
    found = describe_topic(tools, cluster, topic)
    assert sorted(leader for leader, _, _ in found.values()) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(replicas) == sorted(isr) == [1, 2, 3] for _, replicas, isr in found.values())
    lacking = ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions")
    for kind in lacking:
        assert topic not in tools.run(TOPICS, *at(cluster), "--describe", kind)
    cluster.kill(3)
    cluster.wait_until(lambda: 3 not in cluster.isr(topic, 5), "node 3 is out of the in-sync sets")

    def under_replicated() -> list[str]:
        printed = tools.run(TOPICS, *at(cluster), "--describe", "--under-replicated-partitions")
        return re.findall(rf"Topic: {topic}\s+Partition: \d\s+Leader: [12]\s", printed)

    def states() -> list[tuple[str, str]]:
        endpoints = tools.run(CLUSTER, "list-endpoints", *at(cluster), "--include-fenced-brokers")
        return re.findall(r"^(\d)\s.*\s(fenced|unfenced)\s", endpoints, re.MULTILINE)

    # The tools may ask a node that learns of the death a little later.
    cluster.wait_until(lambda: len(under_replicated()) == 6, "all partitions are under-replicated")
    for kind in lacking[1:]:
        assert topic not in tools.run(TOPICS, *at(cluster), "--describe", kind)
    expected = [("1", "unfenced"), ("2", "unfenced"), ("3", "fenced")]
    cluster.wait_until(lambda: states() == expected, "node 3 is fenced")


def test_kafka_leader_election_elects_the_preferred_replica(tools: Tools, cluster: BrokerProcessCluster) -> None:
    topic = new_topic(cluster, partitions=3)
    preferred = {part: replicas[0] for part, (_, replicas, _) in describe_topic(tools, cluster, topic).items()}
    cluster.nodes[2].stop()
    cluster.start(2)
    cluster.wait_in_sync(topic)
    away = [part for part, (leader, _, _) in describe_topic(tools, cluster, topic).items() if leader != preferred[part]]
    assert away == [part for part, leader in preferred.items() if leader == 2]
    elected = tools.run(ELECTION, *at(cluster), "--election-type", "preferred", "--all-topic-partitions")
    assert "Successfully completed leader election (PREFERRED)" in elected
    assert f"{topic}-{away[0]}" in elected
    # The tool may ask a node that applies the election a little later.
    cluster.wait_until(lambda: leaders(tools, cluster, topic) == preferred, "the preferred replicas lead")
    one = ["--topic", topic, "--partition", "0"]
    again = tools.run(ELECTION, *at(cluster), "--election-type", "preferred", *one)
    assert f"Valid replica already elected for partitions {topic}-0" in again
    with pytest.raises(KafkaFailed, match="UnknownTopicOrPartitionException"):
        tools.run(ELECTION, *at(cluster), "--election-type", "preferred", "--topic", "none", "--partition", "0")


def test_an_unclean_election_happens_only_when_the_tool_requests_it(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster
) -> None:
    topic = new_topic(cluster, replicas=2, min_insync_replicas="1")
    leader, (first, second) = describe_topic(tools, cluster, topic)[0][:2]
    behind = second if leader == first else first
    java.produce(cluster.bootstrap, topic, values(10))
    cluster.kill(behind)
    cluster.wait_until(lambda: cluster.isr(topic) == [leader], "the follower is out")
    java.produce(cluster.bootstrap, topic, values(5))
    cluster.kill(leader)
    cluster.start(behind)
    cluster.wait_until(lambda: cluster.leader_of(topic) == -1, "the partition has no leader")
    unavailable = tools.run(TOPICS, *at(cluster), "--describe", "--unavailable-partitions")
    assert re.search(rf"Topic: {topic}\s+Partition: 0\s+Leader: none", unavailable)
    one = ["--topic", topic, "--partition", "0"]
    with pytest.raises(KafkaFailed, match=r"PreferredLeaderNotAvailable|EligibleLeadersNotAvailable"):
        tools.run(ELECTION, *at(cluster), "--election-type", "preferred", *one)
    elected = tools.run(ELECTION, *at(cluster), "--election-type", "unclean", *one)
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in elected
    cluster.wait_until(lambda: leaders(tools, cluster, topic) == {0: behind}, "the other replica leads")
    assert [each["offset"] for each in java.produce(cluster.bootstrap, topic, values(1))] == [10]
    cluster.start(leader)
    cluster.wait_in_sync(topic)
    reader = java.consumer(cluster.bootstrap, "reader", partitions=[f"{topic}:0"])
    assert reader.wait_for_records(11) == [f"value-{number}" for number in [*range(10), 0]]


def directory_id(node: BrokerProcess) -> str:
    lines = (node.data_dir / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)["directory.id"]


def test_kafka_metadata_quorum_removes_a_voter_and_adds_it_again(
    tools: Tools, cluster: BrokerProcessCluster, tmp_path: Path
) -> None:
    def status() -> dict[int, str]:
        printed = tools.run(QUORUM, *at(cluster), "describe", "--replication")
        return {int(row[0]): row[-1] for row in map(str.split, printed.splitlines()[1:]) if row}

    summary = tools.run(QUORUM, *at(cluster), "describe", "--status")
    leader = int(re.findall(r"^LeaderId:\s+(\d)$", summary, re.MULTILINE)[0])
    assert f"ClusterId:              {CLUSTER_ID}" in summary
    assert re.search(r"^CurrentObservers:\s+\[\]$", summary, re.MULTILINE)
    assert status() == {**dict.fromkeys((1, 2, 3), "Follower"), leader: "Leader"}
    other = 1 if leader != 1 else 2
    node = cluster.nodes[other]
    key = ["--controller-id", str(other), "--controller-directory-id", directory_id(node)]
    assert f"{other} with directory id" in tools.run(QUORUM, *at(cluster), "remove-controller", *key)
    assert status()[other] == "Observer"
    with pytest.raises(KafkaFailed, match="VoterNotFoundException"):
        tools.run(QUORUM, *at(cluster), "remove-controller", *key)
    properties = tmp_path / "controller.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id={other}\nmetadata.log.dir={node.data_dir}\n"
        f"log.dirs={node.data_dir}\nlisteners=PLAINTEXT://{node.bootstrap}\ncontroller.listener.names=PLAINTEXT\n"
    )
    configured = ["--command-config", str(properties)]
    assert f"Added controller {other}" in tools.run(QUORUM, *at(cluster), *configured, "add-controller")
    assert status()[other] == "Follower"
    with pytest.raises(KafkaFailed, match="DuplicateVoterException"):
        tools.run(QUORUM, *at(cluster), *configured, "add-controller")


def test_the_voter_set_survives_a_kill_of_the_quorum_leader(tools: Tools, cluster: BrokerProcessCluster) -> None:
    def status() -> tuple[int, int]:
        printed = tools.run(QUORUM, *at(cluster), "describe", "--status")
        (leader,) = re.findall(r"^LeaderId:\s+(-?\d+)$", printed, re.MULTILINE)
        (epoch,) = re.findall(r"^LeaderEpoch:\s+(\d+)$", printed, re.MULTILINE)
        return int(leader), int(epoch)

    leader, epoch = status()
    cluster.kill(leader)
    new_leader, new_epoch = status()
    assert new_leader != leader
    assert new_epoch > epoch
    cluster.start(leader)
    restore_cluster(cluster)
    assert status() == (new_leader, new_epoch), "a node that came back caused an election"


def test_a_throttled_reassignment_is_slow_until_the_throttle_is_removed(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster, tmp_path: Path
) -> None:
    topic = unique()
    tools.run(TOPICS, *at(cluster), "--create", "--topic", topic, "--replica-assignment", "1")
    large = [{"value": "x" * 100_000, "partition": 0} for _ in range(60)]
    java.produce(cluster.bootstrap, topic, large)
    file = ["--reassignment-json-file", str(plan(tmp_path / "move.json", topic, {0: [1, 2]}))]
    tools.run(REASSIGN, *at(cluster), *file, "--execute", "--throttle", "20000")

    def is_throttled() -> bool:
        entity = ["--entity-type", "topics", "--entity-name", topic]
        described = tools.run(CONFIGS, *at(cluster), *entity, "--describe")
        replicas = ("leader.replication.throttled.replicas=0:1 ", "follower.replication.throttled.replicas=0:2 ")
        return all(each in described for each in replicas)

    cluster.wait_until(is_throttled, "the topic has throttled replicas")
    # Writes do not wait for the throttled replica, which is not in the ISR.
    java.produce(cluster.bootstrap, topic, values(5))
    assert f"{topic}-0 is still in progress" in tools.run(
        REASSIGN, *at(cluster), *file, "--verify", "--preserve-throttles"
    )
    assert f"{topic}-0: replicas: 1,2. adding: 2." in tools.run(REASSIGN, *at(cluster), "--list")
    assert cluster.isr(topic) == [1]
    for broker in ("1", "2"):
        rates = ",".join(f"{side}.replication.throttled.rate=100000000" for side in ("leader", "follower"))
        entity = ["--entity-type", "brokers", "--entity-name", broker]
        tools.run(CONFIGS, *at(cluster), *entity, "--alter", "--add-config", rates)
    cluster.wait_until(lambda: cluster.isr(topic) == [1, 2], "the new replica is in sync")
    verified = tools.run(REASSIGN, *at(cluster), *file, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed" in verified


def test_a_reassignment_can_be_cancelled(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster, tmp_path: Path
) -> None:
    topic = unique()
    tools.run(TOPICS, *at(cluster), "--create", "--topic", topic, "--replica-assignment", "1:2")
    java.produce(cluster.bootstrap, topic, [{"value": "x" * 100_000, "partition": 0} for _ in range(40)])
    file = ["--reassignment-json-file", str(plan(tmp_path / "move.json", topic, {0: [3, 2]}))]
    tools.run(REASSIGN, *at(cluster), *file, "--execute", "--throttle", "10000")
    called_off = tools.run(REASSIGN, *at(cluster), *file, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in called_off

    def has_moved_back() -> bool:
        _, replicas, isr = describe_topic(tools, cluster, topic)[0]
        return sorted(replicas) == sorted(isr) == [1, 2]

    def is_throttled() -> bool:
        return "throttled" in tools.run(CONFIGS, *at(cluster), "--entity-type", "brokers", "--describe")

    cluster.wait_until(has_moved_back, "the partition has its earlier replicas")
    cluster.wait_until(lambda: not is_throttled(), "the throttles are removed")
    for replicas, refusal in (([1, 9], "9"), ([1, 1], "duplicate|once|twice")):
        wrong = plan(tmp_path / "wrong.json", topic, {0: replicas})
        with pytest.raises(KafkaFailed, match=refusal):
            tools.run(REASSIGN, *at(cluster), "--reassignment-json-file", str(wrong), "--execute")


def test_kafka_features_describes_and_changes_features_through_every_node(
    tools: Tools, cluster: BrokerProcessCluster
) -> None:
    described = tools.run(FEATURES, *at(cluster), "describe")
    assert re.search(r"Feature: metadata\.version\s.*FinalizedVersionLevel: 4\.", described)
    assert re.search(r"Feature: eligible\.leader\.replicas\.version\s.*FinalizedVersionLevel: 1", described)
    for node in cluster.nodes.values():
        to_node = (FEATURES, "--bootstrap-server", node.bootstrap)
        upgrade = ("upgrade", "--feature", "eligible.leader.replicas.version=1")
        assert "was upgraded to 1" in tools.run(*to_node, *upgrade)
        with pytest.raises(KafkaFailed, match=r"Local controller [123] only supports versions 1-1"):
            tools.run(*to_node, "upgrade", "--feature", "eligible.leader.replicas.version=2")
        with pytest.raises(KafkaFailed, match=r"Local controller [123] only supports versions 30-30"):
            tools.run(*to_node, "downgrade", "--feature", "metadata.version=29")


def test_kafka_log_dirs_and_api_versions_see_every_node(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster
) -> None:
    topic = new_topic(cluster)
    java.produce(cluster.bootstrap, topic, values(50))

    def sizes() -> dict[int, int]:
        printed = tools.run(LOG_DIRS, *at(cluster), "--describe", "--topic-list", topic)
        brokers = json.loads(printed.splitlines()[-1])["brokers"]
        return {each["broker"]: each["logDirs"][0]["partitions"][0]["size"] for each in brokers}

    cluster.wait_until(lambda: len(set(sizes().values())) == 1, "replicas are of one size")
    assert sorted(sizes()) == [1, 2, 3]
    assert min(sizes().values()) > 0
    versions = tools.run(VERSIONS, *at(cluster))
    assert sorted(re.findall(r"\(id: (\d) rack: null isFenced: false\)", versions)) == ["1", "2", "3"]
    assert "ERROR" not in versions


def test_kafka_replica_verification_finds_no_differences(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster, tmp_path: Path
) -> None:
    topic = new_topic(cluster)
    java.produce(cluster.bootstrap, topic, values(200))
    wanted = ["--broker-list", cluster.bootstrap, "--topics-include", topic, "--time", "-2"]
    found = ""
    with ApacheKafka(tmp_path).tool(VERIFICATION, [*wanted, "--report-interval-ms", "200"]) as printed:
        deadline = time.monotonic() + 60
        while f"max lag is 0 for partition {topic}-0 at offset 200" not in found:
            assert time.monotonic() < deadline, found
            found += printed.readline()
    assert "Exception" not in found
    assert "doesn't match" not in found


def test_a_dead_node_is_unregistered_and_rejoins_as_a_new_one(
    tools: Tools, java: JavaClients, cluster: BrokerProcessCluster
) -> None:
    topic = new_topic(cluster)
    java.produce(cluster.bootstrap, topic, values(20))
    cluster.kill(3)
    cluster.wait_until(lambda: cluster.isr(topic) == [1, 2], "node 3 is out of the in-sync set")
    assert "Broker 3 is no longer registered" in tools.run(CLUSTER, "unregister", *at(cluster), "--id", "3")

    def listed() -> list[str]:
        endpoints = tools.run(CLUSTER, "list-endpoints", *at(cluster), "--include-fenced-brokers")
        return re.findall(r"^(\d)\s", endpoints, re.MULTILINE)

    cluster.wait_until(lambda: listed() == ["1", "2"], "all nodes know that node 3 is not registered")
    with pytest.raises(KafkaFailed, match="BrokerIdNotRegistered"):
        tools.run(CLUSTER, "unregister", *at(cluster), "--id", "3")
    java.produce(cluster.bootstrap, topic, values(20))
    cluster.start(3)
    cluster.wait_in_sync(topic)
    assert describe_topic(tools, cluster, topic)[0][2] != []
