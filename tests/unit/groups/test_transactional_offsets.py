"""Offsets that are committed in transactions: who may commit, when they are visible, and what drops them."""

import pytest

from moldau.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    MoldauError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from moldau.groups.records import CommittedOffset, GroupMetadataRecord, OffsetCommitRecord
from moldau.groups.requests import GroupState, MemberIdentity
from support.groups import RETENTION_MS, SESSION_MS, TOPIC_ID, ShardHarness, offset, standalone_identity, with_identity

PRODUCER, OTHER_PRODUCER = 7, 8
PLACE = ("orders", 0)
UNSTABLE = "UnstableOffsetCommitError"


@pytest.fixture
def groups() -> ShardHarness:
    return ShardHarness()


def commit_error(groups: ShardHarness, identity: MemberIdentity) -> type[MoldauError] | None:
    try:
        groups.commit_transactional(PRODUCER, identity)
    except MoldauError as error:
        assert not groups.state.pending_offsets
        return type(error)
    return None


# Who may commit


def test_a_transaction_creates_a_group_without_members(groups: ShardHarness) -> None:
    assert groups.commit_transactional(PRODUCER, standalone_identity()) == {PLACE: None}
    assert groups.listed() == ["g"]
    assert groups.describe("g").state is GroupState.EMPTY


def test_a_member_of_a_group_that_does_not_exist_has_an_illegal_generation(groups: ShardHarness) -> None:
    identity = MemberIdentity(group_id="g", generation=0, member_id="m", instance_id=None)
    assert commit_error(groups, identity) is IllegalGenerationError
    assert groups.listed() == []


def test_members_commit_with_their_generation(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    generation = identity.generation
    assert commit_error(groups, with_identity(identity, member_id="other")) is UnknownMemberIdError
    assert commit_error(groups, with_identity(identity, member_id="")) is UnknownMemberIdError
    assert commit_error(groups, with_identity(identity, generation=generation - 1)) is IllegalGenerationError
    assert commit_error(groups, with_identity(identity, generation=-1)) is IllegalGenerationError
    assert commit_error(groups, identity) is None


def test_static_members_are_fenced(groups: ShardHarness) -> None:
    identity = groups.join_and_sync(instance_id="rack")
    assert commit_error(groups, with_identity(identity, member_id="old", instance_id="rack")) is FencedInstanceIdError
    assert commit_error(groups, with_identity(identity, instance_id="unknown")) is UnknownMemberIdError
    without_member = MemberIdentity(group_id="g", generation=-1, member_id="", instance_id="rack")
    assert commit_error(groups, without_member) is FencedInstanceIdError
    assert commit_error(groups, identity) is None


def test_producers_without_a_member_may_commit_to_a_group_with_members(groups: ShardHarness) -> None:
    groups.join_and_sync()
    assert commit_error(groups, standalone_identity()) is None


def test_an_empty_group_accepts_any_member_without_a_generation(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.leave(identity)
    assert commit_error(groups, identity) is UnknownMemberIdError
    assert commit_error(groups, with_identity(identity, generation=-1)) is None


def test_a_member_may_commit_before_it_has_synced(groups: ShardHarness) -> None:
    identity = groups.join_alone()
    assert groups.describe("g").state is GroupState.COMPLETING_REBALANCE
    assert commit_error(groups, identity) is None


def test_a_commit_does_not_extend_the_session(groups: ShardHarness) -> None:
    identity = groups.join_and_sync()
    groups.advance(SESSION_MS - 1)
    groups.commit_transactional(PRODUCER, identity)
    groups.advance(1)
    assert groups.describe("g").state is GroupState.EMPTY


def test_partitions_with_long_metadata_are_rejected_alone(groups: ShardHarness) -> None:
    too_long = offset("orders", 1, 5)._replace(metadata="x" * 4097)
    errors = groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), too_long)
    assert errors[PLACE] is None
    assert isinstance(errors["orders", 1], OffsetMetadataTooLargeError)
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 5}


# Visibility


@pytest.mark.parametrize("restart", [False, True])
def test_offsets_are_visible_when_the_transaction_is_committed(groups: ShardHarness, restart: bool) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 2), offset("orders", 1, 3))
    if restart:
        groups = groups.restarted()
    assert groups.committed() == {PLACE: 1}
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == groups.restarted().committed() == {PLACE: 2, ("orders", 1): 3}
    assert not groups.state.pending_offsets


