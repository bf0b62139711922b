"""Syncs, heartbeats, commits, leaves and recovery of a classic group."""

import pytest

from moldau.coordinator.result import RequestId
from moldau.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MoldauError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.records import GroupMetadataRecord, GroupMetadataValue
from moldau.groups.requests import EMPTY_RESPONSE, UNKNOWN_MEMBER_ID, GroupState, LeavingMember, ListedGroup
from support.classic_group import GROUP, PENDING, WALL_MS, GroupHarness, named_protocols, subscribed_to

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


def completing(harness: GroupHarness, count: int = 2) -> list[str]:
    """Members that have joined and not synced yet; the first of them leads."""
    request_ids = [harness.join() for _ in range(count)]
    harness.wait_for_generation()
    return [harness.joined(request_id).member_id for request_id in request_ids]


def written(harness: GroupHarness) -> GroupMetadataValue:
    record = harness.log[-1]
    assert isinstance(record, GroupMetadataRecord)
    assert record.group_id == GROUP
    assert record.metadata is not None
    return record.metadata


def errors(harness: GroupHarness, request_id: RequestId) -> list[type[MoldauError] | None]:
    reply = harness.response(request_id)
    assert isinstance(reply, tuple)
    return [each.error and type(each.error) for each in reply]


# Syncing


def test_followers_get_their_assignment_when_the_leader_syncs() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    follower = harness.sync(b)
    assert (harness.response(follower), harness.log) == (PENDING, [])
    leader = harness.sync(a, {a: b"0", b: b"1", "stranger": b"2"})
    assert (harness.assignment(leader), harness.assignment(follower)) == (b"0", b"1")
    assert harness.metadata.state is STABLE


def test_the_leaders_sync_writes_the_complete_group_record() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(a, {a: b"0", b: b"1"})
    metadata = written(harness)
    assert (metadata.protocol_type, metadata.protocol_name, metadata.generation) == ("consumer", "range", 1)
    assert (metadata.leader, metadata.state_timestamp_ms) == (a, WALL_MS + harness.now_ms)
    assert [(each.member_id, each.subscription, each.assignment) for each in metadata.members] == [
        (a, b"mine", b"0"),
        (b, b"mine", b"1"),
    ]
    assert (metadata.members[0].session_timeout_ms, metadata.members[0].rebalance_timeout_ms) == (10_000, 60_000)


def test_a_late_follower_gets_its_assignment_at_once() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(a, {b: b"1"})
    assert harness.assignment(harness.sync(b)) == b"1"
    assert harness.assignment(harness.sync(b)) == b"1", "and again, if it asks again"


def test_a_member_without_an_assignment_gets_an_empty_one() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(a, {a: b"all"})
    assert harness.assignment(harness.sync(b)) == b""


def test_assignments_of_followers_are_ignored() -> None:
    harness = GroupHarness()
    _, b = completing(harness)
    assert harness.response(harness.sync(b, {b: b"all"})) is PENDING
    assert harness.metadata.state is COMPLETING


def test_a_repeated_leader_sync_changes_nothing() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(a, {a: b"0", b: b"1"})
    assert harness.assignment(harness.sync(a, {a: b"2", b: b"2"})) == b"0"
    assert harness.assignment(harness.sync(b)) == b"1"
    assert len(harness.log) == 1


def test_a_repeated_sync_fails_the_earlier_request() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    lost, again = harness.sync(b), harness.sync(b)
    assert harness.error_type(lost) is RebalanceInProgressError
    harness.sync(a, {b: b"1"})
    assert harness.assignment(again) == b"1"


def test_sync_checks_in_order() -> None:
    harness = GroupHarness()
    assert harness.error_type(harness.sync("a")) is UnknownMemberIdError, "the group is empty"
    a, _ = completing(harness)
    assert harness.error_type(harness.sync("nobody", generation=7)) is UnknownMemberIdError
    assert harness.error_type(harness.sync(a, generation=7, protocol_name="x")) is IllegalGenerationError
    assert harness.error_type(harness.sync(a, protocol_type="connect")) is InconsistentGroupProtocolError
    assert harness.error_type(harness.sync(a, protocol_name="sticky")) is InconsistentGroupProtocolError
    harness.join()
    assert harness.error_type(harness.sync(a, protocol_name="sticky")) is InconsistentGroupProtocolError
    assert harness.error_type(harness.sync(a)) is RebalanceInProgressError
    assert harness.log == []


def test_a_sync_with_the_selected_protocol_succeeds() -> None:
    harness = GroupHarness()
    [a] = completing(harness, 1)
    assert harness.assignment(harness.sync(a, protocol_type="consumer", protocol_name="range")) == b""


