"""Static members: they keep their place over a restart, and of two with the same instance id the later one stays."""

import pytest

from moldau.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.members import MemberSet
from moldau.groups.records import GroupMetadataRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupCoordinatorConfig,
    GroupState,
    LeaveResponse,
    LeavingMember,
)
from support.classic_group import WAITS, Stage, speaking

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE

ONE, TWO = {"instance": "one"}, {"instance": "two"}


# A restart


def test_a_restart_moves_nothing() -> None:
    stage = Stage()
    leader, follower = stage.stable(ONE, TWO)
    reply = stage.joined(stage.join(instance="two", fresh_id="two-again"))
    assert (reply.generation, reply.member_id, reply.leader) == (1, "two-again", leader)
    assert (reply.members, reply.skip_assignment) == ((), False)
    assert stage.metadata.state is STABLE
    assert stage.assignment(stage.sync("two-again", instance="two")) == f"part of {follower}".encode()
    assert stage.answer(stage.heartbeat(leader, instance="one")) is EMPTY_RESPONSE, "the others do not notice"


def test_a_restart_is_written_with_the_new_member_id() -> None:
    stage = Stage()
    stage.stable(ONE, TWO)
    stage.join(
        instance="two", fresh_id="two-again", session_ms=20_000, rebalance_ms=30_000, client_host="/10.0.0.9"
    )
    record = stage.log[-1]
    assert isinstance(record, GroupMetadataRecord)
    assert record.metadata is not None
    assert record.metadata.generation == 1
    two = record.metadata.members[1]
    assert (two.member_id, two.instance_id, two.client_host) == ("two-again", "two", "/10.0.0.9")
    assert (two.session_timeout_ms, two.rebalance_timeout_ms) == (20_000, 30_000)
    assert two.assignment == b"part of two-2"
    stage.crash()
    assert stage.answer(stage.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE
    assert stage.refused(stage.heartbeat("two-2", instance="two")) is FencedInstanceIdError


def test_a_leader_that_restarts_is_told_to_leave_the_assignment_as_it_is() -> None:
    stage = Stage()
    _, follower = stage.stable(ONE, TWO)
    reply = stage.joined(stage.join(instance="one", fresh_id="one-again"))
    assert (reply.leader, reply.skip_assignment, reply.generation) == ("one-again", True, 1)
    assert [each.member_id for each in reply.members] == ["one-again", follower]
    assert stage.metadata.leader == "one-again"
    assert stage.assignment(stage.sync("one-again", {}, instance="one")) == b"part of one-1"


def test_an_older_leader_that_restarts_is_told_that_another_leads() -> None:
    stage = Stage()
    leader, _ = stage.stable(ONE, TWO)
    reply = stage.joined(stage.join(instance="one", fresh_id="one-again", skips_assignment=False))
    assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)
    assert stage.metadata.leader == "one-again"


def test_a_restart_begins_a_new_session_with_the_timeout_it_asks_for() -> None:
    stage = Stage()
    stage.stable(ONE)
    stage.wait(9_999)
    stage.join(instance="one", fresh_id="one-again", session_ms=20_000)
    stage.wait(19_999)
    assert "one-again" in stage.members
    stage.wait(1)
    assert stage.metadata.state is EMPTY


def test_a_restart_after_the_session_timeout_is_a_new_member() -> None:
    stage = Stage()
    stage.stable(ONE, {**TWO, "session_ms": 60_000})
    stage.wait(10_000)
    assert stage.metadata.state is PREPARING
    assert stage.answer(stage.join(instance="one")) is WAITS


def test_a_restart_that_would_change_the_protocol_starts_a_rebalance() -> None:
    stage = Stage()
    both, reverse = speaking("range", "sticky"), speaking("sticky", "range")
    stage.stable({"instance": "one", "protocols": both}, {"protocols": both}, {"protocols": reverse})
    assert stage.metadata.protocol_name == "range"
    request_id = stage.join(instance="one", protocols=reverse, fresh_id="one-again")
    assert (stage.answer(request_id), stage.metadata.state) == (WAITS, PREPARING)
    assert stage.refused(stage.heartbeat("one-1", instance="one")) is FencedInstanceIdError
    stage.join("member-2", protocols=both)
    stage.join("member-3", protocols=reverse)
    assert stage.joined(request_id).protocol_name == "sticky"


def test_a_restart_with_another_subscription_moves_nothing_either() -> None:
    stage = Stage()
    stage.stable(ONE, TWO)
    changed = speaking("range", metadata=b"other")
    assert stage.joined(stage.join(instance="two", protocols=changed)).generation == 1


