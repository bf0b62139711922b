"""Joining a classic group: who is let in, how long the group waits, and what a generation begins with."""

import pytest

from moldau.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.requests import GroupCoordinatorConfig, GroupState
from support.classic_group import WAITS, Stage, speaking

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


# Who is let in


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1, 0])
def test_a_session_timeout_out_of_bounds_is_refused_before_anything_else(session_ms: int) -> None:
    stage = Stage()
    assert (
        stage.refused(stage.join("nobody", protocols=(), session_ms=session_ms)) is InvalidSessionTimeoutError
    )


def test_a_group_cannot_begin_without_a_protocol() -> None:
    stage = Stage()
    assert stage.refused(stage.join(protocols=())) is InconsistentGroupProtocolError
    assert stage.refused(stage.join(protocol_type="")) is InconsistentGroupProtocolError
    assert stage.metadata.state is EMPTY
    assert stage.group.next_deadline_ms is None


def test_another_protocol_type_is_refused_while_the_group_has_members() -> None:
    stage = Stage()
    [a] = stage.stable({})
    assert stage.refused(stage.join(protocol_type="connect")) is InconsistentGroupProtocolError
    stage.leave(a)
    assert stage.answer(stage.join(protocol_type="connect")) is WAITS
    assert stage.metadata.protocol_type == "connect"


def test_a_member_with_no_protocol_in_common_is_refused() -> None:
    stage = Stage()
    stage.join(protocols=speaking("range", "sticky"))
    stage.join(protocols=speaking("sticky", "roundrobin"))
    assert (
        stage.refused(stage.join(protocols=speaking("range", "roundrobin"))) is InconsistentGroupProtocolError
    )
    assert stage.answer(stage.join(protocols=speaking("other", "sticky"))) is WAITS


def test_protocols_are_looked_at_before_the_member_id() -> None:
    stage = Stage()
    stage.stable({})
    assert stage.refused(stage.join("nobody", protocols=speaking("other"))) is InconsistentGroupProtocolError
    assert stage.refused(stage.join("nobody")) is UnknownMemberIdError


def test_an_empty_group_knows_no_member_id() -> None:
    stage = Stage()
    assert stage.refused(stage.join("somebody")) is UnknownMemberIdError
    assert stage.metadata.state is EMPTY


def test_a_protocol_named_twice_counts_once() -> None:
    stage = Stage()
    stage.join(protocols=speaking("range", "range"))
    stage.join(protocols=speaking("range"))
    stage.wait_for_generation()
    assert (stage.metadata.state, stage.metadata.protocol_name) == (COMPLETING, "range")


# Member ids


def test_a_new_member_is_given_an_id_first_and_joins_with_it() -> None:
    stage = Stage()
    error = stage.answer(stage.join(asks_for_id=True, fresh_id="a"))
    assert isinstance(error, MemberIdRequiredError)
    assert error.member_id == "a"
    assert stage.metadata.state is EMPTY
    request_id = stage.join("a", asks_for_id=True)
    stage.wait(3_000)
    assert stage.joined(request_id).member_id == "a"


def test_an_id_that_nobody_comes_back_with_is_forgotten_after_the_session_timeout() -> None:
    stage = Stage()
    stage.join(asks_for_id=True, fresh_id="a", session_ms=6_000)
    stage.wait(6_000)
    assert stage.refused(stage.join("a")) is UnknownMemberIdError
    assert stage.group.next_deadline_ms is None


def test_a_pending_id_cannot_be_used_with_an_instance_id() -> None:
    stage = Stage()
    stage.join(asks_for_id=True, fresh_id="a")
    assert stage.refused(stage.join("a", instance="static")) is UnknownMemberIdError


def test_older_clients_are_members_at_once() -> None:
    stage = Stage()
    request_id = stage.join(asks_for_id=False, fresh_id="a")
    stage.wait(3_000)
    assert stage.joined(request_id).member_id == "a"


# How many


def test_a_full_group_takes_nobody_new() -> None:
    stage = Stage(GroupCoordinatorConfig(size_max=2))
    a, b = stage.stable({}, {})
    assert stage.refused(stage.join()) is GroupMaxSizeReachedError
    assert stage.refused(stage.join(asks_for_id=True)) is GroupMaxSizeReachedError
    assert stage.metadata.state is STABLE
    assert stage.joined(stage.join(b)).generation == 1, "who is in it may join again"
    stage.leave(a)
    stage.join(b)
    assert stage.metadata.state is COMPLETING
    assert stage.answer(stage.join()) is WAITS


