"""All groups of a partition together: who may commit, read and delete offsets, what expires and when, what is given up,
and what is left after a restart."""

from uuid import UUID

import pytest

from moldau.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    MoldauError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.formats import encode
from moldau.groups.group_metadata_manager import PENDING_MEMBER_IDS_BYTES_MAX
from moldau.groups.records import NO_EXPIRY, CommittedOffset, GroupMetadataRecord, OffsetCommitRecord
from moldau.groups.requests import (
    CommitRequest,
    CommitResponse,
    GroupState,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    MemberIdentity,
    OffsetToCommit,
)
from moldau.groups.shard import TOMBSTONES_BYTES_MAX
from support.groups import RETENTION_MS, SESSION_MS, TOPIC_ID, Groups, claims, nobody, offset, synced


@pytest.fixture
def groups() -> Groups:
    return Groups()


# Commits


def test_a_standalone_consumer_commits_and_makes_an_empty_group_of_its_own(groups: Groups) -> None:
    assert groups.commit(nobody(), offset("orders", 0, 7)).errors == {("orders", 0): None}
    assert groups.committed() == {("orders", 0): 7}
    described = groups.describe("g")
    assert (described.state, described.protocol_type) == (GroupState.EMPTY, "")


def test_a_commit_is_seen_by_nobody_before_its_records_are_applied(groups: Groups) -> None:
    request = CommitRequest(identity=nobody(), offsets=(offset("orders", 0, 7),))
    decision = groups.state.commit(groups.now, request, 99)
    assert groups.committed() == {}
    assert groups.listed() == []
    groups.run(decision)
    assert groups.committed() == {("orders", 0): 7}


def test_a_member_commits_what_it_has_consumed(groups: Groups) -> None:
    identity = groups.member()
    groups.commit(identity, offset("orders", 0, 7), offset("orders", 1, 8))
    assert groups.committed() == {("orders", 0): 7, ("orders", 1): 8}


def test_a_commit_that_is_refused_for_all_partitions_writes_nothing(groups: Groups) -> None:
    written = len(groups.log)
    too_large = OffsetToCommit("orders", 0, 7, -1, "x" * 4_097, NO_EXPIRY)
    errors = groups.commit(nobody(), too_large).errors
    assert isinstance(errors["orders", 0], OffsetMetadataTooLargeError)
    assert len(groups.log) == written
    assert groups.listed() == []


def test_a_commit_of_no_offsets_writes_nothing(groups: Groups) -> None:
    request = CommitRequest(identity=nobody(), offsets=())
    assert groups.answer(CommitResponse, lambda t: groups.state.commit(groups.now, request, t)).errors == {}
    assert groups.log == []
    assert groups.listed() == []


def test_a_member_cannot_commit_to_a_group_that_is_not_there(groups: Groups) -> None:
    identity = MemberIdentity(group_id="gone", generation=3, member_id="m", instance_id=None)
    with pytest.raises(GroupIdNotFoundError):
        groups.commit(identity)


@pytest.mark.parametrize(
    ("differs", "error"),
    [
        ({"generation": 9}, IllegalGenerationError),
        ({"generation": -1}, IllegalGenerationError),
        ({"member_id": "stranger"}, UnknownMemberIdError),
        ({"generation": -1, "member_id": ""}, UnknownMemberIdError),
        ({"instance_id": "i-1", "member_id": "stranger"}, FencedInstanceIdError),
        ({"instance_id": "i-9"}, UnknownMemberIdError),
    ],
)
def test_only_a_member_of_this_generation_commits_to_a_group_that_has_members(
    groups: Groups, differs: dict[str, object], error: type[MoldauError]
) -> None:
    identity = groups.member(instance_id="i-1")
    with pytest.raises(error):
        groups.commit(claims(identity, **differs))  # type: ignore[arg-type]
    assert groups.committed() == {}


def test_a_member_that_has_not_synced_yet_cannot_commit(groups: Groups) -> None:
    identity = groups.joined()
    with pytest.raises(RebalanceInProgressError):
        groups.commit(identity)


