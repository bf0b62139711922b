"""Membership of Java consumers: static members that restart or exist twice, and members that stop polling or
heartbeating."""

import pytest
from broker_under_test import Broker
from java_clients import JavaClients, JavaConsumer, JavaError, partitions_of, wait_until_shared

from support.topics import Topics, unique


def test_a_static_member_restarts_without_a_rebalance(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()

    def join(name: str) -> JavaConsumer:
        return java.consumer(node.bootstrap, name, topic, group_id=group, group_instance_id=f"{name}-instance")

    a, b = join("a"), join("b")
    wait_until_shared([a, b], partitions_of(topic, 4))
    owned, generation, seen = set(b.owned), a.generation, len(a.events)
    member = b.events_of("assigned")[-1]["member"]
    b.close()
    b = join("b")
    wait_until_shared([a, b], partitions_of(topic, 4))
    assert b.owned == owned
    assert b.generation == generation
    assert b.events_of("assigned")[-1]["member"] != member
    java.produce(node.bootstrap, topic, [{"value": str(n), "partition": n} for n in range(4)])
    a.wait_for_records(2)
    b.wait_for_records(2)
    assert {each["event"] for each in a.events[seen:]} <= {"record", "committed"}
    assert a.member["generation"] == generation
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert {each["instance"] for each in described["members"]} == {"a-instance", "b-instance"}


def test_a_static_leader_restarts_without_a_rebalance(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()

    def join(name: str) -> JavaConsumer:
        return java.consumer(node.bootstrap, name, topic, group_id=group, group_instance_id=f"{name}-instance")

    leader = join("leader")
    wait_until_shared([leader], partitions_of(topic, 4))
    other = join("other")
    wait_until_shared([leader, other], partitions_of(topic, 4))
    owned, generation = set(leader.owned), other.generation
    leader.close()
    leader = join("leader")
    wait_until_shared([leader, other], partitions_of(topic, 4))
    assert leader.owned == owned
    assert leader.generation == generation


def test_a_static_member_that_does_not_restart_is_removed_after_its_session_timeout(
    java: JavaClients, node: Broker
) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()

    def join(name: str) -> JavaConsumer:
        return java.consumer(
            node.bootstrap, name, topic, group_id=group, group_instance_id=name, session_timeout_ms=1500
        )

    a, b = join("a"), join("b")
    wait_until_shared([a, b], partitions_of(topic, 4))
    b.close()
    wait_until_shared([a], partitions_of(topic, 4))
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert [each["instance"] for each in described["members"]] == ["a"]


def test_the_first_of_two_members_with_one_instance_id_is_fenced(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    settings = {"group_id": group, "group_instance_id": "twin"}
    first = java.consumer(node.bootstrap, "first", topic, **settings)
    wait_until_shared([first], partitions_of(topic, 2))
    second = java.consumer(node.bootstrap, "second", topic, **settings)
    wait_until_shared([second], partitions_of(topic, 2))
    assert first.wait_for_error() == "FencedInstanceIdException"
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    member = second.events_of("assigned")[-1]["member"]
    assert [(each["member"], each["instance"]) for each in described["members"]] == [(member, "twin")]


def test_a_consumer_that_polls_too_late_loses_its_partitions_and_rejoins(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    settings = {"group_id": group, "enable_auto_commit": False}
    slow = java.consumer(node.bootstrap, "slow", topic, **settings, max_poll_interval_ms=1500)
    quick = java.consumer(node.bootstrap, "quick", topic, **settings)
    wait_until_shared([slow, quick], partitions_of(topic, 4))
    since = len(slow.events)
    member = slow.events_of("assigned")[-1]["member"]
    slow.stall()
    wait_until_shared([quick], partitions_of(topic, 4))
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert [each["client"] for each in described["members"]] == ["quick"]
    slow.go()
    lost = slow.wait_for("lost", since)
    assert len(lost["partitions"]) == 2
    wait_until_shared([slow, quick], partitions_of(topic, 4))
    assert slow.events_of("assigned")[-1]["member"] != member
    assert slow.events_of("revoked", since) == []


def test_a_removed_consumer_cannot_commit(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=1), unique()
    java.produce(node.bootstrap, topic, [{"value": "x"}])
    settings = {"group_id": group, "enable_auto_commit": False}
    only = java.consumer(node.bootstrap, "only", topic, **settings)
    only.wait_for_records(1)
    # Its next heartbeat is far away, so it learns of its removal from the commit response.
    late = java.consumer(
        node.bootstrap, "late", topic, **settings, heartbeat_interval_ms=10_000, session_timeout_ms=30_000
    )
    only.close()
    late.wait_for("assigned")
    late.wait_for_records(1)
    java.admin(node.bootstrap, "removeGroupMembers", group=group)
    with pytest.raises(JavaError) as refused:
        late.commit({f"{topic}:0": (1, "")})
    assert refused.value.name == "CommitFailedException"
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {}


def test_a_dead_member_is_removed_after_its_session_timeout(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    settings = {"group_id": group, "session_timeout_ms": 1500}
    a, b = (java.consumer(node.bootstrap, name, topic, **settings) for name in "ab")
    wait_until_shared([a, b], partitions_of(topic, 4))
    b.close(stay=True)
    wait_until_shared([a], partitions_of(topic, 4))
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert [each["client"] for each in described["members"]] == ["a"]


def test_session_timeouts_out_of_range_are_rejected(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    for timeout_ms in (500, 1_800_001):
        member = java.consumer(node.bootstrap, f"of-{timeout_ms}", topic, group_id=group, session_timeout_ms=timeout_ms)
        assert member.wait_for_error() == "InvalidSessionTimeoutException"


def test_a_member_can_request_a_rebalance(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    a, b = (java.consumer(node.bootstrap, name, topic, group_id=group) for name in "ab")
    wait_until_shared([a, b], partitions_of(topic, 4))
    generation = a.generation
    a.rebalance()
    java.wait_until(lambda: a.generation == b.generation == generation + 1, "no new generation")
    wait_until_shared([a, b], partitions_of(topic, 4))
