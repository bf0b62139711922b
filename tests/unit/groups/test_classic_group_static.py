"""Static members: restarts, fencing, removal."""

import pytest

from moldau.errors import FencedInstanceIdError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.members import MemberSet
from moldau.groups.records import GroupMetadataRecord
from moldau.groups.requests import EMPTY_RESPONSE, UNKNOWN_MEMBER_ID, GroupState, LeavingMember
from moldau.settings.broker import BrokerSettings
from support.classic_group import PENDING, GroupHarness, named_protocols

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE

ONE, TWO = {"instance": "one"}, {"instance": "two"}


# A restart


def test_a_restarted_static_member_keeps_its_assignment() -> None:
    harness = GroupHarness()
    leader, follower = harness.stable(ONE, TWO)
    reply = harness.joined(harness.join(instance="two", new_member_id="two-again"))
    assert (reply.generation, reply.member_id, reply.leader) == (1, "two-again", leader)
    assert (reply.members, reply.skip_assignment) == ((), False)
    assert harness.metadata.state is STABLE
    assert harness.assignment(harness.sync("two-again", instance="two")) == f"part of {follower}".encode()
    assert harness.response(harness.heartbeat(leader, instance="one")) is EMPTY_RESPONSE, "the others do not notice"


def test_a_static_restart_writes_the_new_member_id() -> None:
    harness = GroupHarness()
    harness.stable(ONE, TWO)
    harness.join(
        instance="two", new_member_id="two-again", session_ms=20_000, rebalance_ms=30_000, client_host="/10.0.0.9"
    )
    record = harness.log[-1]
    assert isinstance(record, GroupMetadataRecord)
    assert record.metadata is not None
    assert record.metadata.generation == 1
    two = record.metadata.members[1]
    assert (two.member_id, two.instance_id, two.client_host) == ("two-again", "two", "/10.0.0.9")
    assert (two.session_timeout_ms, two.rebalance_timeout_ms) == (20_000, 30_000)
    assert two.assignment == b"part of two-2"
    harness.crash()
    assert harness.response(harness.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE
    assert harness.error_type(harness.heartbeat("two-2", instance="two")) is FencedInstanceIdError


def test_a_restarted_static_leader_gets_skip_assignment() -> None:
    harness = GroupHarness()
    _, follower = harness.stable(ONE, TWO)
    reply = harness.joined(harness.join(instance="one", new_member_id="one-again"))
    assert (reply.leader, reply.skip_assignment, reply.generation) == ("one-again", True, 1)
    assert [each.member_id for each in reply.members] == ["one-again", follower]
    assert harness.metadata.leader == "one-again"
    assert harness.assignment(harness.sync("one-again", {}, instance="one")) == b"part of one-1"


def test_a_restarted_older_leader_sees_its_old_id_as_leader() -> None:
    harness = GroupHarness()
    leader, _ = harness.stable(ONE, TWO)
    reply = harness.joined(harness.join(instance="one", new_member_id="one-again", supports_skipping_assignment=False))
    assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)
    assert harness.metadata.leader == "one-again"


def test_a_static_restart_starts_a_new_session() -> None:
    harness = GroupHarness()
    harness.stable(ONE)
    harness.wait(9_999)
    harness.join(instance="one", new_member_id="one-again", session_ms=20_000)
    harness.wait(19_999)
    assert "one-again" in harness.members
    harness.wait(1)
    assert harness.metadata.state is EMPTY


def test_a_static_restart_after_the_session_timeout_joins_as_a_new_member() -> None:
    harness = GroupHarness()
    harness.stable(ONE, {**TWO, "session_ms": 60_000})
    harness.wait(10_000)
    assert harness.metadata.state is PREPARING
    assert harness.response(harness.join(instance="one")) is PENDING


def test_a_static_restart_that_changes_the_protocol_starts_a_rebalance() -> None:
    harness = GroupHarness()
    both, reverse = named_protocols("range", "sticky"), named_protocols("sticky", "range")
    harness.stable({"instance": "one", "protocols": both}, {"protocols": both}, {"protocols": reverse})
    assert harness.metadata.protocol_name == "range"
    request_id = harness.join(instance="one", protocols=reverse, new_member_id="one-again")
    assert (harness.response(request_id), harness.metadata.state) == (PENDING, PREPARING)
    assert harness.error_type(harness.heartbeat("one-1", instance="one")) is FencedInstanceIdError
    harness.join("member-2", protocols=both)
    harness.join("member-3", protocols=reverse)
    assert harness.joined(request_id).protocol_name == "sticky"


def test_a_static_restart_with_a_changed_subscription_keeps_the_assignment() -> None:
    harness = GroupHarness()
    harness.stable(ONE, TWO)
    changed = named_protocols("range", metadata=b"other")
    assert harness.joined(harness.join(instance="two", protocols=changed)).generation == 1