def test_a_standalone_consumer_commits_to_a_group_that_everybody_has_left(groups: Groups) -> None:
    groups.leave(groups.member())
    groups.commit(nobody(), offset("orders", 0, 7))
    assert groups.committed() == {("orders", 0): 7}


def test_a_commit_keeps_a_member_alive(groups: Groups) -> None:
    identity = groups.member()
    for _ in range(3):
        groups.pass_time(SESSION_MS - 1)
        groups.commit(identity)
    groups.pass_time(SESSION_MS)
    with pytest.raises(UnknownMemberIdError):
        groups.commit(identity)


# Reading offsets


def test_offsets_are_given_in_the_order_they_were_asked_for_and_nothing_where_there_is_none(
    groups: Groups,
) -> None:
    groups.commit(nobody(), offset("b", 0, 1), offset("a", 0, 2))
    found = groups.fetch("g", [("b", 0), ("c", 5), ("a", 0)])
    assert list(found) == [("b", 0), ("c", 5), ("a", 0)]
    assert [None if each is None else each.offset for each in found.values()] == [1, None, 2]


def test_all_offsets_are_given_in_the_order_of_topics_and_partitions(groups: Groups) -> None:
    groups.commit(nobody(), offset("b", 10, 1), offset("b", 9, 2), offset("a", 0, 3))
    assert list(groups.fetch("g")) == [("a", 0), ("b", 9), ("b", 10)]


def test_a_group_that_is_not_there_has_no_offsets(groups: Groups) -> None:
    assert groups.fetch("nobody") == {}
    assert groups.fetch("nobody", [("orders", 0)]) == {("orders", 0): None}


def test_what_was_committed_with_an_offset_is_given_back(groups: Groups) -> None:
    groups.commit(nobody(), OffsetToCommit("orders", 0, 7, 3, "here", NO_EXPIRY, TOPIC_ID))
    found = groups.fetch("g")["orders", 0]
    assert found == CommittedOffset(7, 3, "here", groups.now.wall_ms, NO_EXPIRY, TOPIC_ID)


# Deleting offsets


def test_offsets_of_an_empty_group_are_deleted_and_only_those_that_are_there_need_a_tombstone(
    groups: Groups,
) -> None:
    groups.commit(nobody(), offset("orders", 0, 7), offset("orders", 1, 8))
    written = len(groups.log)
    errors = groups.delete_offsets("g", ("orders", 0), ("orders", 5), ("orders", 0))
    assert errors == {("orders", 0): None, ("orders", 5): None}
    assert groups.log[written:] == [OffsetCommitRecord("g", "orders", 0, None)]
    assert groups.committed() == {("orders", 1): 8}


def test_offsets_of_topics_that_members_read_are_not_deleted(groups: Groups) -> None:
    identity = groups.member(topics=["orders"])
    groups.commit(identity, offset("orders", 0, 7), offset("other", 0, 8))
    errors = groups.delete_offsets("g", ("orders", 0), ("other", 0))
    assert isinstance(errors["orders", 0], GroupSubscribedToTopicError)
    assert errors["other", 0] is None
    assert groups.committed() == {("orders", 0): 7}


def test_a_subscription_that_cannot_be_read_protects_all_offsets(groups: Groups) -> None:
    identity = groups.member(metadata=b"?")
    groups.commit(identity, offset("other", 0, 8))
    errors = groups.delete_offsets("g", ("other", 0))
    assert isinstance(errors["other", 0], GroupSubscribedToTopicError)


def test_offsets_of_a_live_group_that_is_not_of_consumers_are_not_deleted(groups: Groups) -> None:
    identity = groups.joined(protocol_type="connect")
    with pytest.raises(NonEmptyGroupError):
        groups.delete_offsets("g", ("orders", 0))
    groups.leave(identity)
    assert groups.delete_offsets("g", ("orders", 0)) == {("orders", 0): None}


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(groups: Groups) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_offsets("nobody", ("orders", 0))


# Deleting groups


