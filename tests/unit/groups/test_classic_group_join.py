"""Joins of a classic group: validation, delays, protocol selection."""

import pytest

from moldau.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.requests import GroupState
from moldau.settings.broker import BrokerSettings
from support.classic_group import PENDING, GroupHarness, named_protocols

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


# Who is let in


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1, 0])
def test_an_invalid_session_timeout_is_rejected_first(session_ms: int) -> None:
    harness = GroupHarness()
    assert harness.error_type(harness.join("nobody", protocols=(), session_ms=session_ms)) is InvalidSessionTimeoutError


def test_a_join_without_protocols_is_rejected() -> None:
    harness = GroupHarness()
    assert harness.error_type(harness.join(protocols=())) is InconsistentGroupProtocolError
    assert harness.error_type(harness.join(protocol_type="")) is InconsistentGroupProtocolError
    assert harness.metadata.state is EMPTY
    assert harness.group.next_deadline_ms is None


def test_another_protocol_type_is_rejected_while_the_group_has_members() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    assert harness.error_type(harness.join(protocol_type="connect")) is InconsistentGroupProtocolError
    harness.leave(a)
    assert harness.response(harness.join(protocol_type="connect")) is PENDING
    assert harness.metadata.protocol_type == "connect"


def test_a_member_without_a_common_protocol_is_rejected() -> None:
    harness = GroupHarness()
    harness.join(protocols=named_protocols("range", "sticky"))
    harness.join(protocols=named_protocols("sticky", "roundrobin"))
    assert (
        harness.error_type(harness.join(protocols=named_protocols("range", "roundrobin")))
        is InconsistentGroupProtocolError
    )
    assert harness.response(harness.join(protocols=named_protocols("other", "sticky"))) is PENDING


def test_protocols_are_checked_before_the_member_id() -> None:
    harness = GroupHarness()
    harness.stable({})
    assert (
        harness.error_type(harness.join("nobody", protocols=named_protocols("other"))) is InconsistentGroupProtocolError
    )
    assert harness.error_type(harness.join("nobody")) is UnknownMemberIdError


def test_a_member_id_is_unknown_in_an_empty_group() -> None:
    harness = GroupHarness()
    assert harness.error_type(harness.join("somebody")) is UnknownMemberIdError
    assert harness.metadata.state is EMPTY


def test_a_duplicate_protocol_counts_once() -> None:
    harness = GroupHarness()
    harness.join(protocols=named_protocols("range", "range"))
    harness.join(protocols=named_protocols("range"))
    harness.wait_for_generation()
    assert (harness.metadata.state, harness.metadata.protocol_name) == (COMPLETING, "range")


# Member ids


def test_a_new_member_gets_member_id_required_and_joins_with_the_id() -> None:
    harness = GroupHarness()
    error = harness.response(harness.join(requires_known_member_id=True, new_member_id="a"))
    assert isinstance(error, MemberIdRequiredError)
    assert error.member_id == "a"
    assert harness.metadata.state is EMPTY
    request_id = harness.join("a", requires_known_member_id=True)
    harness.wait(3_000)
    assert harness.joined(request_id).member_id == "a"


def test_a_pending_member_id_expires_after_the_session_timeout() -> None:
    harness = GroupHarness()
    harness.join(requires_known_member_id=True, new_member_id="a", session_ms=6_000)
    harness.wait(6_000)
    assert harness.error_type(harness.join("a")) is UnknownMemberIdError
    assert harness.group.next_deadline_ms is None


def test_a_pending_member_id_cannot_be_used_with_an_instance_id() -> None:
    harness = GroupHarness()
    harness.join(requires_known_member_id=True, new_member_id="a")
    assert harness.error_type(harness.join("a", instance="static")) is UnknownMemberIdError


def test_older_clients_join_without_member_id_required() -> None:
    harness = GroupHarness()
    request_id = harness.join(requires_known_member_id=False, new_member_id="a")
    harness.wait(3_000)
    assert harness.joined(request_id).member_id == "a"


# How many


def test_a_full_group_rejects_new_members() -> None:
    harness = GroupHarness(BrokerSettings(group_max_size=2))
    a, b = harness.stable({}, {})
    assert harness.error_type(harness.join()) is GroupMaxSizeReachedError
    assert harness.error_type(harness.join(requires_known_member_id=True)) is GroupMaxSizeReachedError
    assert harness.metadata.state is STABLE
    assert harness.joined(harness.join(b)).generation == 1, "who is in it may join again"
    harness.leave(a)
    harness.join(b)
    assert harness.metadata.state is COMPLETING
    assert harness.response(harness.join()) is PENDING


def test_group_size_is_checked_before_protocols() -> None:
    harness = GroupHarness(BrokerSettings(group_max_size=1))
    harness.stable({})
    assert harness.error_type(harness.join(protocols=())) is GroupMaxSizeReachedError