def test_a_static_restart_with_the_same_protocols_selects_no_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = GroupHarness()
    harness.stable(ONE, TWO)
    monkeypatch.setattr(MemberSet, "select_protocol", lambda _: pytest.fail("each member is asked again"))
    assert harness.joined(harness.join(instance="two", new_member_id="again")).member_id == "again"
    assert harness.metadata.state is STABLE


def test_a_static_restart_before_the_sync_starts_a_rebalance() -> None:
    harness = GroupHarness()
    request_ids = [harness.join(**ONE), harness.join(**TWO)]
    harness.wait_for_generation()
    one, two = (harness.joined(each).member_id for each in request_ids)
    waiting = harness.sync(two, instance="two")
    again = harness.join(instance="one", new_member_id="one-again")
    assert harness.error_type(waiting) is RebalanceInProgressError
    assert (harness.response(again), harness.metadata.state) == (PENDING, PREPARING)
    assert harness.error_type(harness.sync(one, instance="one")) is FencedInstanceIdError
    harness.join(two, instance="two")
    assert (harness.joined(again).generation, harness.joined(again).leader) == (2, "one-again")


def test_a_static_restart_during_a_join_replaces_the_parked_join() -> None:
    harness = GroupHarness()
    one, two = harness.stable(ONE, TWO)
    waiting = harness.join(two, instance="two", protocols=named_protocols("range", metadata=b"other"))
    assert harness.response(waiting) is PENDING
    again = harness.join(instance="two", new_member_id="two-again")
    assert harness.error_type(waiting) is FencedInstanceIdError
    harness.join(one, instance="one")
    assert harness.joined(again).generation == 2


def test_a_full_group_accepts_its_restarted_static_members() -> None:
    harness = GroupHarness(BrokerSettings(group_max_size=2))
    harness.stable(ONE, TWO)
    assert harness.joined(harness.join(instance="two", new_member_id="two-again")).generation == 1