def test_an_empty_group_is_deleted_with_all_its_offsets(groups: Groups) -> None:
    identity = groups.member()
    groups.commit(identity, offset("orders", 0, 7), offset("other", 1, 8))
    groups.leave(identity)
    written = len(groups.log)
    groups.delete_group("g")
    assert groups.log[written:] == [
        OffsetCommitRecord("g", "orders", 0, None),
        OffsetCommitRecord("g", "other", 1, None),
        GroupMetadataRecord("g", None),
    ]
    assert groups.listed() == []
    assert groups.fetch("g") == {}
    assert groups.restarted().listed() == []


def test_a_group_with_members_is_not_deleted(groups: Groups) -> None:
    groups.member()
    with pytest.raises(NonEmptyGroupError):
        groups.delete_group("g")
    assert groups.describe("g").state is GroupState.STABLE


def test_a_group_that_is_not_there_cannot_be_deleted_nor_one_that_was_already(groups: Groups) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_group("g")
    groups.commit(nobody())
    groups.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_group("g")


def test_a_group_is_there_until_the_tombstones_are_written(groups: Groups) -> None:
    groups.commit(nobody())
    decision = groups.state.delete_group("g", 99)
    assert groups.committed() == {("orders", 0): 7}
    groups.run(decision)
    assert groups.committed() == {}


