"""Offsets that are committed in transactions: TxnOffsetCommit, AddOffsetsToTxn, and OffsetFetch with require_stable."""

from collections.abc import Iterator
from typing import Any

import pytest
from broker_under_test import Broker

from moldau.records.batch import Batch, split
from support.raw_group_member import DELETE_GROUPS, OFFSET_DELETE, RawGroupMember
from support.raw_group_member import codes_of as codes
from support.topics import Topics, unique
from support.transaction_wire import (
    ABORTABLE,
    INVALID_EPOCH,
    INVALID_MAPPING,
    INVALID_STATE,
    NONE,
    UNKNOWN_TOPIC,
    WRITE_MARKERS,
)
from support.transactional_offsets import NO_OFFSET, UNSTABLE, TransactionalGroup
from support.wire import WireClient, end_offset, fetch, wait_until

METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP, UNKNOWN_MEMBER, GROUP_NOT_FOUND = 12, 22, 24, 25, 69
FENCED_INSTANCE = 82
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def group(client: WireClient, topics: Topics) -> TransactionalGroup:
    return TransactionalGroup(client, topics.create(partitions=3))


@pytest.fixture
def member(node: Broker, group: TransactionalGroup) -> Iterator[RawGroupMember]:
    """The only member of the group, with a group.instance.id."""
    joined = RawGroupMember(node.bootstrap, group.id, group_instance_id="rack")
    with joined.join_alone():
        yield joined


# Committing and aborting


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_committed_transactions_make_offsets_visible(group: TransactionalGroup, version: int, commit: bool) -> None:
    group.commit_plain({0: 1})
    producer = group.transaction.init()
    if version < 5:
        group.add(producer)
    assert group.commit_codes(producer, {0: 5, 1: 6}, version=version) == [NONE, NONE]
    assert group.offsets(0, 1, 2, stable=False) == [1, NO_OFFSET, NO_OFFSET]
    assert group.offsets(0, 1, 2) == [UNSTABLE, UNSTABLE, NO_OFFSET]
    group.end(producer, commit=commit, version=version if version >= 5 else 4)
    assert group.offsets(0, 1, 2) == ([5, 6, NO_OFFSET] if commit else [1, NO_OFFSET, NO_OFFSET])


def test_with_tv2_the_commit_adds_the_group_to_the_transaction(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5})
    (added,) = group.transaction.describe()["topics"]
    assert (added["topic"], len(added["partitions"])) == (OFFSETS_TOPIC, 1)
    assert group.transaction.describe()["transaction_state"] == "Ongoing"


def test_transactions_follow_each_other(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    for number in range(4):
        group.commit(producer, {0: number})
        group.commit(producer, {0: number + 10, 1: number})
        producer = group.end(producer, commit=number % 2 == 0)
    assert group.offsets(0, 1) == [12, 2]


def test_several_groups_in_one_transaction(group: TransactionalGroup) -> None:
    other = TransactionalGroup(group.client, group.topic)
    other.transaction = group.transaction
    producer = group.transaction.init()
    group.commit(producer, {0: 5})
    other.commit(producer, {0: 6})
    assert group.offsets(0) == other.offsets(0) == [UNSTABLE]
    group.end(producer, commit=True)
    assert (group.offsets(0), other.offsets(0)) == ([5], [6])


@pytest.mark.parametrize("version", [7, 8, 9])
def test_pending_offsets_are_unstable(group: TransactionalGroup, version: int) -> None:
    group.commit(group.transaction.init(), {0: 5})
    assert group.offsets(0, 1, version=version) == [UNSTABLE, NO_OFFSET]
    assert group.offsets(0, 1, stable=False, version=version) == [NO_OFFSET, NO_OFFSET]


def test_all_offsets_of_a_group_are_those_that_were_committed(group: TransactionalGroup) -> None:
    group.commit_plain({0: 1, 1: 2})
    group.commit(group.transaction.init(), {0: 5, 2: 6})
    assert group.all_offsets() == {0: UNSTABLE, 1: 2}
    assert group.all_offsets(stable=False) == {0: 1, 1: 2}


# The order of commits


def test_a_later_commit_outside_of_the_transaction_stays(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5, 1: 6})
    group.commit_plain({0: 1})
    assert group.offsets(0, stable=False) == [1]
    assert group.offsets(0) == [UNSTABLE]
    group.end(producer, commit=True)
    assert group.offsets(0, 1) == [1, 6]