def test_only_joined_members_count_towards_the_limit_during_a_rebalance() -> None:
    harness = GroupHarness(BrokerSettings(group_max_size=2))
    a, b = harness.stable({}, {})
    again = harness.join(a)
    newcomer = harness.join(requires_known_member_id=True, new_member_id="c")
    assert harness.error_type(newcomer) is MemberIdRequiredError
    assert harness.response(harness.join("c")) is PENDING
    assert harness.error_type(harness.join(b)) is GroupMaxSizeReachedError
    assert harness.joined(again).generation == 2, "nobody is left to wait for"
    assert list(harness.members) == [a, "c"]


def test_a_pending_member_is_removed_when_the_group_is_full() -> None:
    harness = GroupHarness(BrokerSettings(group_max_size=1))
    harness.join(requires_known_member_id=True, new_member_id="late")
    harness.stable({})
    assert harness.error_type(harness.join("late")) is GroupMaxSizeReachedError
    assert harness.error_type(harness.heartbeat("late")) is UnknownMemberIdError


# The first join


def test_the_first_generation_starts_after_the_initial_delay() -> None:
    harness = GroupHarness()
    request_id = harness.join()
    harness.wait(2_999)
    assert (harness.response(request_id), harness.metadata.state) == (PENDING, PREPARING)
    harness.wait(1)
    reply = harness.joined(request_id)
    assert (reply.generation, reply.leader, reply.protocol_name) == (1, reply.member_id, "range")
    assert [each.member_id for each in reply.members] == [reply.member_id]
    assert harness.metadata.state is COMPLETING
    assert harness.log == [], "a generation is volatile until it is synced"


def test_each_new_member_extends_the_initial_delay() -> None:
    harness = GroupHarness()
    first = harness.join()
    harness.wait(2_000)
    harness.join()
    harness.wait(1_000)
    assert harness.response(first) is PENDING
    harness.wait(2_999)
    assert harness.response(first) is PENDING
    harness.wait(1)
    assert len(harness.joined(first).members) == 2


def test_the_initial_delay_is_not_extended_beyond_the_rebalance_timeout() -> None:
    harness = GroupHarness()
    first = harness.join(rebalance_ms=8_000)
    for _ in range(7):
        harness.wait(1_000)
        harness.join(rebalance_ms=8_000)
    assert harness.response(first) is PENDING
    harness.wait(1_000)
    assert len(harness.joined(first).members) == 8


def test_without_an_initial_delay_the_first_tick_starts_a_generation() -> None:
    harness = GroupHarness(BrokerSettings(group_initial_rebalance_delay_ms=0))
    request_id = harness.join()
    harness.wait(0)
    assert harness.joined(request_id).generation == 1


def test_members_that_leave_during_the_initial_delay_leave_an_empty_group() -> None:
    harness = GroupHarness()
    request_id = harness.join(new_member_id="a")
    harness.leave("a")
    assert harness.error_type(request_id) is UnknownMemberIdError
    assert harness.metadata.state is PREPARING
    harness.wait(3_000)
    assert (harness.metadata.state, harness.metadata.generation) == (EMPTY, 1)
    assert harness.group.next_deadline_ms is None


# Later joins


def test_a_third_member_makes_the_others_join_again() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    third = harness.join(new_member_id="c")
    assert harness.error_type(harness.heartbeat(a)) is RebalanceInProgressError
    first = harness.join(a)
    assert harness.response(third) is PENDING
    second = harness.join(b)
    assert [harness.joined(each).generation for each in (first, second, third)] == [2, 2, 2]
    assert [each.member_id for each in harness.joined(first).members] == [a, b, "c"]
    assert harness.joined(second).members == harness.joined(third).members == ()
    assert {harness.joined(each).leader for each in (first, second, third)} == {a}


def test_members_that_do_not_join_in_time_are_removed() -> None:
    harness = GroupHarness()
    a, b = harness.stable({"rebalance_ms": 20_000}, {"rebalance_ms": 30_000, "session_ms": 100_000})
    again = harness.join(a, rebalance_ms=20_000)
    harness.wait(29_999)
    assert harness.response(again) is PENDING, "the group waits for as long as its most patient member"
    harness.wait(1)
    assert harness.joined(again).generation == 2
    assert list(harness.members) == [a]
    assert harness.error_type(harness.heartbeat(b)) is UnknownMemberIdError


def test_another_member_becomes_leader_if_the_leader_does_not_rejoin() -> None:
    harness = GroupHarness()
    a, b = harness.stable({"session_ms": 100_000}, {})
    harness.join()
    again = harness.join(b)
    harness.wait(60_000)
    assert (harness.joined(again).leader, a in harness.members) == (b, False)


def test_the_join_waits_for_pending_members() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.join(requires_known_member_id=True, new_member_id="b", session_ms=7_000)
    assert harness.metadata.state is STABLE
    again = harness.join(a)
    assert harness.response(again) is PENDING
    joined = harness.join("b", requires_known_member_id=True)
    assert harness.joined(again).generation == harness.joined(joined).generation == 2