def test_who_was_to_come_back_to_a_deleted_group_joins_as_somebody_new(groups: Groups) -> None:
    refused = groups.answers[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    groups.delete_group("g")
    assert isinstance(groups.answers[groups.join(member_id=refused.member_id)], UnknownMemberIdError)
    assert groups.state.groups.next_deadline_ms is None


# Expiry


def test_offsets_of_a_standalone_consumer_expire_by_the_time_of_each_commit(groups: Groups) -> None:
    groups.commit(nobody(), offset("orders", 0, 7))
    groups.pass_time(RETENTION_MS // 2)
    groups.commit(nobody(), offset("orders", 1, 8))
    groups.pass_time(RETENTION_MS // 2 - 1)
    assert groups.expire_offsets() == []
    groups.pass_time(1)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    groups.pass_time(RETENTION_MS // 2)
    assert groups.expire_offsets() == [
        OffsetCommitRecord("g", "orders", 1, None),
        GroupMetadataRecord("g", None),
    ]
    assert groups.listed() == []
    assert groups.restarted().listed() == []


def test_offsets_of_a_group_that_everybody_has_left_expire_that_long_after_the_last_one_left(
    groups: Groups,
) -> None:
    identity = groups.member(instance_id="i", session_timeout_ms=1_800_000)
    groups.commit(identity)
    groups.pass_time(RETENTION_MS + 1)
    groups.leave(identity)
    groups.pass_time(RETENTION_MS - 1)
    assert groups.expire_offsets() == []
    groups.pass_time(1)
    assert groups.expire_offsets() == [
        OffsetCommitRecord("g", "orders", 0, None),
        GroupMetadataRecord("g", None),
    ]


def test_what_is_committed_to_a_group_long_empty_is_kept_for_the_whole_time(groups: Groups) -> None:
    identity = groups.member()
    groups.commit(identity)
    groups.leave(identity)
    groups.pass_time(RETENTION_MS - 1)
    groups.commit(nobody(), offset("orders", 1, 8))
    groups.pass_time(1)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    assert groups.committed() == {("orders", 1): 8}


def test_since_when_a_group_is_empty_survives_a_restart(groups: Groups) -> None:
    identity = groups.member()
    groups.commit(identity)
    groups.pass_time(100)
    groups.leave(identity)
    after = groups.restarted()
    after.pass_time(RETENTION_MS - 1)
    assert after.expire_offsets() == []
    after.pass_time(1)
    assert len(after.expire_offsets()) == 2


def test_offsets_of_topics_that_members_read_do_not_expire_and_others_do(groups: Groups) -> None:
    identity = groups.member(topics=["orders"], session_timeout_ms=1_800_000)
    groups.commit(identity, offset("orders", 0, 7), offset("former", 0, 8))
    groups.pass_time(RETENTION_MS)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "former", 0, None)]
    assert groups.describe("g").state is GroupState.STABLE


def test_nothing_expires_while_members_read_what_cannot_be_known(groups: Groups) -> None:
    identity = groups.member(metadata=b"?", session_timeout_ms=1_800_000)
    groups.commit(identity)
    groups.pass_time(RETENTION_MS)
    assert groups.expire_offsets() == []


def test_nothing_of_a_live_group_of_another_kind_expires(groups: Groups) -> None:
    groups.commit(nobody())
    groups.joined(protocol_type="connect", session_timeout_ms=1_800_000)
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == []


def test_nothing_expires_while_a_group_rebalances(groups: Groups) -> None:
    groups.commit(nobody(), offset("former", 0, 7))
    groups.joined(session_timeout_ms=1_800_000)
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == []


def test_an_expiry_that_the_client_gave_wins(groups: Groups) -> None:
    soon, late = groups.now.wall_ms + 100, groups.now.wall_ms + 2 * RETENTION_MS
    groups.commit(
        nobody(), offset("orders", 0, 7, expire_at_ms=soon), offset("orders", 1, 8, expire_at_ms=late)
    )
    groups.pass_time(100)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    groups.pass_time(RETENTION_MS)
    assert groups.expire_offsets() == []
    groups.pass_time(RETENTION_MS)
    assert groups.expire_offsets() == [
        OffsetCommitRecord("g", "orders", 1, None),
        GroupMetadataRecord("g", None),
    ]


def test_an_empty_group_without_offsets_is_given_up_with_a_tombstone(groups: Groups) -> None:
    groups.leave(groups.member())
    assert groups.listed() == ["g"]
    assert groups.expire_offsets() == [GroupMetadataRecord("g", None)]
    assert groups.listed() == []


def test_a_group_that_somebody_is_about_to_join_is_not_given_up(groups: Groups) -> None:
    groups.leave(groups.member())
    refused = groups.answers[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    assert groups.expire_offsets() == []
    groups.pass_time(SESSION_MS)
    assert groups.expire_offsets() == [GroupMetadataRecord("g", None)]


def test_expiry_goes_in_portions_that_fit_into_a_batch_and_the_group_goes_last(groups: Groups) -> None:
    many = [offset("orders", partition, 1) for partition in range(2_000)]
    groups.commit(nobody("g" * 200), *many)
    groups.commit(nobody("other"))
    groups.pass_time(RETENTION_MS)
    portions = []
    while (decision := groups.state.expire_offsets(groups.now)) is not None:
        portions.append(groups.run(decision))
    assert len(portions) > 2
    for portion in portions:
        sizes = [len(key) + len(value or b"") + 20 for key, value in map(encode, portion)]
        assert sum(sizes) <= TOMBSTONES_BYTES_MAX
    assert groups.listed() == []
    assert sum(map(len, portions)) == 2_000 + 1 + 2


def test_a_portion_that_could_not_be_written_is_tried_again_and_holds_up_no_other_group(
    groups: Groups,
) -> None:
    groups.commit(nobody("first"), *[offset("orders", partition, 1) for partition in range(2_000)])
    groups.commit(nobody("second"))
    groups.pass_time(RETENTION_MS)
    lost = groups.state.expire_offsets(groups.now)
    assert lost is not None
    assert {record.group_id for record in lost.records} == {"first"}
    groups.expire_offsets()
    assert groups.listed() == []


def test_a_group_is_looked_at_until_nothing_of_it_is_left_to_expire(groups: Groups) -> None:
    groups.commit(nobody("big"), *[offset("orders", partition, 1) for partition in range(2_000)])
    groups.pass_time(RETENTION_MS)
    groups.commit(nobody("fresh"))
    groups.expire_offsets()
    assert groups.listed() == ["fresh"]


def test_no_offset_is_forgotten_twice(groups: Groups) -> None:
    for name in ("a", "b"):
        groups.commit(nobody(name), *[offset("orders", partition, 1) for partition in range(1_000)])
    groups.pass_time(RETENTION_MS)
    forgotten = groups.expire_offsets()
    assert len(forgotten) == len(set(forgotten)) == 2_002


def test_offsets_of_deleted_topics_are_forgotten_in_all_groups(groups: Groups) -> None:
    identity = groups.member("live")
    groups.commit(identity, offset("orders", 0, 7))
    groups.commit(nobody("solo"), offset("orders", 3, 8), offset("other", 0, 9))
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) == [
        [OffsetCommitRecord("live", "orders", 0, None), OffsetCommitRecord("solo", "orders", 3, None)]
    ]
    assert groups.committed("live") == {}
    assert groups.committed("solo") == {("other", 0): 9}
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) == []


def test_a_topic_made_anew_keeps_its_offsets_when_the_old_one_is_forgotten(groups: Groups) -> None:
    groups.commit(nobody(), offset("orders", 0, 7))
    assert groups.on_topics_deleted(("orders", UUID(int=99)), ("orders", None)) == []
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) != []