def test_an_earlier_commit_outside_of_the_transaction_is_replaced(group: TransactionalGroup) -> None:
    group.commit_plain({0: 9})
    producer = group.transaction.init()
    group.commit(producer, {0: 5})
    group.end(producer, commit=True)
    assert group.offsets(0) == [5]


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_of_two_transactions_the_later_commit_wins(group: TransactionalGroup, first_ends_first: bool) -> None:
    other = TransactionalGroup(group.client, group.topic)
    other.id = group.id
    first, second = group.transaction.init(), other.transaction.init()
    group.commit(first, {0: 5})
    other.commit(second, {0: 6})
    if first_ends_first:
        group.end(first, commit=True)
        assert group.offsets(0, stable=False) == [5]
    other.end(second, commit=True)
    if not first_ends_first:
        group.end(first, commit=True)
    assert group.offsets(0) == [6]


# Deletion


def test_deleted_offsets_are_dropped_from_the_transaction(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5, 1: 6})
    topics = [{"name": group.topic, "partitions": [{"partition_index": 0}]}]
    deleted = group.client.request(OFFSET_DELETE, 0, {"group_id": group.id, "topics": topics})
    assert (deleted["error_code"], codes(deleted)) == (NONE, [NONE])
    assert group.offsets(0, 1) == [NO_OFFSET, UNSTABLE]
    group.end(producer, commit=True)
    assert group.offsets(0, 1) == [NO_OFFSET, 6]


def test_a_deleted_group_is_dropped_from_the_transaction(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5})
    (deleted,) = group.client.request(DELETE_GROUPS, 2, {"groups_names": [group.id]})["results"]
    assert deleted["error_code"] == NONE
    group.end(producer, commit=True)
    assert group.offsets(0) == [NO_OFFSET]
    (deleted,) = group.client.request(DELETE_GROUPS, 2, {"groups_names": [group.id]})["results"]
    assert deleted["error_code"] == GROUP_NOT_FOUND


def test_a_deleted_topic_is_dropped_from_the_transaction(group: TransactionalGroup, topics: Topics) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5})
    topics.admin.delete_topics([group.topic])[group.topic].result(20)
    wait_until(lambda: group.offsets(0) == [NO_OFFSET], "the pending offset is dropped")
    group.end(producer, commit=True)
    assert group.all_offsets() == {}


# Errors


