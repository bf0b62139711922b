"""Syncing, heartbeats, commits and leaving: what members of a classic group do between one join and the next."""

import pytest

from moldau.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MoldauError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.records import GroupMetadataRecord, GroupMetadataValue
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupState,
    LeaveResponse,
    LeavingMember,
    ListedGroup,
    RequestId,
)
from support.classic_group import GROUP, WAITS, WALL_MS, Stage, speaking, subscribed_to

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


def completing(stage: Stage, count: int = 2) -> list[str]:
    """Members that have joined and not synced yet; the first of them leads."""
    request_ids = [stage.join() for _ in range(count)]
    stage.wait_for_generation()
    return [stage.joined(request_id).member_id for request_id in request_ids]


def written(stage: Stage) -> GroupMetadataValue:
    record = stage.log[-1]
    assert isinstance(record, GroupMetadataRecord)
    assert record.group_id == GROUP
    assert record.metadata is not None
    return record.metadata


def errors(stage: Stage, request_id: RequestId) -> list[type[MoldauError] | None]:
    reply = stage.answer(request_id)
    assert isinstance(reply, LeaveResponse)
    return [each.error and type(each.error) for each in reply.members]


# Syncing


def test_followers_wait_for_the_leader_and_all_get_their_part() -> None:
    stage = Stage()
    a, b = completing(stage)
    follower = stage.sync(b)
    assert (stage.answer(follower), stage.log) == (WAITS, [])
    leader = stage.sync(a, {a: b"0", b: b"1", "stranger": b"2"})
    assert (stage.assignment(leader), stage.assignment(follower)) == (b"0", b"1")
    assert stage.metadata.state is STABLE


def test_the_leaders_sync_is_written_with_all_that_the_group_must_remember() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(a, {a: b"0", b: b"1"})
    metadata = written(stage)
    assert (metadata.protocol_type, metadata.protocol_name, metadata.generation) == ("consumer", "range", 1)
    assert (metadata.leader, metadata.state_timestamp_ms) == (a, WALL_MS + stage.now_ms)
    assert [(each.member_id, each.subscription, each.assignment) for each in metadata.members] == [
        (a, b"mine", b"0"),
        (b, b"mine", b"1"),
    ]
    assert (metadata.members[0].session_timeout_ms, metadata.members[0].rebalance_timeout_ms) == (
        10_000,
        60_000,
    )


def test_a_late_follower_gets_its_part_at_once() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(a, {b: b"1"})
    assert stage.assignment(stage.sync(b)) == b"1"
    assert stage.assignment(stage.sync(b)) == b"1", "and again, if it asks again"


def test_a_member_that_the_leader_forgot_gets_nothing() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(a, {a: b"all"})
    assert stage.assignment(stage.sync(b)) == b""


def test_only_the_leader_assigns() -> None:
    stage = Stage()
    _, b = completing(stage)
    assert stage.answer(stage.sync(b, {b: b"all"})) is WAITS
    assert stage.metadata.state is COMPLETING


def test_a_leader_that_syncs_again_changes_nothing() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(a, {a: b"0", b: b"1"})
    assert stage.assignment(stage.sync(a, {a: b"2", b: b"2"})) == b"0"
    assert stage.assignment(stage.sync(b)) == b"1"
    assert len(stage.log) == 1


def test_a_follower_that_syncs_twice_gets_one_good_answer() -> None:
    stage = Stage()
    a, b = completing(stage)
    lost, again = stage.sync(b), stage.sync(b)
    assert stage.refused(lost) is RebalanceInProgressError
    stage.sync(a, {b: b"1"})
    assert stage.assignment(again) == b"1"