def test_a_rebalance_fails_parked_syncs() -> None:
    harness = GroupHarness()
    _, b, c = completing(harness, 3)
    waiting = [harness.sync(b), harness.sync(c)]
    harness.leave(c)
    assert [harness.error_type(each) for each in waiting] == [RebalanceInProgressError, UnknownMemberIdError]
    assert harness.metadata.state is PREPARING


def test_members_that_do_not_sync_are_removed_after_the_rebalance_timeout() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(a)
    for _ in range(11):
        harness.wait(5_000)
        assert [harness.response(harness.heartbeat(each)) for each in (a, b)] == [EMPTY_RESPONSE, EMPTY_RESPONSE]
    harness.wait(4_999)
    assert harness.metadata.state is STABLE
    harness.wait(1)
    assert (harness.metadata.state, list(harness.members)) == (PREPARING, [a])


def test_a_leader_that_does_not_sync_is_removed_and_the_others_rejoin() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    waiting = harness.sync(b)
    for _ in range(11):
        harness.wait(5_000)
        harness.heartbeat(a)
    harness.wait(5_000)
    assert harness.error_type(waiting) is RebalanceInProgressError
    assert (list(harness.members), harness.metadata.leader) == ([b], b)


def test_a_group_without_syncs_becomes_empty() -> None:
    harness = GroupHarness()
    members = completing(harness)
    for _ in range(11):
        harness.wait(5_000)
        for each in members:
            harness.heartbeat(each)
    harness.wait(5_000)
    assert (harness.metadata.state, written(harness).members) == (EMPTY, ())


def test_the_sync_deadline_ends_when_all_have_synced() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(b)
    harness.sync(a)
    assert harness.group.next_deadline_ms == harness.now_ms + 10_000, "only the sessions are watched"


# Heartbeats


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    harness = GroupHarness()
    _, b = harness.stable({"session_ms": 10_000}, {"session_ms": 20_000})
    harness.wait(9_999)
    assert harness.metadata.state is STABLE
    harness.wait(1)
    assert (harness.metadata.state, list(harness.members), harness.metadata.leader) == (PREPARING, [b], b)
    assert harness.error_type(harness.heartbeat(b)) is RebalanceInProgressError
    assert harness.joined(harness.join(b)).generation == 2


def test_heartbeats_keep_a_member_in_the_group() -> None:
    harness = GroupHarness()
    [a] = harness.stable({"session_ms": 10_000})
    for _ in range(10):
        harness.wait(9_999)
        assert harness.response(harness.heartbeat(a)) is EMPTY_RESPONSE
    harness.wait(9_999)
    assert harness.metadata.state is STABLE


def test_heartbeats_keep_a_member_during_a_rebalance() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    harness.join(b, protocols=named_protocols("range", metadata=b"other"))
    for _ in range(5):
        harness.wait(9_999)
        assert harness.error_type(harness.heartbeat(a)) is RebalanceInProgressError
    assert a in harness.members


def test_a_heartbeat_between_join_and_sync_succeeds() -> None:
    harness = GroupHarness()
    a, _ = completing(harness)
    assert harness.response(harness.heartbeat(a)) is EMPTY_RESPONSE


def test_heartbeat_errors() -> None:
    harness = GroupHarness()
    assert harness.error_type(harness.heartbeat("a")) is UnknownMemberIdError
    harness.join(requires_known_member_id=True, new_member_id="pending")
    assert harness.error_type(harness.heartbeat("pending")) is UnknownMemberIdError
    [a] = harness.stable({})
    assert harness.error_type(harness.heartbeat("nobody", generation=9)) is UnknownMemberIdError
    assert harness.error_type(harness.heartbeat(a, generation=0)) is IllegalGenerationError
    assert harness.error_type(harness.heartbeat(a, generation=2)) is IllegalGenerationError


def test_a_parked_sync_does_not_expire() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    waiting = harness.sync(b)
    for _ in range(4):
        harness.wait(9_000)
        harness.heartbeat(a)
    harness.sync(a, {b: b"1"})
    assert harness.assignment(waiting) == b"1"
    harness.wait(9_999)
    assert b in harness.members, "its session begins with the answer"
    harness.wait(1)
    assert b not in harness.members


# Commits


def test_commit_validation() -> None:
    harness = GroupHarness()
    harness.commit(UNKNOWN_MEMBER_ID, generation=-1)
    with pytest.raises(UnknownMemberIdError):
        harness.commit("a", generation=0)
    a, b = completing(harness)
    with pytest.raises(RebalanceInProgressError):
        harness.commit(a)
    harness.sync_all([a, b])
    harness.commit(a)
    with pytest.raises(UnknownMemberIdError):
        harness.commit(UNKNOWN_MEMBER_ID, generation=-1)
    with pytest.raises(UnknownMemberIdError):
        harness.commit("nobody")
    with pytest.raises(IllegalGenerationError):
        harness.commit(a, generation=0)
    with pytest.raises(IllegalGenerationError):
        harness.commit(a, generation=-1)
    harness.join()
    harness.commit(a)


