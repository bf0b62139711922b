"""The order of a Java consumer's requests and callbacks: coordinator, join, assignment and heartbeats; at a rebalance,
commit and revoke before the next join."""

import time
from collections.abc import Iterator

import pytest
from broker_under_test import broker
from java_clients import JavaClients, JavaConsumer, partitions_of, wait_until_shared
from recorder import RecordedMessage, Recorder

from support.topics import Topics, unique

MEMBER_ID_REQUIRED = 79
REBALANCE_IN_PROGRESS = 27
COORDINATION = ("FindCoordinator", "JoinGroup", "SyncGroup")
AUTO_COMMIT_FAR_AWAY = {"auto_commit_interval_ms": 3_600_000}
"""Commits are due to rebalances and to the end of a consumer, however slow the machine is."""


@pytest.fixture(scope="module")
def recorder(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """Records all requests of clients: the broker advertises the recorder's address."""
    found = Recorder()
    with broker(tmp_path_factory.mktemp("recorded") / "data", advertised_port=found.port) as started:
        found.broker_port = started.port
        # For the first group of a cluster the offsets topic is created, which needs more requests; skip that here.
        earlier = jvm.consumer(found.bootstrap, "earlier", Topics(found.bootstrap).create(), group_id="earlier")
        earlier.wait_for("assigned")
        earlier.close()
        yield found
        found.close()


def consumer(java: JavaClients, recorder: Recorder, group: str, name: str, topic: str, **more: object) -> JavaConsumer:
    """Names are unique client ids, by which the recorder knows the consumers."""
    return java.consumer(recorder.bootstrap, f"{name}-{group}", topic, group_id=group, **more)


def in_order(recorder: Recorder, of: JavaConsumer, since_ns: int = 0) -> list[str]:
    """Returns recorded messages and consumer events in order: "→" to the broker, "←" from it."""
    messages = [
        (each.at_ns, f"{'←' if each.is_response else '→'} {each.name}")
        for each in recorder.of(of.name)
        if each.name in (*COORDINATION, "OffsetCommit", "LeaveGroup")
    ]
    events = [(each["at_ns"], each["event"]) for each in of.events if each["event"] in ("assigned", "revoked", "lost")]
    return [what for at_ns, what in sorted(messages + events) if at_ns >= since_ns]


def messages_of(recorder: Recorder, of: JavaConsumer, name: str, *, is_response: bool) -> list[RecordedMessage]:
    return [each for each in recorder.of(of.name) if each.name == name and each.is_response == is_response]


def test_a_first_consumer_finds_its_coordinator_joins_twice_leads_syncs_and_heartbeats(
    java: JavaClients, recorder: Recorder
) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=3), unique()
    first = consumer(java, recorder, group, "first", topic, **AUTO_COMMIT_FAR_AWAY)
    wait_until_shared([first], partitions_of(topic, 3))
    recorder.wait_for_response(first.name, "Heartbeat")
    order = in_order(recorder, first)
    assert order == [
        "→ FindCoordinator",
        "← FindCoordinator",
        "→ JoinGroup",
        "← JoinGroup",
        "→ JoinGroup",
        "← JoinGroup",
        "→ SyncGroup",
        "← SyncGroup",
        "assigned",
    ]
    (lookup,) = messages_of(recorder, first, "FindCoordinator", is_response=True)
    (found,) = lookup.content["coordinators"]
    assert (found["error_code"], found["node_id"], found["port"]) == (0, 1, recorder.port)
    first_join, second_join = messages_of(recorder, first, "JoinGroup", is_response=False)
    first_response, second_response = messages_of(recorder, first, "JoinGroup", is_response=True)
    assert first_join.content["member_id"] == ""
    assert first_join.content["protocol_type"] == "consumer"
    assert [each["name"] for each in first_join.content["protocols"]] == ["range", "cooperative-sticky"]
    assert first_response.error == MEMBER_ID_REQUIRED
    assert first_response.content["member_id"].startswith(first.name + "-")
    assert second_join.content["member_id"] == first_response.content["member_id"]
    assert second_response.error == 0
    assert second_response.content["generation_id"] == 1
    assert second_response.content["leader"] == second_response.content["member_id"] == second_join.content["member_id"]
    assert second_response.content["protocol_name"] == "range"
    (member,) = second_response.content["members"]
    assert member["member_id"] == second_join.content["member_id"]
    (sync,) = messages_of(recorder, first, "SyncGroup", is_response=False)
    assert [each["member_id"] for each in sync.content["assignments"]] == [member["member_id"]]
    (synced,) = messages_of(recorder, first, "SyncGroup", is_response=True)
    assert synced.content["assignment"] == sync.content["assignments"][0]["assignment"]
    heartbeats = messages_of(recorder, first, "Heartbeat", is_response=False)
    assert heartbeats[0].at_ns > synced.at_ns
    assert {(each.content["generation_id"], each.content["member_id"]) for each in heartbeats} == {
        (1, member["member_id"])
    }
    assert all(each.error == 0 for each in messages_of(recorder, first, "Heartbeat", is_response=True))