def test_what_a_sync_is_refused_for_in_this_order() -> None:
    stage = Stage()
    assert stage.refused(stage.sync("a")) is UnknownMemberIdError, "the group is empty"
    a, _ = completing(stage)
    assert stage.refused(stage.sync("nobody", generation=7)) is UnknownMemberIdError
    assert stage.refused(stage.sync(a, generation=7, protocol_name="x")) is IllegalGenerationError
    assert stage.refused(stage.sync(a, protocol_type="connect")) is InconsistentGroupProtocolError
    assert stage.refused(stage.sync(a, protocol_name="sticky")) is InconsistentGroupProtocolError
    stage.join()
    assert stage.refused(stage.sync(a, protocol_name="sticky")) is InconsistentGroupProtocolError
    assert stage.refused(stage.sync(a)) is RebalanceInProgressError
    assert stage.log == []


def test_a_sync_that_names_the_right_protocol_is_fine() -> None:
    stage = Stage()
    [a] = completing(stage, 1)
    assert stage.assignment(stage.sync(a, protocol_type="consumer", protocol_name="range")) == b""


def test_a_rebalance_sends_those_who_wait_in_sync_back() -> None:
    stage = Stage()
    _, b, c = completing(stage, 3)
    waiting = [stage.sync(b), stage.sync(c)]
    stage.leave(c)
    assert [stage.refused(each) for each in waiting] == [RebalanceInProgressError, UnknownMemberIdError]
    assert stage.metadata.state is PREPARING


def test_members_that_never_sync_are_removed_when_the_rebalance_timeout_is_over() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(a)
    for _ in range(11):
        stage.wait(5_000)
        assert [stage.answer(stage.heartbeat(each)) for each in (a, b)] == [EMPTY_RESPONSE, EMPTY_RESPONSE]
    stage.wait(4_999)
    assert stage.metadata.state is STABLE
    stage.wait(1)
    assert (stage.metadata.state, list(stage.members)) == (PREPARING, [a])


def test_a_leader_that_never_syncs_is_removed_and_the_others_are_sent_back() -> None:
    stage = Stage()
    a, b = completing(stage)
    waiting = stage.sync(b)
    for _ in range(11):
        stage.wait(5_000)
        stage.heartbeat(a)
    stage.wait(5_000)
    assert stage.refused(waiting) is RebalanceInProgressError
    assert (list(stage.members), stage.metadata.leader) == ([b], b)


def test_if_nobody_syncs_the_group_is_empty_in_the_end() -> None:
    stage = Stage()
    members = completing(stage)
    for _ in range(11):
        stage.wait(5_000)
        for each in members:
            stage.heartbeat(each)
    stage.wait(5_000)
    assert (stage.metadata.state, written(stage).members) == (EMPTY, ())


def test_once_all_have_synced_nobody_is_waited_for() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(b)
    stage.sync(a)
    assert stage.group.next_deadline_ms == stage.now_ms + 10_000, "only the sessions are watched"


# Heartbeats


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    stage = Stage()
    _, b = stage.stable({"session_ms": 10_000}, {"session_ms": 20_000})
    stage.wait(9_999)
    assert stage.metadata.state is STABLE
    stage.wait(1)
    assert (
        stage.metadata.state,
        list(stage.members),
        stage.metadata.leader,
    ) == (PREPARING, [b], b)
    assert stage.refused(stage.heartbeat(b)) is RebalanceInProgressError
    assert stage.joined(stage.join(b)).generation == 2


def test_heartbeats_keep_a_member() -> None:
    stage = Stage()
    [a] = stage.stable({"session_ms": 10_000})
    for _ in range(10):
        stage.wait(9_999)
        assert stage.answer(stage.heartbeat(a)) is EMPTY_RESPONSE
    stage.wait(9_999)
    assert stage.metadata.state is STABLE


def test_heartbeats_keep_a_member_while_the_group_waits_for_it_to_join() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    stage.join(b, protocols=speaking("range", metadata=b"other"))
    for _ in range(5):
        stage.wait(9_999)
        assert stage.refused(stage.heartbeat(a)) is RebalanceInProgressError
    assert a in stage.members