def test_a_commit_counts_as_a_heartbeat() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    for _ in range(3):
        harness.wait(9_999)
        harness.commit(a)
    assert harness.metadata.state is STABLE


# Leaving


def test_a_leaving_member_starts_a_rebalance() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    assert errors(harness, harness.leave(a)) == [None]
    assert (harness.metadata.state, harness.metadata.leader) == (PREPARING, b)
    reply = harness.joined(harness.join(b))
    assert (reply.generation, reply.leader) == (2, b)


def test_the_last_leaving_member_writes_an_empty_group() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.wait(10)
    harness.leave(a)
    metadata = written(harness)
    assert (metadata.members, metadata.protocol_name, metadata.leader) == ((), None, None)
    assert (metadata.protocol_type, metadata.generation) == ("consumer", 2)
    assert harness.metadata.empty_since_ms == metadata.state_timestamp_ms == WALL_MS + harness.now_ms
    assert harness.metadata.is_empty
    assert harness.group.next_deadline_ms is None


def test_a_leave_request_returns_a_result_per_member() -> None:
    harness = GroupHarness()
    a, b, c = harness.stable({}, {"instance": "static"}, {})
    harness.join(requires_known_member_id=True, new_member_id="pending")
    request_id = harness.leave(
        LeavingMember(a, None),
        LeavingMember(UNKNOWN_MEMBER_ID, "static"),
        LeavingMember("nobody", None),
        LeavingMember(UNKNOWN_MEMBER_ID, "strange"),
        LeavingMember(UNKNOWN_MEMBER_ID, None),
        LeavingMember("pending", None),
        LeavingMember(a, None),
    )
    unknown = UnknownMemberIdError
    assert errors(harness, request_id) == [None, None, unknown, unknown, unknown, None, unknown]
    reply = harness.response(request_id)
    assert isinstance(reply, tuple)
    assert [(each.member_id, each.instance_id) for each in reply[:2]] == [(a, None), ("", "static")]
    assert list(harness.members) == [c]
    assert b not in harness.members


def test_a_leave_of_unknown_members_changes_nothing() -> None:
    harness = GroupHarness()
    harness.stable({})
    assert errors(harness, harness.leave("nobody")) == [UnknownMemberIdError]
    assert errors(harness, harness.leave()) == []
    harness.join(requires_known_member_id=True, new_member_id="pending")
    assert errors(harness, harness.leave("pending")) == [None]
    assert harness.metadata.state is STABLE


def test_a_leaving_pending_member_does_not_delay_the_join() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.join(requires_known_member_id=True, new_member_id="pending")
    again = harness.join(a)
    harness.leave("pending")
    assert harness.joined(again).generation == 2


def test_the_parked_request_of_a_leaving_member_fails() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    waiting = harness.join(a)
    harness.leave(a)
    assert harness.error_type(waiting) is UnknownMemberIdError
    assert harness.joined(harness.join(b)).generation == 2


# What survives


def test_members_continue_after_a_crash() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    harness.crash()
    assert (harness.metadata.state, harness.metadata.generation, harness.metadata.leader) == (STABLE, 1, a)
    assert harness.response(harness.heartbeat(a)) is EMPTY_RESPONSE
    assert harness.assignment(harness.sync(b)) == f"part of {b}".encode()
    assert harness.joined(harness.join(b)).generation == 1, "it says what it said then"


def test_session_timeouts_restart_after_a_crash() -> None:
    harness = GroupHarness()
    a, _ = harness.stable({"session_ms": 10_000}, {"session_ms": 15_000})
    harness.wait(9_000)
    harness.crash()
    harness.wait(9_999)
    assert a in harness.members
    harness.wait(1)
    assert a not in harness.members


def test_a_generation_without_sync_is_lost_in_a_crash() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.join(a)
    assert harness.metadata.generation == 2
    harness.crash()
    assert (harness.metadata.generation, harness.metadata.state) == (1, STABLE)
    assert harness.error_type(harness.sync(a, generation=2)) is IllegalGenerationError


def test_the_time_since_a_group_is_empty_survives_a_crash() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.leave(a)
    since_ms = harness.metadata.empty_since_ms
    harness.wait(5_000)
    harness.crash()
    assert (harness.metadata.state, harness.metadata.generation, harness.metadata.empty_since_ms) == (
        EMPTY,
        2,
        since_ms,
    )
    harness.join()
    assert harness.metadata.empty_since_ms is None