@pytest.mark.parametrize("restart", [False, True])
def test_aborted_offsets_are_dropped(groups: ShardHarness, restart: bool) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 2), offset("orders", 1, 3))
    if restart:
        groups = groups.restarted()
    groups.end_transaction(PRODUCER, commit=False)
    assert groups.committed() == groups.restarted().committed() == {PLACE: 1}
    assert not groups.state.pending_offsets


def test_the_last_commit_of_a_transaction_wins(groups: ShardHarness) -> None:
    for number in (5, 3):
        groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, number))
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 3}


def test_a_marker_ends_only_the_transaction_of_its_producer(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity("a"), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity("b"), offset("orders", 0, 2))
    groups.commit_transactional(OTHER_PRODUCER, standalone_identity("a"), offset("orders", 1, 3))
    groups.end_transaction(PRODUCER, commit=True)
    assert (groups.committed("a"), groups.committed("b")) == ({PLACE: 1}, {PLACE: 2})
    groups.end_transaction(PRODUCER, commit=True)
    groups.end_transaction(OTHER_PRODUCER, commit=False)
    assert (groups.committed("a"), groups.committed("b")) == ({PLACE: 1}, {PLACE: 2})


def test_a_commit_outside_of_the_transaction_that_came_later_stays(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), offset("orders", 1, 6))
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == groups.restarted().committed() == {PLACE: 1, ("orders", 1): 6}


def test_the_transaction_wins_if_it_commits_again_after_another_commit(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 6))
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == groups.restarted().committed() == {PLACE: 6}


@pytest.mark.parametrize("order", [(PRODUCER, OTHER_PRODUCER), (OTHER_PRODUCER, PRODUCER)])
def test_of_two_transactions_the_later_record_wins(groups: ShardHarness, order: tuple[int, int]) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.commit_transactional(OTHER_PRODUCER, standalone_identity(), offset("orders", 0, 6))
    for producer_id in order:
        groups.end_transaction(producer_id, commit=True)
    assert groups.committed() == groups.restarted().committed() == {PLACE: 6}


def test_an_aborted_later_transaction_supersedes_nothing(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.commit_transactional(OTHER_PRODUCER, standalone_identity(), offset("orders", 0, 6))
    groups.end_transaction(OTHER_PRODUCER, commit=False)
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 5}


def test_a_failed_append_leaves_pending_offsets_unchanged(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.fail_writes = True
    for operation in (
        lambda: groups.commit(standalone_identity(), offset("orders", 0, 1)),
        lambda: groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 9)),
        lambda: groups.delete_offsets("g", PLACE),
        lambda: groups.delete_group("g"),
    ):
        with pytest.raises(MoldauError):
            operation()
    groups.fail_writes = False
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 5}


# Stable offsets


def test_partitions_with_pending_offsets_are_unstable(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1), offset("orders", 1, 2))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), offset("orders", 2, 6))
    places = [("orders", partition) for partition in range(4)]
    unstable = {places[0]: UNSTABLE, places[1]: 2, places[2]: UNSTABLE, places[3]: None}
    assert groups.fetch_stable("g", places) == groups.restarted().fetch_stable("g", places) == unstable
    # As in Kafka, a request for all partitions returns only those with a committed offset.
    assert groups.fetch_stable("g") == {places[0]: UNSTABLE, places[1]: 2}
    assert groups.fetch_stable("other", places) == dict.fromkeys(places)
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.fetch_stable("g") == {places[0]: 5, places[1]: 2, places[2]: 6}