def test_a_heartbeat_between_join_and_sync_is_fine() -> None:
    stage = Stage()
    a, _ = completing(stage)
    assert stage.answer(stage.heartbeat(a)) is EMPTY_RESPONSE


def test_what_a_heartbeat_is_refused_for() -> None:
    stage = Stage()
    assert stage.refused(stage.heartbeat("a")) is UnknownMemberIdError
    stage.join(asks_for_id=True, fresh_id="pending")
    assert stage.refused(stage.heartbeat("pending")) is UnknownMemberIdError
    [a] = stage.stable({})
    assert stage.refused(stage.heartbeat("nobody", generation=9)) is UnknownMemberIdError
    assert stage.refused(stage.heartbeat(a, generation=0)) is IllegalGenerationError
    assert stage.refused(stage.heartbeat(a, generation=2)) is IllegalGenerationError


def test_a_member_that_waits_in_sync_needs_no_heartbeat() -> None:
    stage = Stage()
    a, b = completing(stage)
    waiting = stage.sync(b)
    for _ in range(4):
        stage.wait(9_000)
        stage.heartbeat(a)
    stage.sync(a, {b: b"1"})
    assert stage.assignment(waiting) == b"1"
    stage.wait(9_999)
    assert b in stage.members, "its session begins with the answer"
    stage.wait(1)
    assert b not in stage.members


# Commits


def test_who_may_commit() -> None:
    stage = Stage()
    stage.commit(UNKNOWN_MEMBER_ID, generation=-1)
    with pytest.raises(UnknownMemberIdError):
        stage.commit("a", generation=0)
    a, b = completing(stage)
    with pytest.raises(RebalanceInProgressError):
        stage.commit(a)
    stage.sync_all([a, b])
    stage.commit(a)
    with pytest.raises(UnknownMemberIdError):
        stage.commit(UNKNOWN_MEMBER_ID, generation=-1)
    with pytest.raises(UnknownMemberIdError):
        stage.commit("nobody")
    with pytest.raises(IllegalGenerationError):
        stage.commit(a, generation=0)
    with pytest.raises(IllegalGenerationError):
        stage.commit(a, generation=-1)
    stage.join()
    stage.commit(a)


def test_a_commit_is_a_sign_of_life() -> None:
    stage = Stage()
    [a] = stage.stable({})
    for _ in range(3):
        stage.wait(9_999)
        stage.commit(a)
    assert stage.metadata.state is STABLE


# Leaving


def test_a_member_that_leaves_makes_the_others_share_anew() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    assert errors(stage, stage.leave(a)) == [None]
    assert (stage.metadata.state, stage.metadata.leader) == (PREPARING, b)
    reply = stage.joined(stage.join(b))
    assert (reply.generation, reply.leader) == (2, b)


def test_the_last_one_to_leave_leaves_an_empty_group_in_the_log() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.wait(10)
    stage.leave(a)
    metadata = written(stage)
    assert (metadata.members, metadata.protocol_name, metadata.leader) == ((), None, None)
    assert (metadata.protocol_type, metadata.generation) == ("consumer", 2)
    assert stage.metadata.empty_since_ms == metadata.state_timestamp_ms == WALL_MS + stage.now_ms
    assert stage.metadata.is_empty
    assert stage.group.next_deadline_ms is None


def test_many_leave_in_one_request_and_each_learns_how_it_went() -> None:
    stage = Stage()
    a, b, c = stage.stable({}, {"instance": "static"}, {})
    stage.join(asks_for_id=True, fresh_id="pending")
    request_id = stage.leave(
        LeavingMember(a, None),
        LeavingMember(UNKNOWN_MEMBER_ID, "static"),
        LeavingMember("nobody", None),
        LeavingMember(UNKNOWN_MEMBER_ID, "strange"),
        LeavingMember(UNKNOWN_MEMBER_ID, None),
        LeavingMember("pending", None),
        LeavingMember(a, None),
    )
    unknown = UnknownMemberIdError
    assert errors(stage, request_id) == [None, None, unknown, unknown, unknown, None, unknown]
    reply = stage.answer(request_id)
    assert isinstance(reply, LeaveResponse)
    assert [(each.member_id, each.instance_id) for each in reply.members[:2]] == [(a, None), ("", "static")]
    assert list(stage.members) == [c]
    assert b not in stage.members