@pytest.mark.parametrize("version", range(6))
def test_unknown_partitions_are_rejected_alone(group: TransactionalGroup, version: int) -> None:
    producer = group.transaction.init()
    if version < 5:
        group.add(producer)
    assert group.commit_codes(producer, {0: 5, 7: 6}, version=version) == [NONE, UNKNOWN_TOPIC]
    unknown = [{"name": unique(), "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    assert group.commit_codes(producer, {}, version=version, topics=unknown) == [UNKNOWN_TOPIC]


def test_long_metadata_is_rejected(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    assert group.commit_codes(producer, {0: 5}, metadata="x" * 4096) == [NONE]
    assert group.commit_codes(producer, {0: 5, 1: 5}, metadata="x" * 4097) == [METADATA_TOO_LARGE] * 2


def test_an_empty_group_id_is_rejected(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    assert group.commit_codes(producer, {0: 5}, group_id="") == [INVALID_GROUP]


@pytest.mark.parametrize(("version", "code"), [(0, INVALID_STATE), (3, INVALID_STATE), (4, ABORTABLE)])
def test_before_tv2_the_group_must_be_in_the_transaction(group: TransactionalGroup, version: int, code: int) -> None:
    producer = group.transaction.init()
    assert group.commit_codes(producer, {0: 5, 1: 6}, version=version) == [code, code]
    group.transaction.add(producer, (group.topic, 0))
    assert group.commit_codes(producer, {0: 5}, version=version) == [code]
    group.add(producer)
    assert group.commit_codes(producer, {0: 5}, version=version) == [NONE]


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_other_producers_are_rejected(group: TransactionalGroup, version: int) -> None:
    producer_id, epoch = group.transaction.init()
    group.add((producer_id, epoch))
    assert group.commit_codes((producer_id + 1_000, epoch), {0: 5}, version=version) == [INVALID_MAPPING]
    assert group.commit_codes((producer_id, epoch + 1), {0: 5}, version=version) == [INVALID_EPOCH]
    unknown = group.commit_codes((producer_id, epoch), {0: 5}, version=version, transactional_id=unique())
    assert unknown == [INVALID_MAPPING]
    assert group.offsets(0) == [NO_OFFSET]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_of_an_ended_transaction_is_rejected(group: TransactionalGroup, version: int) -> None:
    old = group.transaction.init()
    group.commit(old, {0: 5})
    group.end(old, commit=True)
    assert group.commit_codes(old, {0: 9}, version=version) == [INVALID_EPOCH]
    assert group.offsets(0) == [5]


def test_a_fenced_producer_is_rejected(group: TransactionalGroup) -> None:
    old = group.transaction.init()
    group.commit(old, {0: 5})
    new = group.transaction.init()
    assert group.offsets(0) == [NO_OFFSET], "the new producer aborted the transaction"
    assert group.commit_codes(old, {0: 9}) == [INVALID_EPOCH]
    group.commit(new, {0: 6})
    assert group.commit_codes(old, {0: 9}) == [INVALID_EPOCH], "also while the new transaction is open here"
    group.end(new, commit=True)
    assert group.offsets(0) == [6]


def test_members_commit_with_their_generation(group: TransactionalGroup, member: RawGroupMember) -> None:
    producer = group.transaction.init()

    def code(**changed: Any) -> int:
        sender = {"generation_id": member.generation, "member_id": member.member_id, "group_instance_id": "rack"}
        (found,) = group.commit_codes(producer, {0: 5}, **{**sender, **changed})
        return found

    assert code() == NONE
    assert code(group_instance_id=None) == NONE
    assert code(generation_id=member.generation + 1) == ILLEGAL_GENERATION
    assert code(generation_id=-1) == ILLEGAL_GENERATION
    assert code(member_id="other", group_instance_id=None) == UNKNOWN_MEMBER
    assert code(member_id="other") == FENCED_INSTANCE
    assert code(group_instance_id="unknown") == UNKNOWN_MEMBER
    assert code(member_id="", group_instance_id=None) == UNKNOWN_MEMBER
    assert code(generation_id=-1, member_id="", group_instance_id=None) == NONE, "producers need not be members"


@pytest.mark.parametrize("version", [0, 2])
def test_older_versions_have_no_member(group: TransactionalGroup, member: RawGroupMember, version: int) -> None:
    producer = group.transaction.init()
    group.add(producer)
    assert group.commit_codes(producer, {0: 5}, version=version) == [NONE]


def test_a_member_of_a_missing_group_has_an_illegal_generation(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    assert group.commit_codes(producer, {0: 5}, generation_id=1, member_id="m") == [ILLEGAL_GENERATION]
    assert group.commit_codes(producer, {0: 5}, generation_id=-1, member_id="m") == [NONE]


# The log


def batches_of(group: TransactionalGroup) -> list[Batch]:
    """The batches of the group's partition."""
    (added,) = group.transaction.describe()["topics"]
    (partition,) = added["partitions"]
    end = end_offset(group.client, OFFSETS_TOPIC, partition)
    found: list[Batch] = []
    while not found or found[-1].next_offset < end:
        offset = found[-1].next_offset if found else 0
        found += split(fetch(group.client, OFFSETS_TOPIC, offset, partition=partition)["records"])
    return found


def test_the_batch_belongs_to_the_producer(group: TransactionalGroup) -> None:
    producer = group.transaction.init()
    group.commit(producer, {0: 5, 1: 6})
    batch = batches_of(group)[-1]
    assert (batch.producer_id, batch.producer_epoch) == producer
    assert (batch.is_transactional, batch.is_control, batch.count) == (True, False, 2)


def test_a_marker_of_an_administrator_ends_the_transaction_here(group: TransactionalGroup) -> None:
    producer_id, epoch = producer = group.transaction.init()
    group.add(producer)
    group.commit(producer, {0: 5}, version=4)
    (added,) = group.transaction.describe()["topics"]
    topics = [{"name": OFFSETS_TOPIC, "partition_indexes": added["partitions"]}]
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": topics,
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    (written,) = group.client.request(WRITE_MARKERS, 1, {"markers": [marker]})["markers"]
    assert [each["error_code"] for topic in written["topics"] for each in topic["partitions"]] == [NONE]
    assert group.offsets(0) == [NO_OFFSET]
