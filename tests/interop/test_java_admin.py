"""Java's admin client: topics, configs, records, groups, members and offsets."""

import pytest
from broker_under_test import Broker
from java_clients import JavaClients, JavaConsumer, JavaError, partitions_of, poll_until, wait_until_shared

from support.topics import Topics, unique


def error_name(java: JavaClients, node: Broker, method: str, **parameters: object) -> str:
    """Returns the name of the exception that the admin client throws."""
    with pytest.raises(JavaError) as refused:
        java.admin(node.bootstrap, method, **parameters)
    return refused.value.name


def member(java: JavaClients, node: Broker, name: str, group: str, topic: str, **more: object) -> JavaConsumer:
    return java.consumer(node.bootstrap, name, topic, group_id=group, enable_auto_commit=False, **more)


def test_the_java_admin_creates_describes_changes_and_deletes_a_topic(java: JavaClients, node: Broker) -> None:
    topic = unique()

    def call(method: str, **parameters: object) -> object:
        return java.admin(node.bootstrap, method, topic=topic, **parameters)

    def leaders() -> object:
        return java.admin(node.bootstrap, "describeTopic", topic=topic)["leaders"]

    call("createTopic", partitions=2, configs={"retention.ms": "5000"})
    assert error_name(java, node, "createTopic", topic=topic, partitions=2) == "TopicExistsException"
    poll_until(lambda: topic in java.admin(node.bootstrap, "listTopics"), "the topic is listed")
    poll_until(lambda: leaders() == [1, 1], "two partitions")
    assert java.admin(node.bootstrap, "describeTopic", topic=topic)["internal"] is False
    assert call("describeConfig", name="retention.ms") == ["5000", "DYNAMIC_TOPIC_CONFIG"]
    call("alterConfig", operation="SET", name="retention.ms", value="7000")
    call("alterConfig", operation="APPEND", name="cleanup.policy", value="compact")
    assert call("describeConfig", name="cleanup.policy") == ["delete,compact", "DYNAMIC_TOPIC_CONFIG"]
    call("alterConfig", operation="DELETE", name="retention.ms")
    assert call("describeConfig", name="retention.ms") == ["604800000", "DEFAULT_CONFIG"]
    call("createPartitions", partitions=4)
    poll_until(lambda: leaders() == [1, 1, 1, 1], "four partitions")
    assert error_name(java, node, "createPartitions", topic=topic, partitions=2) == "InvalidPartitionsException"
    call("deleteTopic")
    poll_until(lambda: topic not in java.admin(node.bootstrap, "listTopics"), "the topic is deleted")
    assert error_name(java, node, "describeTopic", topic=topic) == "UnknownTopicOrPartitionException"


def test_the_java_admin_gets_errors_for_invalid_topics(java: JavaClients, node: Broker) -> None:
    assert error_name(java, node, "createTopic", topic="no/good", partitions=1) == "InvalidTopicException"
    assert error_name(java, node, "createTopic", topic=unique(), partitions=0) == "InvalidPartitionsException"
    configs = {"retention.ms": "soon"}
    reason = error_name(java, node, "createTopic", topic=unique(), partitions=1, configs=configs)
    assert reason == "InvalidConfigurationException"
    assert error_name(java, node, "deleteTopic", topic=unique()) == "UnknownTopicOrPartitionException"