def test_leaving_nobody_in_particular_disturbs_nobody() -> None:
    stage = Stage()
    stage.stable({})
    assert errors(stage, stage.leave("nobody")) == [UnknownMemberIdError]
    assert errors(stage, stage.leave()) == []
    stage.join(asks_for_id=True, fresh_id="pending")
    assert errors(stage, stage.leave("pending")) == [None]
    assert stage.metadata.state is STABLE


def test_a_pending_member_that_leaves_is_not_waited_for() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.join(asks_for_id=True, fresh_id="pending")
    again = stage.join(a)
    stage.leave("pending")
    assert stage.joined(again).generation == 2


def test_a_member_that_leaves_while_it_waits_is_told() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    waiting = stage.join(a)
    stage.leave(a)
    assert stage.refused(waiting) is UnknownMemberIdError
    assert stage.joined(stage.join(b)).generation == 2


# What survives


def test_after_a_crash_members_go_on_as_if_nothing_had_been() -> None:
    stage = Stage()
    a, b = stage.stable({}, {})
    stage.crash()
    assert (stage.metadata.state, stage.metadata.generation, stage.metadata.leader) == (
        STABLE,
        1,
        a,
    )
    assert stage.answer(stage.heartbeat(a)) is EMPTY_RESPONSE
    assert stage.assignment(stage.sync(b)) == f"part of {b}".encode()
    assert stage.joined(stage.join(b)).generation == 1, "it says what it said then"


def test_after_a_crash_the_session_timeouts_count_from_the_start() -> None:
    stage = Stage()
    a, _ = stage.stable({"session_ms": 10_000}, {"session_ms": 15_000})
    stage.wait(9_000)
    stage.crash()
    stage.wait(9_999)
    assert a in stage.members
    stage.wait(1)
    assert a not in stage.members


def test_a_generation_that_was_never_synced_is_forgotten_by_a_crash() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.join(a)
    assert stage.metadata.generation == 2
    stage.crash()
    assert (stage.metadata.generation, stage.metadata.state) == (1, STABLE)
    assert stage.refused(stage.sync(a, generation=2)) is IllegalGenerationError


def test_an_empty_group_remembers_since_when() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.leave(a)
    since_ms = stage.metadata.empty_since_ms
    stage.wait(5_000)
    stage.crash()
    assert (
        stage.metadata.state,
        stage.metadata.generation,
        stage.metadata.empty_since_ms,
    ) == (EMPTY, 2, since_ms)
    stage.join()
    assert stage.metadata.empty_since_ms is None


def test_a_later_record_replaces_everything_of_an_earlier_one() -> None:
    stage = Stage()
    [a] = stage.stable({"session_ms": 10_000})
    again = stage.join(a, session_ms=20_000, protocols=speaking("range", metadata=b"other"))
    stage.sync_all([stage.joined(again).member_id])
    stage.crash()
    member = stage.members[a]
    assert (member.session_timeout_ms, member.metadata("range")) == (20_000, b"other")


def test_a_group_over_a_limit_that_was_lowered_rebalances_and_sheds_the_last() -> None:
    stage = Stage()
    a, b, c = stage.stable({}, {}, {})
    stage.config = type(stage.config)(size_max=2)
    stage.crash()
    assert stage.metadata.state is PREPARING
    assert stage.answer(stage.join(c)) is WAITS
    assert stage.answer(stage.join(a)) is WAITS
    stage.join(b)
    assert (stage.metadata.state, list(stage.members)) == (COMPLETING, [a, c])


# When the log cannot be written