def test_a_superseded_offset_is_unstable_until_its_transaction_ends(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    assert groups.fetch_stable("g") == {PLACE: UNSTABLE}
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.fetch_stable("g") == {PLACE: 1}


def test_a_partition_is_unstable_until_all_its_transactions_have_ended(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.commit_transactional(OTHER_PRODUCER, standalone_identity(), offset("orders", 0, 6))
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.fetch_stable("g", [PLACE]) == {PLACE: UNSTABLE}
    groups.end_transaction(OTHER_PRODUCER, commit=False)
    assert groups.fetch_stable("g", [PLACE]) == {PLACE: 5}


# Deletion and expiration


def test_deleted_offsets_are_dropped_from_transactions(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), offset("orders", 1, 6))
    assert groups.delete_offsets("g", PLACE, ("orders", 7)) == {PLACE: None, ("orders", 7): None}
    assert groups.log[-1] == OffsetCommitRecord("g", "orders", 0, None)
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == groups.restarted().committed() == {("orders", 1): 6}


def test_a_deleted_group_is_dropped_from_transactions(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), offset("orders", 1, 6))
    groups.commit_transactional(PRODUCER, standalone_identity("kept"), offset("orders", 0, 7))
    groups.delete_group("g")
    assert groups.log[-3:] == [
        OffsetCommitRecord("g", "orders", 0, None),
        OffsetCommitRecord("g", "orders", 1, None),
        GroupMetadataRecord("g", None),
    ]
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.listed() == groups.restarted().listed() == ["kept"]
    assert groups.committed("kept") == {PLACE: 7}


def test_a_deleted_topic_is_dropped_from_transactions(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 1, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5), offset("other", 0, 6))
    assert set(groups.state.topics()) == {("orders", TOPIC_ID), ("other", TOPIC_ID)}
    assert groups.on_topics_deleted(("orders", TOPIC_ID)) == [
        [OffsetCommitRecord("g", "orders", 1, None), OffsetCommitRecord("g", "orders", 0, None)]
    ]
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {("other", 0): 6}


def test_the_deletion_of_a_topic_keeps_the_offset_of_its_successor(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5)._replace(topic_id=None))
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.advance(1)
    assert groups.on_topics_deleted(("orders", None)) == []
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 1}


def test_pending_offsets_of_a_new_topic_are_not_deleted_with_the_old_topic(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5)._replace(topic_id=None))
    deleted = {("orders", None): groups.now.wall_ms - 1}
    assert groups.state.delete_offsets_of_topics(deleted) is None


def test_partitions_with_pending_offsets_do_not_expire(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1), offset("orders", 1, 2))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 1, None)]
    groups.end_transaction(PRODUCER, commit=False)
    assert groups.expire_offsets() == [OffsetCommitRecord("g", "orders", 0, None), GroupMetadataRecord("g", None)]


def test_a_group_with_pending_offsets_does_not_expire(groups: ShardHarness) -> None:
    groups.leave(groups.join_and_sync())
    groups.commit_transactional(PRODUCER, standalone_identity())
    groups.advance(RETENTION_MS)
    assert groups.expire_offsets() == []
    assert groups.restarted().listed() == ["g"]
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.committed() == {PLACE: 7}


def test_a_group_that_only_aborted_transactions_created_expires(groups: ShardHarness) -> None:
    groups.commit_transactional(PRODUCER, standalone_identity())
    groups.end_transaction(PRODUCER, commit=False)
    assert groups.listed() == ["g"]
    assert groups.expire_offsets() == [GroupMetadataRecord("g", None)]
    assert groups.listed() == []


def test_a_group_with_pending_offsets_survives_its_last_member(groups: ShardHarness) -> None:
    refused = groups.responses[groups.join(requires_known_member_id=True)]
    assert isinstance(refused, MoldauError)
    groups.commit_transactional(PRODUCER, standalone_identity())
    groups.advance(2 * SESSION_MS)
    assert groups.listed() == ["g"]


# Replay


def test_a_tombstone_in_a_transactional_batch_takes_effect_at_once(groups: ShardHarness) -> None:
    groups.commit(standalone_identity(), offset("orders", 0, 1))
    groups.commit_transactional(PRODUCER, standalone_identity(), offset("orders", 0, 5))
    groups.state.apply_transactional(OTHER_PRODUCER, [OffsetCommitRecord("g", "orders", 0, None)], 10)
    assert groups.committed() == {}
    assert not groups.state.pending_offsets


def test_the_offset_keeps_all_its_fields(groups: ShardHarness) -> None:
    committing = offset("orders", 0, 5)._replace(leader_epoch=3, metadata="note")
    groups.commit_transactional(PRODUCER, standalone_identity(), committing)
    groups.end_transaction(PRODUCER, commit=True)
    assert groups.fetch("g") == {PLACE: CommittedOffset(5, 3, "note", groups.now.wall_ms, topic_id=TOPIC_ID)}