def test_size_is_looked_at_before_protocols() -> None:
    stage = Stage(GroupCoordinatorConfig(size_max=1))
    stage.stable({})
    assert stage.refused(stage.join(protocols=())) is GroupMaxSizeReachedError


def test_while_members_join_those_who_have_joined_count() -> None:
    stage = Stage(GroupCoordinatorConfig(size_max=2))
    a, b = stage.stable({}, {})
    again = stage.join(a)
    newcomer = stage.join(asks_for_id=True, fresh_id="c")
    assert stage.refused(newcomer) is MemberIdRequiredError
    assert stage.answer(stage.join("c")) is WAITS
    assert stage.refused(stage.join(b)) is GroupMaxSizeReachedError
    assert stage.joined(again).generation == 2, "nobody is left to wait for"
    assert list(stage.members) == [a, "c"]


def test_a_pending_member_that_comes_too_late_is_forgotten() -> None:
    stage = Stage(GroupCoordinatorConfig(size_max=1))
    stage.join(asks_for_id=True, fresh_id="late")
    stage.stable({})
    assert stage.refused(stage.join("late")) is GroupMaxSizeReachedError
    assert stage.refused(stage.heartbeat("late")) is UnknownMemberIdError


# The first join


def test_the_first_generation_begins_after_the_initial_delay() -> None:
    stage = Stage()
    request_id = stage.join()
    stage.wait(2_999)
    assert (stage.answer(request_id), stage.metadata.state) == (WAITS, PREPARING)
    stage.wait(1)
    reply = stage.joined(request_id)
    assert (reply.generation, reply.leader, reply.protocol_name) == (1, reply.member_id, "range")
    assert [each.member_id for each in reply.members] == [reply.member_id]
    assert stage.metadata.state is COMPLETING
    assert stage.log == [], "a generation is volatile until it is synced"


def test_each_new_member_prolongs_the_initial_delay() -> None:
    stage = Stage()
    first = stage.join()
    stage.wait(2_000)
    stage.join()
    stage.wait(1_000)
    assert stage.answer(first) is WAITS
    stage.wait(2_999)
    assert stage.answer(first) is WAITS
    stage.wait(1)
    assert len(stage.joined(first).members) == 2


def test_the_initial_delay_is_not_prolonged_beyond_the_rebalance_timeout() -> None:
    stage = Stage()
    first = stage.join(rebalance_ms=8_000)
    for _ in range(7):
        stage.wait(1_000)
        stage.join(rebalance_ms=8_000)
    assert stage.answer(first) is WAITS
    stage.wait(1_000)
    assert len(stage.joined(first).members) == 8


def test_without_an_initial_delay_the_first_tick_begins_a_generation() -> None:
    stage = Stage(GroupCoordinatorConfig(initial_rebalance_delay_ms=0))
    request_id = stage.join()
    stage.wait(0)
    assert stage.joined(request_id).generation == 1


def test_members_that_leave_during_the_initial_delay_leave_an_empty_group() -> None:
    stage = Stage()
    request_id = stage.join(fresh_id="a")
    stage.leave("a")
    assert stage.refused(request_id) is UnknownMemberIdError
    assert stage.metadata.state is PREPARING
    stage.wait(3_000)
    assert (stage.metadata.state, stage.metadata.generation) == (EMPTY, 1)
    assert stage.group.next_deadline_ms is None


# Later joins


def test_a_third_member_makes_the_others_join_again() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    third = stage.join(fresh_id="c")
    assert stage.refused(stage.heartbeat(a)) is RebalanceInProgressError
    first = stage.join(a)
    assert stage.answer(third) is WAITS
    second = stage.join(b)
    assert [stage.joined(each).generation for each in (first, second, third)] == [2, 2, 2]
    assert [each.member_id for each in stage.joined(first).members] == [a, b, "c"]
    assert stage.joined(second).members == stage.joined(third).members == ()
    assert {stage.joined(each).leader for each in (first, second, third)} == {a}


def test_members_that_do_not_join_in_time_are_removed() -> None:
    stage = Stage()
    a, b = stage.stable({"rebalance_ms": 20_000}, {"rebalance_ms": 30_000, "session_ms": 100_000})
    again = stage.join(a, rebalance_ms=20_000)
    stage.wait(29_999)
    assert stage.answer(again) is WAITS, "the group waits for as long as its most patient member"
    stage.wait(1)
    assert stage.joined(again).generation == 2
    assert list(stage.members) == [a]
    assert stage.refused(stage.heartbeat(b)) is UnknownMemberIdError


def test_when_the_leader_does_not_join_again_another_member_leads() -> None:
    stage = Stage()
    a, b = stage.stable({"session_ms": 100_000}, {})
    stage.join()
    again = stage.join(b)
    stage.wait(60_000)
    assert (stage.joined(again).leader, a in stage.members) == (b, False)