def test_at_a_rebalance_a_consumer_commits_revokes_joins_and_syncs_in_order(
    java: JavaClients, recorder: Recorder
) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=4), unique()
    java.produce(recorder.bootstrap, topic, [{"value": str(n), "partition": n % 4} for n in range(20)])
    settings = {**AUTO_COMMIT_FAR_AWAY, "heartbeat_interval_ms": 200}
    first = consumer(java, recorder, group, "first", topic, **settings)
    first.wait_for_records(20)
    wait_until_shared([first], partitions_of(topic, 4))
    before_ns = time.monotonic_ns()
    second = consumer(java, recorder, group, "second", topic, **settings)
    wait_until_shared([first, second], partitions_of(topic, 4))

    assert in_order(recorder, first, before_ns) == [
        "→ OffsetCommit",
        "← OffsetCommit",
        "revoked",
        "→ JoinGroup",
        "← JoinGroup",
        "→ SyncGroup",
        "← SyncGroup",
        "assigned",
    ]
    beaten = [each for each in messages_of(recorder, first, "Heartbeat", is_response=True) if each.error]
    assert {each.error for each in beaten} == {REBALANCE_IN_PROGRESS}
    revoked = first.events_of("revoked")[0]
    assert beaten[0].at_ns < revoked["at_ns"]
    assert set(revoked["partitions"]) == partitions_of(topic, 4)
    (commit,) = messages_of(recorder, first, "OffsetCommit", is_response=False)
    assert (commit.content["generation_id_or_member_epoch"], commit.content["group_id"]) == (1, group)
    joined = messages_of(recorder, first, "JoinGroup", is_response=False)[-1]
    assert joined.content["member_id"] == commit.content["member_id"]

    assert "revoked" not in in_order(recorder, second)
    answers = [messages_of(recorder, each, "JoinGroup", is_response=True)[-1] for each in (first, second)]
    assert {each.content["generation_id"] for each in answers} == {2}
    (leader,) = {each.content["leader"] for each in answers}
    assert [bool(each.content["members"]) for each in answers] == [
        each.content["member_id"] == leader for each in answers
    ]
    for each, response in zip((first, second), answers, strict=True):
        sync = messages_of(recorder, each, "SyncGroup", is_response=False)[-1]
        assert bool(sync.content["assignments"]) == (response.content["member_id"] == leader)
        assert sync.content["generation_id"] == 2


def test_a_cooperative_rebalance_commits_keeps_partitions_and_joins_again_to_revoke_the_rest(
    java: JavaClients, recorder: Recorder
) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=4), unique()
    settings = {"partition_assignment_strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}
    first = consumer(java, recorder, group, "first", topic, **settings)
    wait_until_shared([first], partitions_of(topic, 4))
    before_ns = time.monotonic_ns()
    second = consumer(java, recorder, group, "second", topic, **settings)
    wait_until_shared([first, second], partitions_of(topic, 4))
    order = [what for what in in_order(recorder, first, before_ns) if "OffsetCommit" not in what]
    round_trips = ["→ JoinGroup", "← JoinGroup", "→ SyncGroup", "← SyncGroup"]
    assert order == [*round_trips, "revoked", "assigned", *round_trips, "assigned"]
    assert len(first.events_of("revoked")[0]["partitions"]) == 2


def test_a_closing_consumer_commits_revokes_and_leaves(java: JavaClients, recorder: Recorder) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=2), unique()
    java.produce(recorder.bootstrap, topic, [{"value": "x"}])
    only = consumer(java, recorder, group, "only", topic, **AUTO_COMMIT_FAR_AWAY)
    only.wait_for_records(1)
    before_ns = time.monotonic_ns()
    only.close()
    assert in_order(recorder, only, before_ns)[:4] == ["→ OffsetCommit", "← OffsetCommit", "revoked", "→ LeaveGroup"]
    left = recorder.wait_for_response(only.name, "LeaveGroup")
    assert left.error == 0
    assert [each["error_code"] for each in left.content["members"]] == [0]


