"""GroupCoordinatorShard: commits, offset fetch and deletion, expiration, listing, recovery."""

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
from moldau.groups.group_registry import PENDING_MEMBER_IDS_BYTES_MAX
from moldau.groups.records import NO_EXPIRY, CommittedOffset, GroupMetadataRecord, OffsetCommitRecord
from moldau.groups.requests import (
    CommitRequest,
    GroupState,
    JoinResponse,
    LeavingMember,
    MemberIdentity,
    OffsetToCommit,
)
from moldau.groups.shard import TOMBSTONES_BYTES_MAX
from support.groups import (
    RETENTION_MS,
    SESSION_MS,
    TOPIC_ID,
    ShardHarness,
    offset,
    standalone_identity,
    synced,
    with_identity,
)


@pytest.fixture
def groups() -> ShardHarness:
    return ShardHarness()


# Commits


def test_a_commit_without_membership_creates_an_empty_group(groups: ShardHarness) -> None:
    assert groups.commit(standalone_identity(), offset("orders", 0, 7)) == {("orders", 0): None}
    assert groups.committed() == {("orders", 0): 7}
    described = groups.describe("g")
    assert (described.state, described.protocol_type) == (GroupState.EMPTY, "")


def test_a_commit_is_invisible_until_its_records_are_applied(groups: ShardHarness) -> None:
    request = CommitRequest(identity=standalone_identity(), offsets=(offset("orders", 0, 7),))
    decision = groups.state.commit(groups.now, request, 99)
    assert groups.committed() == {}
    assert groups.listed() == []
    groups.run(decision)
    assert groups.committed() == {("orders", 0): 7}


def test_a_member_commits_offsets(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.commit(identity, offset("orders", 0, 7), offset("orders", 1, 8))
    assert groups.committed() == {("orders", 0): 7, ("orders", 1): 8}


def test_a_commit_rejected_for_all_partitions_writes_nothing(groups: ShardHarness) -> None:
    written = len(groups.log)
    too_large = OffsetToCommit("orders", 0, 7, -1, "x" * 4_097, NO_EXPIRY)
    errors = groups.commit(standalone_identity(), too_large)
    assert isinstance(errors["orders", 0], OffsetMetadataTooLargeError)
    assert len(groups.log) == written
    assert groups.listed() == []


def test_a_commit_of_no_offsets_writes_nothing(groups: ShardHarness) -> None:
    request = CommitRequest(identity=standalone_identity(), offsets=())
    assert groups.submit_and_wait(dict, lambda t: groups.state.commit(groups.now, request, t)) == {}
    assert groups.log == []
    assert groups.listed() == []


def test_a_member_cannot_commit_to_a_missing_group(groups: ShardHarness) -> None:
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
    groups: ShardHarness, differs: dict[str, object], error: type[MoldauError]
) -> None:
    identity = groups.join_and_sync(instance_id="i-1")
    with pytest.raises(error):
        groups.commit(with_identity(identity, **differs))  # type: ignore[arg-type]
    assert groups.committed() == {}


def test_a_member_that_has_not_synced_yet_cannot_commit(groups: ShardHarness) -> None:
    identity = groups.join_alone()
    with pytest.raises(RebalanceInProgressError):
        groups.commit(identity)


def test_a_commit_without_membership_to_an_empty_group_succeeds(groups: ShardHarness) -> None:
    groups.leave(groups.join_and_sync())
    groups.commit(standalone_identity(), offset("orders", 0, 7))
    assert groups.committed() == {("orders", 0): 7}