def test_the_group_waits_for_those_who_were_just_given_an_id() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.join(asks_for_id=True, fresh_id="b", session_ms=7_000)
    assert stage.metadata.state is STABLE
    again = stage.join(a)
    assert stage.answer(again) is WAITS
    joined = stage.join("b", asks_for_id=True)
    assert stage.joined(again).generation == stage.joined(joined).generation == 2


def test_a_pending_member_that_never_comes_holds_the_group_up_for_its_session_timeout_only() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.join(asks_for_id=True, session_ms=7_000)
    again = stage.join(a)
    stage.wait(6_999)
    assert stage.answer(again) is WAITS
    stage.wait(1)
    assert stage.joined(again).generation == 2


def test_a_member_that_joins_twice_gets_one_good_answer() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    lost = stage.join(a)
    again = stage.join(a)
    assert stage.refused(lost) is RebalanceInProgressError
    stage.join(b)
    assert stage.joined(again).generation == 2


def test_a_new_member_that_waits_too_long_has_to_join_again() -> None:
    stage = Stage()
    a, b = stage.stable({"rebalance_ms": 1_000_000, "session_ms": 1_000_000}, {"session_ms": 1_000_000})
    newcomer = stage.join(fresh_id="c")
    again = stage.join(a, rebalance_ms=1_000_000, session_ms=1_000_000)
    stage.wait(5 * 60_000 - 1)
    assert stage.answer(newcomer) is WAITS
    stage.wait(1)
    assert stage.refused(newcomer) is UnknownMemberIdError
    assert stage.answer(again) is WAITS, "a member that has been through a join may wait"
    assert list(stage.members) == [a, b]


def test_a_member_that_waits_in_join_needs_no_heartbeat() -> None:
    stage = Stage()
    a, b = stage.stable({}, {"session_ms": 40_000})
    again = stage.join(a, session_ms=6_000)
    stage.wait(39_000)
    assert stage.answer(again) is WAITS
    stage.join(b)
    assert stage.joined(again).generation == 2
    stage.wait(5_999)
    assert a in stage.members
    stage.wait(1)
    assert a not in stage.members, "the session timeout that it joined with counts from the answer on"


# Joining again when nothing is going on


def test_a_follower_whose_answer_was_lost_gets_it_again() -> None:
    stage = Stage()
    _, b = stage.stable({}, {})
    reply = stage.joined(stage.join(b))
    assert (reply.generation, reply.members, reply.skip_assignment) == (1, (), False)
    assert stage.metadata.state is STABLE


def test_a_leader_that_joins_again_starts_a_rebalance() -> None:
    stage = Stage()
    [a] = stage.stable({})
    assert stage.joined(stage.join(a)).generation == 2


def test_a_follower_with_another_subscription_starts_a_rebalance() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    assert stage.answer(stage.join(b, protocols=speaking("range", metadata=b"more"))) is WAITS
    reply = stage.joined(stage.join(a))
    assert [each.metadata for each in reply.members] == [b"mine", b"more"]


def test_before_the_sync_a_member_gets_the_same_answer_again() -> None:
    stage = Stage()
    leader, follower = stage.join(), stage.join()
    stage.wait_for_generation()
    for request_id in (leader, follower):
        reply = stage.joined(request_id)
        assert stage.joined(stage.join(reply.member_id)) == reply


def test_before_the_sync_another_subscription_starts_anew() -> None:
    stage = Stage()
    first, second = stage.join(), stage.join()
    stage.wait_for_generation()
    a, b = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(b)
    stage.join(a, protocols=speaking("range", metadata=b"more"))
    assert stage.refused(waiting) is RebalanceInProgressError
    assert stage.metadata.state is PREPARING
    assert stage.joined(stage.join(b)).generation == 2


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
def test_each_member_votes_for_the_first_protocol_that_all_can_speak(
    preferences: list[list[str]], chosen: str
) -> None:
    stage = Stage()
    request_ids = [stage.join(protocols=speaking(*names)) for names in preferences]
    stage.wait_for_generation()
    assert {stage.joined(request_id).protocol_name for request_id in request_ids} == {chosen}


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
def test_a_tie_goes_to_whom_kafka_gives_it_to_whoever_came_first(one: str, other: str, chosen: str) -> None:
    for names in ((one, other), (other, one)):
        stage = Stage()
        stage.join(protocols=speaking(*names))
        stage.join(protocols=speaking(*reversed(names)))
        stage.wait_for_generation()
        assert stage.metadata.protocol_name == chosen