def test_a_restart_with_the_same_protocols_needs_no_election(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.stable(ONE, TWO)
    monkeypatch.setattr(MemberSet, "select_protocol", lambda _: pytest.fail("each member is asked again"))
    assert stage.joined(stage.join(instance="two", fresh_id="again")).member_id == "again"
    assert stage.metadata.state is STABLE


def test_a_restart_before_the_sync_starts_anew() -> None:
    stage = Stage()
    request_ids = [stage.join(**ONE), stage.join(**TWO)]
    stage.wait_for_generation()
    one, two = (stage.joined(each).member_id for each in request_ids)
    waiting = stage.sync(two, instance="two")
    again = stage.join(instance="one", fresh_id="one-again")
    assert stage.refused(waiting) is RebalanceInProgressError
    assert (stage.answer(again), stage.metadata.state) == (WAITS, PREPARING)
    assert stage.refused(stage.sync(one, instance="one")) is FencedInstanceIdError
    stage.join(two, instance="two")
    assert (stage.joined(again).generation, stage.joined(again).leader) == (2, "one-again")


def test_a_restart_while_members_join_takes_the_place_of_the_one_that_waits() -> None:
    stage = Stage()
    one, two = stage.stable(ONE, TWO)
    waiting = stage.join(two, instance="two", protocols=speaking("range", metadata=b"other"))
    assert stage.answer(waiting) is WAITS
    again = stage.join(instance="two", fresh_id="two-again")
    assert stage.refused(waiting) is FencedInstanceIdError
    stage.join(one, instance="one")
    assert stage.joined(again).generation == 2


def test_a_full_group_lets_its_static_members_come_back() -> None:
    stage = Stage(GroupCoordinatorConfig(size_max=2))
    stage.stable(ONE, TWO)
    assert stage.joined(stage.join(instance="two", fresh_id="two-again")).generation == 1


def test_a_restart_that_could_not_be_written_has_not_happened() -> None:
    stage = Stage()
    _, two = stage.stable(ONE, TWO)
    stage.log_fails = True
    request_id = stage.join(instance="two", fresh_id="lost")
    assert stage.lost == [request_id]
    stage.log_fails = False
    assert stage.answer(stage.heartbeat(two, instance="two")) is EMPTY_RESPONSE
    assert stage.refused(stage.heartbeat("lost", instance="two")) is FencedInstanceIdError
    assert stage.joined(stage.join(instance="two", fresh_id="two-again")).generation == 1
    for _ in range(3):
        stage.wait(9_000)
        assert stage.answer(stage.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE
        assert stage.answer(stage.heartbeat("one-1", instance="one")) is EMPTY_RESPONSE


def test_a_member_that_restarts_before_it_has_synced_is_not_removed_for_that() -> None:
    stage = Stage()
    request_ids = [stage.join(**ONE), stage.join(**TWO)]
    stage.wait_for_generation()
    one = stage.joined(request_ids[0]).member_id
    stage.sync(one, instance="one")
    assert stage.metadata.state is STABLE
    stage.join(instance="two", fresh_id="two-again")
    for _ in range(8):
        stage.wait(9_000)
        assert stage.answer(stage.heartbeat(one, instance="one")) is EMPTY_RESPONSE
        assert stage.answer(stage.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE


# Two with the same instance id


def test_the_earlier_of_two_with_the_same_instance_id_is_fenced_wherever_it_turns_up() -> None:
    stage = Stage()
    old, _ = stage.stable(ONE, TWO)
    stage.join(instance="one", fresh_id="one-again")
    assert stage.refused(stage.heartbeat(old, instance="one")) is FencedInstanceIdError
    assert stage.refused(stage.sync(old, instance="one")) is FencedInstanceIdError
    assert stage.refused(stage.join(old, instance="one")) is FencedInstanceIdError
    with pytest.raises(FencedInstanceIdError):
        stage.commit(old, instance="one")
    left = stage.answer(stage.leave(LeavingMember(old, "one")))
    assert isinstance(left, LeaveResponse)
    assert isinstance(left.members[0].error, FencedInstanceIdError)
    assert stage.refused(stage.heartbeat(old)) is UnknownMemberIdError, (
        "nor is it known without its instance id"
    )


def test_fencing_is_looked_at_before_the_generation() -> None:
    stage = Stage()
    one, _ = stage.stable(ONE, TWO)
    assert stage.refused(stage.heartbeat("other", instance="one", generation=9)) is FencedInstanceIdError
    assert stage.refused(stage.heartbeat(one, instance="one", generation=9)) is IllegalGenerationError


def test_an_instance_id_that_is_not_in_the_group_is_unknown() -> None:
    stage = Stage()
    one, _ = stage.stable(ONE, TWO)
    assert stage.refused(stage.heartbeat(one, instance="three")) is UnknownMemberIdError
    assert stage.refused(stage.join(one, instance="three")) is UnknownMemberIdError


def test_the_one_that_waits_in_sync_is_fenced_at_once() -> None:
    stage = Stage()
    request_ids = [stage.join(**ONE), stage.join(**TWO)]
    stage.wait_for_generation()
    two = stage.joined(request_ids[1]).member_id
    waiting = stage.sync(two, instance="two")
    stage.join(instance="two", fresh_id="two-again")
    assert stage.refused(waiting) is FencedInstanceIdError


def test_the_one_that_waits_in_the_first_join_is_fenced_at_once() -> None:
    stage = Stage()
    waiting = stage.join(**ONE)
    again = stage.join(**ONE)
    assert stage.refused(waiting) is FencedInstanceIdError
    stage.wait_for_generation()
    assert [each.instance_id for each in stage.joined(again).members] == ["one"]


# Away for a while


def test_a_static_member_that_does_not_join_in_time_keeps_its_place() -> None:
    stage = Stage()
    _, two = stage.stable(
        {**ONE, "rebalance_ms": 5_000}, {**TWO, "rebalance_ms": 5_000, "session_ms": 30_000}
    )
    again = stage.join("one-1", instance="one", rebalance_ms=5_000)
    stage.wait(5_000)
    reply = stage.joined(again)
    assert [each.instance_id for each in reply.members] == ["one", "two"]
    stage.sync("one-1", {two: b"kept for two"}, instance="one")
    back = stage.joined(stage.join(instance="two", fresh_id="two-again"))
    assert back.generation == 2
    assert stage.assignment(stage.sync("two-again", instance="two")) == b"kept for two"


def test_when_a_static_leader_does_not_join_in_time_another_leads() -> None:
    stage = Stage()
    stage.stable({**ONE, "session_ms": 100_000}, TWO)
    again = stage.join("two-2", instance="two", protocols=speaking("range", metadata=b"other"))
    stage.wait(60_000)
    assert (stage.joined(again).leader, len(stage.members)) == ("two-2", 2)


def test_if_no_static_member_joins_the_group_waits_on_until_their_sessions_are_over() -> None:
    stage = Stage()
    stage.stable(
        {**ONE, "session_ms": 50_000, "rebalance_ms": 500},
        {**TWO, "session_ms": 50_000, "rebalance_ms": 500},
        {"rebalance_ms": 500},
    )
    stage.leave("member-3")
    stage.wait(49_999)
    assert (stage.metadata.state, len(stage.members)) == (PREPARING, 2)
    stage.wait(1)
    assert (stage.metadata.state, stage.members) == (EMPTY, {})


def test_a_static_member_that_is_kept_but_never_syncs_is_removed_in_the_end() -> None:
    stage = Stage()
    stage.stable({**ONE, "rebalance_ms": 5_000}, {**TWO, "rebalance_ms": 5_000, "session_ms": 100_000})
    stage.join("one-1", instance="one", rebalance_ms=5_000)
    stage.wait(5_000)
    stage.sync("one-1", instance="one")
    stage.wait(5_000)
    assert (stage.metadata.state, list(stage.members)) == (PREPARING, ["one-1"])


# Leaving


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    stage = Stage()
    stage.stable(ONE, TWO)
    stage.leave(LeavingMember(UNKNOWN_MEMBER_ID, "one"))
    assert list(stage.members) == ["two-2"]
    assert stage.refused(stage.heartbeat("one-1", instance="one")) is UnknownMemberIdError


def test_a_static_member_leaves_with_its_member_id_with_or_without_its_instance_id() -> None:
    stage = Stage()
    stage.stable(ONE, TWO)
    stage.leave(LeavingMember("one-1", "one"), LeavingMember("two-2", None))
    assert stage.metadata.state is EMPTY


# What the simulator switches off


def test_the_checks_of_generation_and_fencing_can_be_switched_off_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    one, _ = stage.stable(ONE, TWO)
    monkeypatch.setattr(ClassicGroupMetadata, "check_generation", lambda self, generation: None)
    assert stage.answer(stage.heartbeat(one, generation=9)) is EMPTY_RESPONSE
    monkeypatch.setattr(MemberSet, "check_not_fenced", lambda self, member_id, instance_id: None)
    assert stage.answer(stage.heartbeat(one, instance="two")) is EMPTY_RESPONSE
    monkeypatch.setattr(MemberSet, "require", lambda self, member_id, instance_id: self.by_id[one])
    assert stage.answer(stage.heartbeat("long replaced", instance="one")) is EMPTY_RESPONSE
    stage.commit("long replaced", instance="one")