def test_a_static_restart_has_no_effect_if_its_record_is_not_written() -> None:
    harness = GroupHarness()
    _, two = harness.stable(ONE, TWO)
    harness.log_fails = True
    request_id = harness.join(instance="two", new_member_id="lost")
    assert harness.lost == [request_id]
    harness.log_fails = False
    assert harness.response(harness.heartbeat(two, instance="two")) is EMPTY_RESPONSE
    assert harness.error_type(harness.heartbeat("lost", instance="two")) is FencedInstanceIdError
    assert harness.joined(harness.join(instance="two", new_member_id="two-again")).generation == 1
    for _ in range(3):
        harness.wait(9_000)
        assert harness.response(harness.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE
        assert harness.response(harness.heartbeat("one-1", instance="one")) is EMPTY_RESPONSE


def test_a_static_member_that_restarts_before_syncing_is_not_removed() -> None:
    harness = GroupHarness()
    request_ids = [harness.join(**ONE), harness.join(**TWO)]
    harness.wait_for_generation()
    one = harness.joined(request_ids[0]).member_id
    harness.sync(one, instance="one")
    assert harness.metadata.state is STABLE
    harness.join(instance="two", new_member_id="two-again")
    for _ in range(8):
        harness.wait(9_000)
        assert harness.response(harness.heartbeat(one, instance="one")) is EMPTY_RESPONSE
        assert harness.response(harness.heartbeat("two-again", instance="two")) is EMPTY_RESPONSE


# Two with the same instance id


def test_all_requests_of_a_replaced_static_member_are_fenced() -> None:
    harness = GroupHarness()
    old, _ = harness.stable(ONE, TWO)
    harness.join(instance="one", new_member_id="one-again")
    assert harness.error_type(harness.heartbeat(old, instance="one")) is FencedInstanceIdError
    assert harness.error_type(harness.sync(old, instance="one")) is FencedInstanceIdError
    assert harness.error_type(harness.join(old, instance="one")) is FencedInstanceIdError
    with pytest.raises(FencedInstanceIdError):
        harness.commit(old, instance="one")
    left = harness.response(harness.leave(LeavingMember(old, "one")))
    assert isinstance(left, tuple)
    assert isinstance(left[0].error, FencedInstanceIdError)
    assert harness.error_type(harness.heartbeat(old)) is UnknownMemberIdError, "nor is it known without its instance id"


def test_fencing_is_checked_before_the_generation() -> None:
    harness = GroupHarness()
    one, _ = harness.stable(ONE, TWO)
    assert harness.error_type(harness.heartbeat("other", instance="one", generation=9)) is FencedInstanceIdError
    assert harness.error_type(harness.heartbeat(one, instance="one", generation=9)) is IllegalGenerationError


def test_an_instance_id_that_is_not_in_the_group_is_unknown() -> None:
    harness = GroupHarness()
    one, _ = harness.stable(ONE, TWO)
    assert harness.error_type(harness.heartbeat(one, instance="three")) is UnknownMemberIdError
    assert harness.error_type(harness.join(one, instance="three")) is UnknownMemberIdError


def test_a_parked_sync_of_a_replaced_static_member_is_fenced() -> None:
    harness = GroupHarness()
    request_ids = [harness.join(**ONE), harness.join(**TWO)]
    harness.wait_for_generation()
    two = harness.joined(request_ids[1]).member_id
    waiting = harness.sync(two, instance="two")
    harness.join(instance="two", new_member_id="two-again")
    assert harness.error_type(waiting) is FencedInstanceIdError


def test_a_parked_join_of_a_replaced_static_member_is_fenced() -> None:
    harness = GroupHarness()
    waiting = harness.join(**ONE)
    again = harness.join(**ONE)
    assert harness.error_type(waiting) is FencedInstanceIdError
    harness.wait_for_generation()
    assert [each.instance_id for each in harness.joined(again).members] == ["one"]


# Away for a while


def test_a_static_member_stays_in_the_group_if_it_does_not_rejoin_in_time() -> None:
    harness = GroupHarness()
    _, two = harness.stable({**ONE, "rebalance_ms": 5_000}, {**TWO, "rebalance_ms": 5_000, "session_ms": 30_000})
    again = harness.join("one-1", instance="one", rebalance_ms=5_000)
    harness.wait(5_000)
    reply = harness.joined(again)
    assert [each.instance_id for each in reply.members] == ["one", "two"]
    harness.sync("one-1", {two: b"kept for two"}, instance="one")
    back = harness.joined(harness.join(instance="two", new_member_id="two-again"))
    assert back.generation == 2
    assert harness.assignment(harness.sync("two-again", instance="two")) == b"kept for two"


def test_another_member_becomes_leader_if_a_static_leader_does_not_rejoin() -> None:
    harness = GroupHarness()
    harness.stable({**ONE, "session_ms": 100_000}, TWO)
    again = harness.join("two-2", instance="two", protocols=named_protocols("range", metadata=b"other"))
    harness.wait(60_000)
    assert (harness.joined(again).leader, len(harness.members)) == ("two-2", 2)


def test_the_join_waits_until_the_sessions_of_static_members_expire() -> None:
    harness = GroupHarness()
    harness.stable(
        {**ONE, "session_ms": 50_000, "rebalance_ms": 500},
        {**TWO, "session_ms": 50_000, "rebalance_ms": 500},
        {"rebalance_ms": 500},
    )
    harness.leave("member-3")
    harness.wait(49_999)
    assert (harness.metadata.state, len(harness.members)) == (PREPARING, 2)
    harness.wait(1)
    assert (harness.metadata.state, harness.members) == (EMPTY, {})


def test_a_static_member_that_never_syncs_is_removed() -> None:
    harness = GroupHarness()
    harness.stable({**ONE, "rebalance_ms": 5_000}, {**TWO, "rebalance_ms": 5_000, "session_ms": 100_000})
    harness.join("one-1", instance="one", rebalance_ms=5_000)
    harness.wait(5_000)
    harness.sync("one-1", instance="one")
    harness.wait(5_000)
    assert (harness.metadata.state, list(harness.members)) == (PREPARING, ["one-1"])


# Leaving


def test_an_administrator_removes_a_static_member_by_instance_id() -> None:
    harness = GroupHarness()
    harness.stable(ONE, TWO)
    harness.leave(LeavingMember(UNKNOWN_MEMBER_ID, "one"))
    assert list(harness.members) == ["two-2"]
    assert harness.error_type(harness.heartbeat("one-1", instance="one")) is UnknownMemberIdError


def test_a_static_member_leaves_with_its_member_id_with_or_without_its_instance_id() -> None:
    harness = GroupHarness()
    harness.stable(ONE, TWO)
    harness.leave(LeavingMember("one-1", "one"), LeavingMember("two-2", None))
    assert harness.metadata.state is EMPTY


# What the simulator switches off


def test_the_checks_of_generation_and_fencing_can_be_switched_off_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = GroupHarness()
    one, _ = harness.stable(ONE, TWO)
    monkeypatch.setattr(ClassicGroupMetadata, "check_generation", lambda self, generation: None)
    assert harness.response(harness.heartbeat(one, generation=9)) is EMPTY_RESPONSE
    monkeypatch.setattr(MemberSet, "check_not_fenced", lambda self, member_id, instance_id: None)
    assert harness.response(harness.heartbeat(one, instance="two")) is EMPTY_RESPONSE
    monkeypatch.setattr(MemberSet, "require", lambda self, member_id, instance_id: self.by_id[one])
    assert harness.response(harness.heartbeat("long replaced", instance="one")) is EMPTY_RESPONSE
    harness.commit("long replaced", instance="one")
