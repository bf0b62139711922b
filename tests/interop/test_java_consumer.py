"""Java consumers with the classic protocol: assignments when consumers join and leave, with every assignor, and when
topics are created."""

import re

import pytest
from broker_under_test import Broker
from java_clients import JavaClients, JavaConsumer, partitions_of, wait_until_shared

from support.topics import Topics, unique

ASSIGNORS = "org.apache.kafka.clients.consumer"
EAGER = ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor"]


def by(assignor: str) -> dict[str, str]:
    return {"partition_assignment_strategy": f"{ASSIGNORS}.{assignor}"}


def revoked_after(consumer: JavaConsumer, since: int) -> set[str]:
    return {each for event in consumer.events_of("revoked", since) for each in event["partitions"]}


def test_two_java_consumers_share_a_topic_and_a_third_joins_and_leaves(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=6), unique()
    everything = partitions_of(topic, 6)

    def join(name: str) -> JavaConsumer:
        return java.consumer(node.bootstrap, name, topic, group_id=group)

    a = join("a")
    wait_until_shared([a], everything)
    b = join("b")
    wait_until_shared([a, b], everything)
    assert [len(each.owned) for each in (a, b)] == [3, 3]
    c = join("c")
    wait_until_shared([a, b, c], everything)
    assert [len(each.owned) for each in (a, b, c)] == [2, 2, 2]
    sent = java.produce(node.bootstrap, topic, [{"value": str(n), "partition": n % 6} for n in range(60)], linger_ms=5)
    assert len(sent) == 60
    for each in (a, b, c):
        each.wait_for_records(20)
        assert {record["partition"] for record in each.events_of("record")} == each.owned
    c.close()
    wait_until_shared([a, b], everything)
    java.produce(node.bootstrap, topic, [{"value": f"more {n}", "partition": n % 6} for n in range(60)])
    for each in (a, b):
        each.wait_for_records(50)
    values = [value for each in (a, b, c) for value in each.values]
    assert sorted(values) == sorted([str(n) for n in range(60)] + [f"more {n}" for n in range(60)])


@pytest.mark.parametrize("assignor", [*EAGER, "CooperativeStickyAssignor"])
def test_a_group_shares_two_topics_by(java: JavaClients, node: Broker, assignor: str) -> None:
    """Every assignor assigns each partition to one member, evenly, and a third member gets its share."""
    topics, group = Topics(node.bootstrap), unique()
    first_topic, second_topic = sorted([topics.create(partitions=3), topics.create(partitions=3)])
    everything = partitions_of(first_topic, 3) | partitions_of(second_topic, 3)

    def join(name: str) -> JavaConsumer:
        return java.consumer(node.bootstrap, name, first_topic, second_topic, group_id=group, **by(assignor))

    a = join("a")
    wait_until_shared([a], everything)
    b = join("b")
    wait_until_shared([a, b], everything)
    expected = {
        "RangeAssignor": {f"{topic}:{number}" for topic in (first_topic, second_topic) for number in (0, 1)},
        "RoundRobinAssignor": {f"{first_topic}:0", f"{first_topic}:2", f"{second_topic}:1"},
    }
    if assignor in expected:
        assert a.owned == expected[assignor]
    else:
        assert len(a.owned) == len(b.owned) == 3
    before = {each.name: (set(each.owned), len(each.events)) for each in (a, b)}
    c = join("c")
    wait_until_shared([a, b, c], everything)
    assert [len(each.owned) for each in (a, b, c)] == [2, 2, 2]
    for each in (a, b):
        owned, since = before[each.name]
        if assignor.endswith("StickyAssignor"):
            assert each.owned < owned, "a sticky member keeps what it had, less what it hands over"
        if assignor == "CooperativeStickyAssignor":
            assert revoked_after(each, since) == owned - each.owned
        else:
            assert revoked_after(each, since) == owned
    c.close()
    wait_until_shared([a, b], everything)
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert described["assignor"] == {
        "RangeAssignor": "range",
        "RoundRobinAssignor": "roundrobin",
        "StickyAssignor": "sticky",
        "CooperativeStickyAssignor": "cooperative-sticky",
    }.get(assignor)