def test_a_commit_extends_the_session(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    for _ in range(3):
        groups.advance(SESSION_MS - 1)
        groups.commit(identity)
    groups.advance(SESSION_MS)
    with pytest.raises(UnknownMemberIdError):
        groups.commit(identity)


# Reading offsets


def test_fetched_offsets_are_in_request_order(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("b", 0, 1), offset("a", 0, 2))
    found = groups.fetch("g", [("b", 0), ("c", 5), ("a", 0)])
    assert list(found) == [("b", 0), ("c", 5), ("a", 0)]
    assert [None if each is None else each.offset for each in found.values()] == [1, None, 2]


def test_all_offsets_are_sorted_by_partition(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("b", 10, 1), offset("b", 9, 2), offset("a", 0, 3))
    assert list(groups.fetch("g")) == [("a", 0), ("b", 9), ("b", 10)]


def test_a_missing_group_has_no_offsets(groups: ShardHarness) -> None:
    assert groups.fetch("nobody") == {}
    assert groups.fetch("nobody", [("orders", 0)]) == {("orders", 0): None}


def test_a_fetched_offset_has_epoch_and_metadata(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), OffsetToCommit("orders", 0, 7, 3, "here", NO_EXPIRY, TOPIC_ID))
    found = groups.fetch("g")["orders", 0]
    assert found == CommittedOffset(7, 3, "here", groups.now.wall_ms, NO_EXPIRY, TOPIC_ID)


# Deleting offsets


def test_deleting_offsets_writes_tombstones_for_existing_offsets_only(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 7), offset("orders", 1, 8))
    written = len(groups.log)
    errors = groups.delete_offsets("g", ("orders", 0), ("orders", 5), ("orders", 0))
    assert errors == {("orders", 0): None, ("orders", 5): None}
    assert groups.log[written:] == [OffsetCommitRecord("g", "orders", 0, None)]
    assert groups.committed() == {("orders", 1): 8}