def test_after_a_sync_that_could_not_be_written_members_sync_again() -> None:
    stage = Stage()
    a, b = completing(stage)
    follower = stage.sync(b)
    stage.log_fails = True
    leader = stage.sync(a, {a: b"0", b: b"1"})
    assert stage.lost == [follower, leader]
    assert stage.metadata.state is COMPLETING
    stage.log_fails = False
    assert stage.joined(stage.join(a)).generation == 1
    waiting = stage.sync(b)
    stage.sync(a, {a: b"2", b: b"3"})
    assert stage.assignment(waiting) == b"3"
    assert stage.metadata.state is STABLE


def test_after_a_sync_that_could_not_be_written_nobody_is_waited_for_longer_than_before() -> None:
    stage = Stage()
    a, b = completing(stage)
    stage.sync(b)
    stage.log_fails = True
    stage.sync(a)
    stage.log_fails = False
    for _ in range(11):
        stage.wait(5_000)
        stage.heartbeat(a)
        stage.heartbeat(b)
    assert stage.metadata.state is COMPLETING
    stage.wait(5_000)
    assert stage.metadata.state is EMPTY


def test_a_group_whose_emptying_could_not_be_written_starts_over() -> None:
    stage = Stage()
    [a] = stage.stable({})
    stage.log_fails = True
    stage.leave(a)
    stage.log_fails = False
    assert stage.metadata.state is EMPTY
    request_id = stage.join()
    stage.wait_for_generation()
    assert stage.joined(request_id).generation == 3


# Looking at it


def test_a_description_tells_what_members_said_only_while_the_group_is_stable() -> None:
    stage = Stage()
    a, b = stage.stable({}, {"instance": "static", "client_host": "/10.0.0.2"})
    describe = stage.metadata.describe()
    assert (describe.state, describe.protocol_type, describe.protocol_name) == (
        STABLE,
        "consumer",
        "range",
    )
    assert describe.members[1] == (
        b, "static", "client", "/10.0.0.2", b"mine", f"part of {b}".encode()
    )  # fmt: skip
    stage.join()
    describe = stage.metadata.describe()
    assert (describe.state, describe.protocol_type, describe.protocol_name) == (PREPARING, "consumer", "")
    assert describe.members[0] == (a, None, "client", "/10.0.0.1", b"", f"part of {a}".encode())


def test_a_listing_has_the_state_and_the_kind() -> None:
    stage = Stage()
    assert stage.metadata.as_listed_group() == ListedGroup(GROUP, "", EMPTY, "classic")
    stage.stable({})
    assert stage.metadata.as_listed_group() == ListedGroup(GROUP, "consumer", STABLE, "classic")


def test_the_topics_that_members_are_subscribed_to() -> None:
    stage = Stage()
    assert stage.metadata.subscribed_topics() is None
    a, b = stage.stable(
        {"protocols": subscribed_to("one", "two")}, {"protocols": subscribed_to("two", "three")}
    )
    assert sorted(stage.metadata.subscribed_topics() or ()) == ["one", "three", "two"]
    stage.join(b, protocols=subscribed_to("four"))
    assert sorted(stage.metadata.subscribed_topics() or ()) == ["one", "three", "two"], (
        "until the next generation"
    )
    stage.join(a, protocols=subscribed_to("one"))
    assert stage.metadata.subscribed_topics() == ("one", "four")
    stage.crash()
    assert sorted(stage.metadata.subscribed_topics() or ()) == ["one", "three", "two"]
    stage.leave(a, b)
    assert stage.metadata.subscribed_topics() == ()


def test_the_topics_are_not_known_where_a_subscription_cannot_be_read() -> None:
    stage = Stage()
    stage.stable({"protocols": subscribed_to("one")}, {"protocols": speaking("range", metadata=b"?")})
    assert stage.metadata.subscribed_topics() is None
    other = Stage()
    other.stable({"protocol_type": "connect", "protocols": subscribed_to("one")})
    assert other.group.metadata.subscribed_topics() is None