def test_a_consumer_that_polls_too_late_leaves_and_rejoins_as_a_new_member(
    java: JavaClients, recorder: Recorder
) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=2), unique()
    slow = consumer(java, recorder, group, "slow", topic, max_poll_interval_ms=5000, enable_auto_commit=False)
    wait_until_shared([slow], partitions_of(topic, 2))
    before_ns = time.monotonic_ns()
    slow.stall()
    left = recorder.wait_for_response(slow.name, "LeaveGroup", before_ns)
    assert [each["error_code"] for each in left.content["members"]] == [0]
    slow.go()
    slow.wait_for("lost")
    wait_until_shared([slow], partitions_of(topic, 2))
    assert in_order(recorder, slow, before_ns) == [
        "→ LeaveGroup",
        "← LeaveGroup",
        "lost",
        "→ JoinGroup",
        "← JoinGroup",
        "→ JoinGroup",
        "← JoinGroup",
        "→ SyncGroup",
        "← SyncGroup",
        "assigned",
    ]
    first, *_, again, last = messages_of(recorder, slow, "JoinGroup", is_response=False)
    assert (first.content["member_id"], again.content["member_id"]) == ("", "")
    (member,) = left.content["members"]
    assert last.content["member_id"] != member["member_id"]


def test_a_static_member_does_not_leave_and_needs_no_second_join(java: JavaClients, recorder: Recorder) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=4), unique()

    def join(name: str) -> JavaConsumer:
        settings = {**AUTO_COMMIT_FAR_AWAY, "group_instance_id": f"{name}-{group}"}
        return consumer(java, recorder, group, name, topic, **settings)

    stays, restarts = join("stays"), join("restarts")
    wait_until_shared([stays, restarts], partitions_of(topic, 4))
    before_ns = time.monotonic_ns()
    restarts.close()
    closed_ns = time.monotonic_ns()
    assert "→ LeaveGroup" not in in_order(recorder, restarts, before_ns)
    restarts = join("restarts")
    wait_until_shared([stays, restarts], partitions_of(topic, 4))
    assert in_order(recorder, restarts, closed_ns) == [
        "→ FindCoordinator",
        "← FindCoordinator",
        "→ JoinGroup",
        "← JoinGroup",
        "→ SyncGroup",
        "← SyncGroup",
        "assigned",
    ]
    joined = messages_of(recorder, restarts, "JoinGroup", is_response=True)[-1]
    assert joined.error == 0
    assert joined.content["generation_id"] == stays.generation
    recorder.wait_for_response(stays.name, "Heartbeat", time.monotonic_ns())
    assert in_order(recorder, stays, before_ns) == []


def test_a_consumer_with_a_broken_connection_reconnects_and_stays_a_member(
    java: JavaClients, recorder: Recorder
) -> None:
    topic, group = Topics(recorder.bootstrap).create(partitions=2), unique()
    settings = {"metadata_recovery_strategy": "none", "enable_auto_commit": False}
    only = consumer(java, recorder, group, "only", topic, **settings)
    wait_until_shared([only], partitions_of(topic, 2))
    cut_ns = time.monotonic_ns()
    recorder.close_connections()
    recorder.wait_for_response(only.name, "FindCoordinator", cut_ns)
    beaten = recorder.wait_for_response(only.name, "Heartbeat", time.monotonic_ns())
    assert beaten.error == 0
    assert set(in_order(recorder, only, cut_ns)) == {"→ FindCoordinator", "← FindCoordinator"}
    assert only.member["generation"] == 1