def test_a_later_record_replaces_everything_of_an_earlier_one() -> None:
    harness = GroupHarness()
    [a] = harness.stable({"session_ms": 10_000})
    again = harness.join(a, session_ms=20_000, protocols=named_protocols("range", metadata=b"other"))
    harness.sync_all([harness.joined(again).member_id])
    harness.crash()
    member = harness.members[a]
    assert (member.session_timeout_ms, member.metadata("range")) == (20_000, b"other")


def test_a_group_above_a_lowered_limit_rebalances_and_drops_late_members() -> None:
    harness = GroupHarness()
    a, b, c = harness.stable({}, {}, {})
    harness.config = type(harness.config)(group_max_size=2)
    harness.crash()
    assert harness.metadata.state is PREPARING
    assert harness.response(harness.join(c)) is PENDING
    assert harness.response(harness.join(a)) is PENDING
    harness.join(b)
    assert (harness.metadata.state, list(harness.members)) == (COMPLETING, [a, c])


# When the log cannot be written


def test_members_sync_again_if_the_sync_record_is_not_written() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    follower = harness.sync(b)
    harness.log_fails = True
    leader = harness.sync(a, {a: b"0", b: b"1"})
    assert harness.lost == [follower, leader]
    assert harness.metadata.state is COMPLETING
    harness.log_fails = False
    assert harness.joined(harness.join(a)).generation == 1
    waiting = harness.sync(b)
    harness.sync(a, {a: b"2", b: b"3"})
    assert harness.assignment(waiting) == b"3"
    assert harness.metadata.state is STABLE


def test_a_failed_sync_write_does_not_extend_the_sync_deadline() -> None:
    harness = GroupHarness()
    a, b = completing(harness)
    harness.sync(b)
    harness.log_fails = True
    harness.sync(a)
    harness.log_fails = False
    for _ in range(11):
        harness.wait(5_000)
        harness.heartbeat(a)
        harness.heartbeat(b)
    assert harness.metadata.state is COMPLETING
    harness.wait(5_000)
    assert harness.metadata.state is EMPTY


def test_a_group_can_be_joined_if_its_empty_record_is_not_written() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.log_fails = True
    harness.leave(a)
    harness.log_fails = False
    assert harness.metadata.state is EMPTY
    request_id = harness.join()
    harness.wait_for_generation()
    assert harness.joined(request_id).generation == 3


# Looking at it


def test_member_metadata_is_described_only_in_stable_groups() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {"instance": "static", "client_host": "/10.0.0.2"})
    describe = harness.metadata.describe()
    assert (describe.state, describe.protocol_type, describe.protocol_name) == (STABLE, "consumer", "range")
    static = describe.members[1]
    assert (static.member_id, static.instance_id) == (b, "static")
    assert (static.client_id, static.client_host) == ("client", "/10.0.0.2")
    assert (static.subscription, static.assignment) == (b"mine", f"part of {b}".encode())
    harness.join()
    describe = harness.metadata.describe()
    assert (describe.state, describe.protocol_type, describe.protocol_name) == (PREPARING, "consumer", "")
    first = describe.members[0]
    assert (first.member_id, first.instance_id) == (a, None)
    assert (first.subscription, first.assignment) == (b"", f"part of {a}".encode())


def test_a_listed_group_has_state_and_type() -> None:
    harness = GroupHarness()
    assert harness.metadata.as_listed_group() == ListedGroup(GROUP, "", EMPTY, "classic")
    harness.stable({})
    assert harness.metadata.as_listed_group() == ListedGroup(GROUP, "consumer", STABLE, "classic")


def test_the_topics_that_members_are_subscribed_to() -> None:
    harness = GroupHarness()
    assert harness.metadata.subscribed_topics() is None
    a, b = harness.stable({"protocols": subscribed_to("one", "two")}, {"protocols": subscribed_to("two", "three")})
    assert sorted(harness.metadata.subscribed_topics() or ()) == ["one", "three", "two"]
    harness.join(b, protocols=subscribed_to("four"))
    assert sorted(harness.metadata.subscribed_topics() or ()) == ["one", "three", "two"], "until the next generation"
    harness.join(a, protocols=subscribed_to("one"))
    assert harness.metadata.subscribed_topics() == ("one", "four")
    harness.crash()
    assert sorted(harness.metadata.subscribed_topics() or ()) == ["one", "three", "two"]
    harness.leave(a, b)
    assert harness.metadata.subscribed_topics() == ()


def test_subscribed_topics_are_unknown_if_a_subscription_is_invalid() -> None:
    harness = GroupHarness()
    harness.stable({"protocols": subscribed_to("one")}, {"protocols": named_protocols("range", metadata=b"?")})
    assert harness.metadata.subscribed_topics() is None
    other = GroupHarness()
    other.stable({"protocol_type": "connect", "protocols": subscribed_to("one")})
    assert other.group.metadata.subscribed_topics() is None