def test_deleted_topics_are_forgotten_in_portions_too(groups: Groups) -> None:
    groups.commit(nobody(), *[offset("orders", partition, 1) for partition in range(2_000)])
    portions = groups.on_topics_deleted(("orders", TOPIC_ID))
    assert len(portions) > 1
    assert sum(map(len, portions)) == 2_000
    assert groups.committed() == {}


def test_one_decision_looks_at_some_groups_only_and_the_round_comes_to_all(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.groups.shard.OFFSETS_PER_EXPIRATION_PASS", 10)
    for number in range(30):
        groups.commit(nobody(f"fresh-{number}"), offset("orders", 0, 1), offset("orders", 1, 1))
    groups.commit(nobody("old"), offset("orders", 0, 1, expire_at_ms=groups.now.wall_ms + 1))
    groups.pass_time(2)
    for _ in range(2):
        decisions = 0
        while (decision := groups.state.expire_offsets(groups.now)) is not None:
            groups.run(decision)
            decisions += 1
        assert decisions >= 8
        assert "old" not in groups.listed()
        assert len(groups.listed()) == 30


def test_the_subscriptions_of_a_large_group_are_not_read_while_nothing_expires(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = groups.member(topics=["other"])
    groups.commit(identity)
    monkeypatch.setattr(
        ClassicGroupMetadata, "subscribed_topics", lambda _: pytest.fail("nobody needs to know")
    )
    assert groups.expire_offsets() == []
    monkeypatch.undo()
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]


# Groups that are not there


def test_who_says_to_be_a_member_of_a_group_that_is_not_there_is_not(groups: Groups) -> None:
    identity = MemberIdentity(group_id="gone", generation=1, member_id="m", instance_id=None)
    state, now = groups.state, groups.now
    assert isinstance(groups.answers[groups.join("gone", member_id="m")], UnknownMemberIdError)
    with pytest.raises(UnknownMemberIdError):
        state.groups.heartbeat(now, identity, 90)
    with pytest.raises(UnknownMemberIdError):
        state.groups.sync(now, synced(identity), 91)
    reply = groups.answer(
        LeaveResponse, lambda t: state.groups.leave(now, "gone", [LeavingMember("m", "i")], t)
    )
    [left] = reply.members
    assert (left.member_id, left.instance_id) == ("m", "i")
    assert isinstance(left.error, UnknownMemberIdError)
    assert groups.listed() == []


def test_a_group_that_is_not_there_cannot_be_described(groups: Groups) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.describe("nobody")


def test_who_is_refused_leaves_no_group_behind(groups: Groups) -> None:
    request_id = groups.join(session_timeout_ms=1)
    assert isinstance(groups.answers[request_id], InvalidSessionTimeoutError)
    request_id = groups.join(protocol_type="")
    assert isinstance(groups.answers[request_id], InconsistentGroupProtocolError)
    assert groups.listed() == []
    assert groups.log == []


def test_who_never_comes_back_with_the_id_it_got_leaves_no_group_behind(groups: Groups) -> None:
    groups.join(requires_known_member_id=True)
    assert groups.listed() == ["g"]
    groups.pass_time(SESSION_MS)
    assert groups.listed() == []
    assert groups.state.groups.next_deadline_ms is None
    assert groups.log == []


def test_who_leaves_before_joining_with_the_id_it_got_leaves_no_group_behind(groups: Groups) -> None:
    refused = groups.answers[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    groups.leave(MemberIdentity(group_id="g", generation=-1, member_id=refused.member_id, instance_id=None))
    assert groups.listed() == []


def room_for_ids(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.groups.group_metadata_manager._PENDING_MEMBER_ID_OVERHEAD_BYTES", 1_000)
    monkeypatch.setattr(
        "moldau.groups.group_metadata_manager.PENDING_MEMBER_IDS_BYTES_MAX", count * 1_000 + 500
    )


def test_of_too_many_ids_that_nobody_comes_back_with_the_oldest_are_forgotten_in_all_groups(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_ids(3, monkeypatch)
    groups.join("committed", requires_known_member_id=True)
    groups.commit(nobody("committed"))
    groups.join("joined", requires_known_member_id=True)
    groups.join("joined", instance_id="i")
    ids: list[str] = []
    for name in "abcdde":
        sent_away = groups.answers[groups.join(name, requires_known_member_id=True)]
        assert isinstance(sent_away, MemberIdRequiredError)
        ids.append(sent_away.member_id)
    assert groups.listed() == ["committed", "joined", "d", "e"]
    assert len(groups.state.groups._deadlines) == 3, "of the members, and of who is to come"
    assert len(groups.state.groups._pending_member_ids) == 3
    assert isinstance(groups.answers[groups.join("c", member_id=ids[2])], UnknownMemberIdError)
    back = groups.join("d", member_id=ids[3])
    assert back not in groups.answers, "it is in, and waits"


def test_the_room_for_ids_is_counted_in_bytes(groups: Groups) -> None:
    for number in range(300):
        groups.join(f"{number:03}" + "x" * 32_000, requires_known_member_id=True)
    assert sum(map(len, groups.listed())) <= PENDING_MEMBER_IDS_BYTES_MAX
    assert len(groups.listed()) > 100


def test_a_group_goes_on_without_an_id_that_was_forgotten(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_ids(1, monkeypatch)
    identity = groups.member()
    groups.join(requires_known_member_id=True)
    waiting = groups.join(member_id=identity.member_id)
    groups.pass_time(0)
    assert waiting not in groups.answers, "the one to come is waited for"
    groups.join("another", requires_known_member_id=True)
    groups.pass_time(0)
    assert isinstance(groups.answers[waiting], JoinResponse)


def test_a_refused_join_does_not_harm_a_group_that_has_offsets(groups: Groups) -> None:
    groups.commit(nobody())
    groups.join(session_timeout_ms=1)
    assert groups.committed() == {("orders", 0): 7}


def test_thousands_of_joins_and_leaves_leave_nothing_behind(groups: Groups) -> None:
    for number in range(2_000):
        groups.leave(groups.member(f"group-{number}"))
    groups.expire_offsets()
    assert groups.listed() == []
    assert groups.state.groups.next_deadline_ms is None
    assert len(groups.state.groups._deadlines._heap) < 100
    assert not groups.state.groups._groups_in_log
    assert not groups.state.groups._pending_member_ids


# Looking at groups


def test_groups_are_listed_by_state_and_type_whatever_the_case(groups: Groups) -> None:
    groups.member("live")
    groups.commit(nobody("solo"))
    assert groups.listed() == ["live", "solo"]
    assert groups.listed(states=["STABLE "]) == ["live"]
    assert groups.listed(states=["Empty", "Stable"]) == ["live", "solo"]
    assert groups.listed(types=["Classic"]) == ["live", "solo"]
    assert groups.listed(["empty"], ["classic"]) == ["solo"]


@pytest.mark.parametrize(
    ("states", "types"),
    [(["nonsense"], []), ([""], []), ([], ["nonsense"]), ([], ["consumer"]), ([], [""]), ([], [" classic"])],
)
def test_a_state_or_type_that_no_group_has_lists_none(
    groups: Groups, states: list[str], types: list[str]
) -> None:
    groups.commit(nobody())
    assert groups.listed(states, types) == []


# Time


def test_one_decision_of_the_clock_writes_for_one_group_only(groups: Groups) -> None:
    for name in ("a", "b", "c"):
        groups.member(name)
    groups.now_ms += SESSION_MS + 1
    decided = []
    while (due_ms := groups.state.groups.next_deadline_ms) is not None and due_ms <= groups.now_ms:
        records = groups.run(groups.state.groups.tick(groups.now))
        assert len({record.group_id for record in records}) <= 1
        decided += [record.group_id for record in records]
    assert decided == ["a", "b", "c"]
    assert groups.listed(states=["Empty"]) == ["a", "b", "c"]


def test_the_next_deadline_is_that_of_the_group_as_it_is_in_the_log(groups: Groups) -> None:
    groups.member(session_timeout_ms=3 * SESSION_MS)
    assert groups.state.groups.next_deadline_ms == groups.now_ms + 3 * SESSION_MS


def test_a_tick_before_anything_is_due_decides_nothing(groups: Groups) -> None:
    groups.member()
    decision = groups.state.groups.tick(groups.now)
    assert (list(decision.records), list(decision.response)) == ([], [])


# Restarts


def test_groups_and_offsets_are_the_same_after_a_restart(groups: Groups) -> None:
    identity = groups.member("live", instance_id="i")
    groups.commit(identity, offset("orders", 0, 7))
    groups.commit(nobody("solo"), offset("orders", 1, 8))
    groups.leave(groups.member("left"))
    after = groups.restarted()
    assert after.listed() == groups.listed()
    for name in groups.listed():
        assert after.describe(name) == groups.describe(name)
        assert after.fetch(name) == groups.fetch(name)
    after.commit(identity, offset("orders", 0, 9))
    assert after.committed("live") == {("orders", 0): 9}


def test_members_are_given_their_session_again_after_a_restart(groups: Groups) -> None:
    identity = groups.member()
    groups.now_ms += 10 * SESSION_MS
    after = groups.restarted()
    assert after.state.groups.next_deadline_ms == after.now_ms + SESSION_MS
    after.commit(identity)
    after.pass_time(SESSION_MS)
    assert after.describe("g").state is GroupState.EMPTY


def test_a_standalone_group_whose_offsets_are_all_gone_is_gone_after_a_restart(groups: Groups) -> None:
    groups.commit(nobody())
    groups.delete_offsets("g", ("orders", 0))
    assert groups.restarted().listed() == []


def test_a_group_that_is_used_again_after_its_tombstone_is_there_after_a_restart(groups: Groups) -> None:
    groups.commit(nobody(), offset("orders", 0, 7))
    groups.delete_group("g")
    groups.commit(nobody(), offset("orders", 1, 8))
    assert groups.restarted().committed() == {("orders", 1): 8}


def test_compaction_of_the_log_changes_nothing(groups: Groups) -> None:
    identity = groups.member()
    for number in range(5):
        groups.commit(identity, offset("orders", 0, number), offset("orders", 1, number))
    groups.commit(nobody("dead"))
    groups.delete_group("dead")
    groups.delete_offsets("g", ("other", 1))
    newest = {encode(record)[0]: record for record in groups.log}
    compacted = Groups(now_ms=groups.now_ms)
    compacted.log = [record for record in newest.values() if encode(record)[1] is not None]
    after = compacted.restarted()
    assert after.listed() == groups.listed() == ["g"]
    assert after.fetch("g") == groups.fetch("g")
    assert after.describe("g") == groups.describe("g")


def test_a_record_that_could_not_be_written_leaves_a_group_that_goes_on(groups: Groups) -> None:
    identity = groups.member()
    groups.now_ms += SESSION_MS
    lost = groups.state.groups.tick(groups.now)
    assert lost.records, "the group became empty, and nobody will ever know"
    assert groups.restarted().describe("g").state is GroupState.STABLE
    again = groups.member()
    assert again.generation > identity.generation
    groups.commit(again)
    assert groups.committed() == {("orders", 0): 7}