def test_the_java_admin_lists_offsets_and_deletes_records(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    times = [1_700_000_000_000, 1_700_000_002_000, 1_700_000_001_000]
    java.produce(node.bootstrap, topic, [{"value": "x", "timestamp": time} for time in times])
    java.produce(node.bootstrap, topic, [{"value": "x", "timestamp": times[0]}])

    def offset(at: str) -> int:
        found: int = java.admin(node.bootstrap, "listOffset", partition=f"{topic}:0", at=at)
        return found

    assert (offset("earliest"), offset("latest")) == (0, 4)
    assert offset("max-timestamp") == 1
    assert offset(str(times[0] + 1)) == 1
    assert java.admin(node.bootstrap, "deleteRecords", partition=f"{topic}:0", before=3) == 3
    assert offset("earliest") == 3
    reason = error_name(java, node, "deleteRecords", partition=f"{topic}:0", before=99)
    assert reason == "OffsetOutOfRangeException"


def test_the_java_admin_describes_the_cluster(java: JavaClients, node: Broker) -> None:
    cluster = java.admin(node.bootstrap, "describeCluster")
    assert cluster["nodes"] == [node.bootstrap]
    assert cluster["controller"] == 1
    assert len(cluster["id"]) == 22


def test_the_java_admin_lists_and_describes_groups(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    members = [member(java, node, name, group, topic, group_instance_id=f"i-{name}") for name in "ab"]
    wait_until_shared(members, partitions_of(topic, 4))

    def listed(**filters: list[str]) -> list[dict[str, str]]:
        found = java.admin(node.bootstrap, "listGroups", **filters)
        return [each for each in found if each["group"] == group]

    assert listed() == [{"group": group, "protocol": "consumer", "state": "Stable", "type": "Classic"}]
    assert listed(states=["Stable"], types=["Classic"]) == listed()
    assert listed(states=["Empty", "Dead"]) == []
    assert listed(types=["JavaConsumer"]) == []
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    seen = {each["client"]: each for each in described.pop("members")}
    assert described == {"state": "Stable", "type": "Classic", "simple": False, "assignor": "range", "coordinator": 1}
    for each in members:
        found = seen[each.name]
        assert found["instance"] == f"i-{each.name}"
        assert found["member"] == each.events_of("assigned")[-1]["member"]
        assert found["host"] == "/127.0.0.1"
        assert set(found["partitions"]) == each.owned
    assert error_name(java, node, "describeGroup", group=unique()) == "GroupIdNotFoundException"


def test_the_java_admin_deletes_groups_that_are_empty(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    only = member(java, node, "only", group, topic)
    only.wait_for("assigned")
    only.commit({f"{topic}:0": (0, "kept")})
    assert error_name(java, node, "deleteGroup", group=group) == "GroupNotEmptyException"
    only.close()
    assert java.admin(node.bootstrap, "describeGroup", group=group)["state"] == "Empty"
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:0": [0, "kept"]}
    java.admin(node.bootstrap, "deleteGroup", group=group)
    assert error_name(java, node, "describeGroup", group=group) == "GroupIdNotFoundException"
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {}
    assert error_name(java, node, "deleteGroup", group=group) == "GroupIdNotFoundException"


def test_the_java_admin_alters_and_deletes_a_groups_offsets(java: JavaClients, node: Broker) -> None:
    topics, group = Topics(node.bootstrap), unique()
    topic, other_topic = topics.create(partitions=2), topics.create()
    offsets = {f"{topic}:0": [5, "five"], f"{topic}:1": [6, ""], f"{other_topic}:0": [7, ""]}
    java.admin(node.bootstrap, "alterGroupOffsets", group=group, offsets=offsets)
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == offsets
    only = member(java, node, "only", group, topic)
    wait_until_shared([only], partitions_of(topic, 2))
    assert error_name(java, node, "alterGroupOffsets", group=group, offsets=offsets) == "UnknownMemberIdException"
    reason = error_name(java, node, "deleteGroupOffsets", group=group, partitions=[f"{topic}:0"])
    assert reason == "GroupSubscribedToTopicException"
    java.admin(node.bootstrap, "deleteGroupOffsets", group=group, partitions=[f"{other_topic}:0"])
    del offsets[f"{other_topic}:0"]
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == offsets
    only.close()
    java.admin(node.bootstrap, "deleteGroupOffsets", group=group, partitions=[f"{topic}:0"])
    del offsets[f"{topic}:0"]
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == offsets
    reason = error_name(java, node, "deleteGroupOffsets", group=unique(), partitions=[f"{topic}:0"])
    assert reason == "GroupIdNotFoundException"
    java.admin(node.bootstrap, "deleteTopic", topic=topic)
    missing = {f"{unique()}:0": [1, ""]}
    reason = error_name(java, node, "alterGroupOffsets", group=group, offsets=missing)
    assert reason == "UnknownTopicOrPartitionException"


def test_the_java_admin_removes_members(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    a, b = (member(java, node, name, group, topic, group_instance_id=name) for name in "ab")
    wait_until_shared([a, b], partitions_of(topic, 4))
    java.admin(node.bootstrap, "removeGroupMembers", group=group, instances=["b"])
    # It learns from its heartbeat that it is no member, loses its partitions and joins again.
    b.wait_for("lost")
    wait_until_shared([a, b], partitions_of(topic, 4))
    generation = a.generation
    java.admin(node.bootstrap, "removeGroupMembers", group=group)
    java.wait_until(lambda: a.generation > generation and b.generation > generation, "no new generation")
    wait_until_shared([a, b], partitions_of(topic, 4))
    assert error_name(java, node, "removeGroupMembers", group=group, instances=["nobody"]) in (
        "UnknownMemberIdException",
        "ExecutionException",
    )


def test_the_offsets_topic_is_internal_and_compacted(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    java.admin(node.bootstrap, "alterGroupOffsets", group=group, offsets={f"{topic}:0": [1, ""]})
    described = java.admin(node.bootstrap, "describeTopic", topic="__consumer_offsets")
    assert described["internal"] is True
    assert described["leaders"] == [1] * 50
    policy = java.admin(node.bootstrap, "describeConfig", topic="__consumer_offsets", name="cleanup.policy")
    assert policy == ["compact", "DYNAMIC_TOPIC_CONFIG"]
    assert "__consumer_offsets" not in java.admin(node.bootstrap, "listTopics")