def test_offsets_of_subscribed_topics_are_not_deleted(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(topics=["orders"])
    groups.commit(identity, offset("orders", 0, 7), offset("other", 0, 8))
    errors = groups.delete_offsets("g", ("orders", 0), ("other", 0))
    assert isinstance(errors["orders", 0], GroupSubscribedToTopicError)
    assert errors["other", 0] is None
    assert groups.committed() == {("orders", 0): 7}


def test_an_invalid_subscription_protects_all_offsets(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(metadata=b"?")
    groups.commit(identity, offset("other", 0, 8))
    errors = groups.delete_offsets("g", ("other", 0))
    assert isinstance(errors["other", 0], GroupSubscribedToTopicError)


def test_offsets_of_a_non_consumer_group_with_members_are_not_deleted(groups: ShardHarness) -> None:
    identity = groups.join_alone(protocol_type="connect")
    with pytest.raises(NonEmptyGroupError):
        groups.delete_offsets("g", ("orders", 0))
    groups.leave(identity)
    assert groups.delete_offsets("g", ("orders", 0)) == {("orders", 0): None}


def test_deleting_offsets_of_a_missing_group_fails(groups: ShardHarness) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_offsets("nobody", ("orders", 0))


# Deleting groups


def test_an_empty_group_is_deleted_with_all_its_offsets(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
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


def test_a_group_with_members_is_not_deleted(groups: ShardHarness) -> None:
    groups.join_and_sync()
    with pytest.raises(NonEmptyGroupError):
        groups.delete_group("g")
    assert groups.describe("g").state is GroupState.STABLE


def test_deleting_a_missing_group_fails(groups: ShardHarness) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_group("g")
    groups.commit(standalone_identity())
    groups.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        groups.delete_group("g")


def test_a_group_exists_until_its_tombstones_are_written(groups: ShardHarness) -> None:
    groups.commit(standalone_identity())
    decision = groups.state.delete_group("g", 99)
    assert groups.committed() == {("orders", 0): 7}
    groups.run(decision)
    assert groups.committed() == {}


def test_a_pending_member_of_a_deleted_group_joins_as_new(groups: ShardHarness) -> None:
    refused = groups.responses[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    groups.delete_group("g")
    assert isinstance(groups.responses[groups.join(member_id=refused.member_id)], UnknownMemberIdError)
    assert groups.state.groups.next_deadline_ms is None


# Expiry


def test_offsets_without_membership_expire_after_their_commit(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 7))
    groups.advance(RETENTION_MS // 2)
    groups.commit(standalone_identity(), offset("orders", 1, 8))
    groups.advance(RETENTION_MS // 2 - 1)
    assert groups.expire_offsets() == []
    groups.advance(1)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    groups.advance(RETENTION_MS // 2)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 1, None), GroupMetadataRecord("g", None)]
    assert groups.listed() == []
    assert groups.restarted().listed() == []


def test_offsets_expire_after_the_group_became_empty(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(instance_id="i", session_timeout_ms=1_800_000)
    groups.commit(identity)
    groups.advance(RETENTION_MS + 1)
    groups.leave(identity)
    groups.advance(RETENTION_MS - 1)
    assert groups.expire_offsets() == []
    groups.advance(1)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None), GroupMetadataRecord("g", None)]


def test_a_commit_to_an_old_empty_group_is_kept_for_the_retention_time(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.commit(identity)
    groups.leave(identity)
    groups.advance(RETENTION_MS - 1)
    groups.commit(standalone_identity(), offset("orders", 1, 8))
    groups.advance(1)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    assert groups.committed() == {("orders", 1): 8}


def test_the_empty_time_of_a_group_survives_a_restart(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.commit(identity)
    groups.advance(100)
    groups.leave(identity)
    after = groups.restarted()
    after.advance(RETENTION_MS - 1)
    assert after.expire_offsets() == []
    after.advance(1)
    assert len(after.expire_offsets()) == 2


def test_only_offsets_of_unsubscribed_topics_expire(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(topics=["orders"], session_timeout_ms=1_800_000)
    groups.commit(identity, offset("orders", 0, 7), offset("former", 0, 8))
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "former", 0, None)]
    assert groups.describe("g").state is GroupState.STABLE


def test_nothing_expires_with_unknown_subscriptions(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(metadata=b"?", session_timeout_ms=1_800_000)
    groups.commit(identity)
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == []


def test_nothing_expires_in_a_non_consumer_group_with_members(groups: ShardHarness) -> None:
    groups.commit(standalone_identity())
    groups.join_alone(protocol_type="connect", session_timeout_ms=1_800_000)
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == []


def test_nothing_expires_while_a_group_rebalances(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("former", 0, 7))
    groups.join_alone(session_timeout_ms=1_800_000)
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == []


def test_a_clients_expiration_timestamp_wins(groups: ShardHarness) -> None:
    soon, late = groups.now.wall_ms + 100, groups.now.wall_ms + 2 * RETENTION_MS
    groups.commit(
        standalone_identity(), offset("orders", 0, 7, expire_at_ms=soon), offset("orders", 1, 8, expire_at_ms=late)
    )
    groups.advance(100)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == []
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 1, None), GroupMetadataRecord("g", None)]


def test_an_empty_group_without_offsets_gets_a_tombstone(groups: ShardHarness) -> None:
    groups.leave(groups.join_and_sync())
    assert groups.listed() == ["g"]
    assert groups.expire_offsets() == [GroupMetadataRecord("g", None)]
    assert groups.listed() == []


def test_a_group_with_a_pending_member_is_not_deleted(groups: ShardHarness) -> None:
    groups.leave(groups.join_and_sync())
    refused = groups.responses[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    assert groups.expire_offsets() == []
    groups.advance(SESSION_MS)
    assert groups.expire_offsets() == [GroupMetadataRecord("g", None)]


def test_expiration_is_split_into_batches_with_the_group_last(groups: ShardHarness) -> None:
    many = [offset("orders", partition, 1) for partition in range(2_000)]
    groups.commit(standalone_identity("g" * 200), *many)
    groups.commit(standalone_identity("other"))
    groups.advance(RETENTION_MS)
    portions = []
    while (decision := groups.state.expire_offsets(groups.now)) is not None:
        portions.append(groups.run(decision))
    assert len(portions) > 2
    for portion in portions:
        sizes = [len(key) + len(value or b"") + 20 for key, value in map(encode, portion)]
        assert sum(sizes) <= TOMBSTONES_BYTES_MAX
    assert groups.listed() == []
    assert sum(map(len, portions)) == 2_000 + 1 + 2


def test_a_failed_expiration_step_is_retried_without_blocking_others(groups: ShardHarness) -> None:
    groups.commit(standalone_identity("first"), *[offset("orders", partition, 1) for partition in range(2_000)])
    groups.commit(standalone_identity("second"))
    groups.advance(RETENTION_MS)
    lost = groups.state.expire_offsets(groups.now)
    assert lost is not None
    assert {record.group_id for record in lost.records} == {"first"}
    groups.expire_offsets()
    assert groups.listed() == []


def test_expiration_continues_with_a_group_until_it_is_done(groups: ShardHarness) -> None:
    groups.commit(standalone_identity("big"), *[offset("orders", partition, 1) for partition in range(2_000)])
    groups.advance(RETENTION_MS)
    groups.commit(standalone_identity("fresh"))
    groups.expire_offsets()
    assert groups.listed() == ["fresh"]


def test_no_offset_gets_two_tombstones(groups: ShardHarness) -> None:
    for name in ("a", "b"):
        groups.commit(standalone_identity(name), *[offset("orders", partition, 1) for partition in range(1_000)])
    groups.advance(RETENTION_MS)
    forgotten = groups.expire_offsets()
    assert len(forgotten) == len(set(forgotten)) == 2_002


def test_offsets_of_deleted_topics_are_deleted_in_all_groups(groups: ShardHarness) -> None:
    identity = groups.join_and_sync("live")
    groups.commit(identity, offset("orders", 0, 7))
    groups.commit(standalone_identity("solo"), offset("orders", 3, 8), offset("other", 0, 9))
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) == [
        [OffsetCommitRecord("live", "orders", 0, None), OffsetCommitRecord("solo", "orders", 3, None)]
    ]
    assert groups.committed("live") == {}
    assert groups.committed("solo") == {("other", 0): 9}
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) == []


def test_a_recreated_topic_keeps_its_offsets(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 7))
    assert groups.on_topics_deleted(("orders", UUID(int=99)), ("orders", None)) == []
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) != []


def test_deletion_of_topic_offsets_is_split_into_batches(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), *[offset("orders", partition, 1) for partition in range(2_000)])
    portions = groups.on_topics_deleted(("orders", TOPIC_ID))
    assert len(portions) > 1
    assert sum(map(len, portions)) == 2_000
    assert groups.committed() == {}


def test_an_expiration_round_covers_all_groups_in_steps(groups: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.groups.shard.OFFSETS_PER_EXPIRATION_PASS", 10)
    for number in range(30):
        groups.commit(standalone_identity(f"fresh-{number}"), offset("orders", 0, 1), offset("orders", 1, 1))
    groups.commit(standalone_identity("old"), offset("orders", 0, 1, expire_at_ms=groups.now.wall_ms + 1))
    groups.advance(2)
    for _ in range(2):
        decisions = 0
        while (decision := groups.state.expire_offsets(groups.now)) is not None:
            groups.run(decision)
            decisions += 1
        assert decisions >= 8
        assert "old" not in groups.listed()
        assert len(groups.listed()) == 30


def test_subscriptions_are_not_decoded_while_nothing_expires(
    groups: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = groups.join_and_sync(topics=["other"])
    groups.commit(identity)
    monkeypatch.setattr(ClassicGroupMetadata, "subscribed_topics", lambda _: pytest.fail("nobody needs to know"))
    assert groups.expire_offsets() == []
    monkeypatch.undo()
    groups.now_ms += RETENTION_MS
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None)]


# Groups that are not there


def test_members_of_a_missing_group_are_unknown(groups: ShardHarness) -> None:
    identity = MemberIdentity(group_id="gone", generation=1, member_id="m", instance_id=None)
    state, now = groups.state, groups.now
    assert isinstance(groups.responses[groups.join("gone", member_id="m")], UnknownMemberIdError)
    with pytest.raises(UnknownMemberIdError):
        state.groups.heartbeat(now, identity, 90)
    with pytest.raises(UnknownMemberIdError):
        state.groups.sync(now, synced(identity), 91)
    reply = groups.submit_and_wait(tuple, lambda t: state.groups.leave(now, "gone", [LeavingMember("m", "i")], t))
    [left] = reply
    assert (left.member_id, left.instance_id) == ("m", "i")
    assert isinstance(left.error, UnknownMemberIdError)
    assert groups.listed() == []


def test_describing_a_missing_group_fails(groups: ShardHarness) -> None:
    with pytest.raises(GroupIdNotFoundError):
        groups.describe("nobody")


def test_a_rejected_join_leaves_no_group(groups: ShardHarness) -> None:
    request_id = groups.join(session_timeout_ms=1)
    assert isinstance(groups.responses[request_id], InvalidSessionTimeoutError)
    request_id = groups.join(protocol_type="")
    assert isinstance(groups.responses[request_id], InconsistentGroupProtocolError)
    assert groups.listed() == []
    assert groups.log == []


def test_an_expired_pending_member_leaves_no_group(groups: ShardHarness) -> None:
    groups.join(requires_known_member_id=True)
    assert groups.listed() == ["g"]
    groups.advance(SESSION_MS)
    assert groups.listed() == []
    assert groups.state.groups.next_deadline_ms is None
    assert groups.log == []


def test_a_leaving_pending_member_leaves_no_group(groups: ShardHarness) -> None:
    refused = groups.responses[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MemberIdRequiredError)
    groups.leave(MemberIdentity(group_id="g", generation=-1, member_id=refused.member_id, instance_id=None))
    assert groups.listed() == []


def room_for_ids(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.groups.group_registry._PENDING_MEMBER_ID_OVERHEAD_BYTES", 1_000)
    monkeypatch.setattr("moldau.groups.group_registry.PENDING_MEMBER_IDS_BYTES_MAX", count * 1_000 + 500)


def test_the_oldest_pending_member_ids_expire_above_the_limit(
    groups: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_ids(3, monkeypatch)
    groups.join("committed", requires_known_member_id=True)
    groups.commit(standalone_identity("committed"))
    groups.join("joined", requires_known_member_id=True)
    groups.join("joined", instance_id="i")
    ids: list[str] = []
    for name in "abcdde":
        sent_away = groups.responses[groups.join(name, requires_known_member_id=True)]
        assert isinstance(sent_away, MemberIdRequiredError)
        ids.append(sent_away.member_id)
    assert groups.listed() == ["committed", "joined", "d", "e"]
    assert len(groups.state.groups._deadlines) == 3, "of the members, and of who is to come"
    assert len(groups.state.groups._pending_member_ids) == 3
    assert isinstance(groups.responses[groups.join("c", member_id=ids[2])], UnknownMemberIdError)
    back = groups.join("d", member_id=ids[3])
    assert back not in groups.responses, "it is in, and waits"


def test_the_limit_of_pending_member_ids_is_in_bytes(groups: ShardHarness) -> None:
    for number in range(300):
        groups.join(f"{number:03}" + "x" * 32_000, requires_known_member_id=True)
    assert sum(map(len, groups.listed())) <= PENDING_MEMBER_IDS_BYTES_MAX
    assert len(groups.listed()) > 100


def test_an_expired_pending_member_id_does_not_block_the_join(
    groups: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_ids(1, monkeypatch)
    identity = groups.join_and_sync()
    groups.join(requires_known_member_id=True)
    waiting = groups.join(member_id=identity.member_id)
    groups.advance(0)
    assert waiting not in groups.responses, "the one to come is waited for"
    groups.join("another", requires_known_member_id=True)
    groups.advance(0)
    assert isinstance(groups.responses[waiting], JoinResponse)


def test_a_rejected_join_keeps_a_group_with_offsets(groups: ShardHarness) -> None:
    groups.commit(standalone_identity())
    groups.join(session_timeout_ms=1)
    assert groups.committed() == {("orders", 0): 7}


def test_thousands_of_joins_and_leaves_leak_nothing(groups: ShardHarness) -> None:
    for number in range(2_000):
        groups.leave(groups.join_and_sync(f"group-{number}"))
    groups.expire_offsets()
    assert groups.listed() == []
    assert groups.state.groups.next_deadline_ms is None
    assert len(groups.state.groups._deadlines._heap) < 100
    assert not groups.state.groups._groups_in_log
    assert not groups.state.groups._pending_member_ids


# Looking at groups


def test_list_filters_ignore_case(groups: ShardHarness) -> None:
    groups.join_and_sync("live")
    groups.commit(standalone_identity("solo"))
    assert groups.listed() == ["live", "solo"]
    assert groups.listed(states=["STABLE "]) == ["live"]
    assert groups.listed(states=["Empty", "Stable"]) == ["live", "solo"]
    assert groups.listed(types=["Classic"]) == ["live", "solo"]
    assert groups.listed(["empty"], ["classic"]) == ["solo"]


@pytest.mark.parametrize(
    ("states", "types"),
    [(["nonsense"], []), ([""], []), ([], ["nonsense"]), ([], ["consumer"]), ([], [""]), ([], [" classic"])],
)
def test_unknown_list_filters_match_nothing(groups: ShardHarness, states: list[str], types: list[str]) -> None:
    groups.commit(standalone_identity())
    assert groups.listed(states, types) == []


# Time


def test_a_tick_writes_records_of_one_group_only(groups: ShardHarness) -> None:
    for name in ("a", "b", "c"):
        groups.join_and_sync(name)
    groups.now_ms += SESSION_MS + 1
    decided = []
    while (due_ms := groups.state.groups.next_deadline_ms) is not None and due_ms <= groups.now_ms:
        records = groups.run(groups.state.groups.tick(groups.now))
        assert len({record.group_id for record in records}) <= 1
        decided += [record.group_id for record in records]
    assert decided == ["a", "b", "c"]
    assert groups.listed(states=["Empty"]) == ["a", "b", "c"]


def test_the_next_deadline_follows_applied_records(groups: ShardHarness) -> None:
    groups.join_and_sync(session_timeout_ms=3 * SESSION_MS)
    assert groups.state.groups.next_deadline_ms == groups.now_ms + 3 * SESSION_MS


def test_a_tick_before_any_deadline_does_nothing(groups: ShardHarness) -> None:
    groups.join_and_sync()
    decision = groups.state.groups.tick(groups.now)
    assert (list(decision.records), list(decision.response)) == ([], [])


# Restarts


def test_groups_and_offsets_are_the_same_after_a_restart(groups: ShardHarness) -> None:
    identity = groups.join_and_sync("live", instance_id="i")
    groups.commit(identity, offset("orders", 0, 7))
    groups.commit(standalone_identity("solo"), offset("orders", 1, 8))
    groups.leave(groups.join_and_sync("left"))
    after = groups.restarted()
    assert after.listed() == groups.listed()
    for name in groups.listed():
        assert after.describe(name) == groups.describe(name)
        assert after.fetch(name) == groups.fetch(name)
    after.commit(identity, offset("orders", 0, 9))
    assert after.committed("live") == {("orders", 0): 9}


def test_sessions_restart_after_a_restart(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.now_ms += 10 * SESSION_MS
    after = groups.restarted()
    assert after.state.groups.next_deadline_ms == after.now_ms + SESSION_MS
    after.commit(identity)
    after.advance(SESSION_MS)
    assert after.describe("g").state is GroupState.EMPTY


def test_a_group_without_offsets_and_record_is_gone_after_a_restart(groups: ShardHarness) -> None:
    groups.commit(standalone_identity())
    groups.delete_offsets("g", ("orders", 0))
    assert groups.restarted().listed() == []


def test_a_group_reused_after_its_tombstone_survives_a_restart(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 7))
    groups.delete_group("g")
    groups.commit(standalone_identity(), offset("orders", 1, 8))
    assert groups.restarted().committed() == {("orders", 1): 8}


def test_compaction_does_not_change_the_state(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    for number in range(5):
        groups.commit(identity, offset("orders", 0, number), offset("orders", 1, number))
    groups.commit(standalone_identity("dead"))
    groups.delete_group("dead")
    groups.delete_offsets("g", ("other", 1))
    after = groups.compacted()
    assert len(after.log) < len(groups.log)
    assert after.listed() == groups.listed() == ["g"]
    assert after.fetch("g") == groups.fetch("g")
    assert after.describe("g") == groups.describe("g")


def test_a_group_continues_after_a_failed_write(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.now_ms += SESSION_MS
    lost = groups.state.groups.tick(groups.now)
    assert lost.records, "the group became empty, and nobody will ever know"
    assert groups.restarted().describe("g").state is GroupState.STABLE
    again = groups.join_and_sync()
    assert again.generation > identity.generation
    groups.commit(again)
    assert groups.committed() == {("orders", 0): 7}