def test_a_pending_member_delays_the_join_by_its_session_timeout_at_most() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    harness.join(requires_known_member_id=True, session_ms=7_000)
    again = harness.join(a)
    harness.wait(6_999)
    assert harness.response(again) is PENDING
    harness.wait(1)
    assert harness.joined(again).generation == 2


def test_a_repeated_join_fails_the_earlier_request() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    lost = harness.join(a)
    again = harness.join(a)
    assert harness.error_type(lost) is RebalanceInProgressError
    harness.join(b)
    assert harness.joined(again).generation == 2


def test_a_new_member_is_removed_after_the_new_member_join_timeout() -> None:
    harness = GroupHarness()
    a, b = harness.stable({"rebalance_ms": 1_000_000, "session_ms": 1_000_000}, {"session_ms": 1_000_000})
    newcomer = harness.join(new_member_id="c")
    again = harness.join(a, rebalance_ms=1_000_000, session_ms=1_000_000)
    harness.wait(5 * 60_000 - 1)
    assert harness.response(newcomer) is PENDING
    harness.wait(1)
    assert harness.error_type(newcomer) is UnknownMemberIdError
    assert harness.response(again) is PENDING, "a member that has been through a join may wait"
    assert list(harness.members) == [a, b]


def test_a_parked_join_does_not_expire() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {"session_ms": 40_000})
    again = harness.join(a, session_ms=6_000)
    harness.wait(39_000)
    assert harness.response(again) is PENDING
    harness.join(b)
    assert harness.joined(again).generation == 2
    harness.wait(5_999)
    assert a in harness.members
    harness.wait(1)
    assert a not in harness.members, "the session timeout that it joined with counts from the answer on"


# Joining again when nothing is going on


def test_a_follower_that_retries_a_join_gets_the_same_response() -> None:
    harness = GroupHarness()
    _, b = harness.stable({}, {})
    reply = harness.joined(harness.join(b))
    assert (reply.generation, reply.members, reply.skip_assignment) == (1, (), False)
    assert harness.metadata.state is STABLE


def test_a_rejoining_leader_starts_a_rebalance() -> None:
    harness = GroupHarness()
    [a] = harness.stable({})
    assert harness.joined(harness.join(a)).generation == 2


def test_a_follower_with_a_changed_subscription_starts_a_rebalance() -> None:
    harness = GroupHarness()
    a, b = harness.stable({}, {})
    assert harness.response(harness.join(b, protocols=named_protocols("range", metadata=b"more"))) is PENDING
    reply = harness.joined(harness.join(a))
    assert [each.metadata for each in reply.members] == [b"mine", b"more"]


def test_before_the_sync_a_repeated_join_gets_the_same_response() -> None:
    harness = GroupHarness()
    leader, follower = harness.join(), harness.join()
    harness.wait_for_generation()
    for request_id in (leader, follower):
        reply = harness.joined(request_id)
        assert harness.joined(harness.join(reply.member_id)) == reply


def test_before_the_sync_a_changed_subscription_starts_a_rebalance() -> None:
    harness = GroupHarness()
    first, second = harness.join(), harness.join()
    harness.wait_for_generation()
    a, b = harness.joined(first).member_id, harness.joined(second).member_id
    waiting = harness.sync(b)
    harness.join(a, protocols=named_protocols("range", metadata=b"more"))
    assert harness.error_type(waiting) is RebalanceInProgressError
    assert harness.metadata.state is PREPARING
    assert harness.joined(harness.join(b)).generation == 2


# The vote


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], "sticky"),
        ([["range", "sticky"], ["sticky", "range"], ["range", "sticky"]], "range"),
        ([["new", "range"], ["new", "range"], ["range"]], "range"),
        ([["a", "b", "c"], ["c", "b", "a"], ["b"]], "b"),
    ],
)
def test_each_member_votes_for_its_first_protocol_that_all_support(preferences: list[list[str]], chosen: str) -> None:
    harness = GroupHarness()
    request_ids = [harness.join(protocols=named_protocols(*names)) for names in preferences]
    harness.wait_for_generation()
    assert {harness.joined(request_id).protocol_name for request_id in request_ids} == {chosen}


@pytest.mark.parametrize(
    ("one", "other", "chosen"),
    [
        ("range", "roundrobin", "range"),
        ("range", "sticky", "sticky"),
        ("range", "cooperative-sticky", "range"),
        ("roundrobin", "sticky", "sticky"),
        ("sticky", "cooperative-sticky", "sticky"),
        ("roundrobin", "cooperative-sticky", "roundrobin"),
    ],
)
def test_a_tie_of_votes_is_broken_as_in_kafka(one: str, other: str, chosen: str) -> None:
    for names in ((one, other), (other, one)):
        harness = GroupHarness()
        harness.join(protocols=named_protocols(*names))
        harness.join(protocols=named_protocols(*reversed(names)))
        harness.wait_for_generation()
        assert harness.metadata.protocol_name == chosen