def test_a_group_uses_an_assignor_that_all_members_support(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    both = f"{ASSIGNORS}.RangeAssignor,{ASSIGNORS}.RoundRobinAssignor"
    a = java.consumer(node.bootstrap, "a", topic, group_id=group, partition_assignment_strategy=both)
    wait_until_shared([a], partitions_of(topic, 4))
    assert java.admin(node.bootstrap, "describeGroup", group=group)["assignor"] == "range"
    b = java.consumer(node.bootstrap, "b", topic, group_id=group, **by("RoundRobinAssignor"))
    wait_until_shared([a, b], partitions_of(topic, 4))
    assert java.admin(node.bootstrap, "describeGroup", group=group)["assignor"] == "roundrobin"
    stranger = java.consumer(node.bootstrap, "stranger", topic, group_id=group, **by("StickyAssignor"))
    assert stranger.wait_for_error() == "InconsistentGroupProtocolException"
    wait_until_shared([a, b], partitions_of(topic, 4))


def test_a_rolling_restart_moves_a_group_from_eager_to_cooperative(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    both = f"{ASSIGNORS}.CooperativeStickyAssignor,{ASSIGNORS}.RangeAssignor"
    members = [java.consumer(node.bootstrap, name, topic, group_id=group, **by("RangeAssignor")) for name in "ab"]
    for strategy in (both, f"{ASSIGNORS}.CooperativeStickyAssignor"):
        for index, name in enumerate("ab"):
            wait_until_shared(members, partitions_of(topic, 4))
            members[index].close()
            members[index] = java.consumer(
                node.bootstrap, name, topic, group_id=group, partition_assignment_strategy=strategy
            )
    wait_until_shared(members, partitions_of(topic, 4))
    assert java.admin(node.bootstrap, "describeGroup", group=group)["assignor"] == "cooperative-sticky"


def test_a_pattern_finds_topics_that_are_created_later(java: JavaClients, node: Broker) -> None:
    """Partitions are revoked when the topic is deleted. (Auto-commit keeps trying for the deleted topic.)"""
    prefix, group = unique(), unique()

    def create(name: str) -> set[str]:
        java.admin(node.bootstrap, "createTopic", topic=f"{prefix}.{name}", partitions=2)
        return partitions_of(f"{prefix}.{name}", 2)

    partitions = create("one")
    pattern = re.escape(prefix) + r"\.(one|two)"
    settings = {"group_id": group, "metadata_max_age_ms": 300, "enable_auto_commit": False}
    members = [java.consumer(node.bootstrap, name, pattern=pattern, **settings) for name in "ab"]
    wait_until_shared(members, partitions)
    create("other")
    partitions |= create("two")
    wait_until_shared(members, partitions)
    java.produce(node.bootstrap, f"{prefix}.two", [{"value": str(n), "partition": n % 2} for n in range(4)])
    for each in members:
        each.wait_for_records(2)
    java.admin(node.bootstrap, "deleteTopic", topic=f"{prefix}.two")
    wait_until_shared(members, partitions_of(f"{prefix}.one", 2))


def test_a_group_is_assigned_added_partitions(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    settings = {"group_id": group, "metadata_max_age_ms": 300}
    members = [java.consumer(node.bootstrap, name, topic, **settings) for name in "ab"]
    wait_until_shared(members, partitions_of(topic, 2))
    java.admin(node.bootstrap, "createPartitions", topic=topic, partitions=6)
    wait_until_shared(members, partitions_of(topic, 6))


def test_many_java_groups_read_one_topic_independently(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create(partitions=2)
    java.produce(node.bootstrap, topic, [{"value": str(n), "partition": n % 2} for n in range(10)])
    readers = [java.consumer(node.bootstrap, f"reader-{n}", topic, group_id=unique()) for n in range(5)]
    for each in readers:
        assert sorted(each.wait_for_records(10)) == [str(n) for n in range(10)]
        assert each.generation == 1


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_no_record_is_missed_while_many_members_join_and_leave(java: JavaClients, node: Broker, assignor: str) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=12), unique()
    everything, sent = partitions_of(topic, 12), 0
    present: list[JavaConsumer] = []
    closed: list[JavaConsumer] = []

    def produce() -> None:
        nonlocal sent
        java.produce(node.bootstrap, topic, [{"value": str(n), "partition": n % 12} for n in range(sent, sent + 120)])
        sent += 120

    for turn, (come, go) in enumerate([(1, 0), (5, 0), (2, 3), (0, 4), (3, 1)]):
        produce()
        joining = [
            java.consumer(node.bootstrap, f"{turn}-{number}", topic, group_id=group, **by(assignor))
            for number in range(come)
        ]
        present += joining
        for each in present[:go]:
            each.close()
        closed += present[:go]
        del present[:go]
        produce()
        wait_until_shared(present, everything)
    produce()

    def read() -> list[int]:
        return [int(value) for each in (*present, *closed) for value in each.values]

    java.wait_until(lambda: len(set(read())) >= sent, lambda: f"{len(set(read()))} of {sent} were read")
    assert set(read()) == set(range(sent))
    # A cooperative member reads while it joins; if it closes just then it cannot commit what it read.
    if assignor in EAGER:
        assert len(read()) == sent
