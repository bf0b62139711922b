"""Committed offsets by group, topic and partition: what a commit writes, and when an offset has had its time."""

from uuid import UUID

import pytest

from moldau.errors import OffsetMetadataTooLargeError
from moldau.groups.formats import decode, encode
from moldau.groups.offset_metadata_manager import (
    OffsetExpirationCondition,
    OffsetMetadataManager,
    build_commit_records,
)
from moldau.groups.records import NO_EXPIRY, CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import OffsetToCommit

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)


def committed(offset: int = 1, *, topic_id: UUID | None = None) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 1_000, NO_EXPIRY, topic_id)


def test_the_newest_commit_of_a_partition_counts() -> None:
    offsets = OffsetMetadataManager()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(1)))
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(2)))
    assert offsets.get("g", "t", 0) == committed(2)


@pytest.mark.parametrize("place", [("other", "t", 0), ("g", "other", 0), ("g", "t", 1)])
def test_groups_topics_and_partitions_are_kept_apart(place: tuple[str, str, int]) -> None:
    offsets = OffsetMetadataManager()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed()))
    assert offsets.get(*place) is None


def test_a_tombstone_forgets_one_offset_and_the_last_one_the_group() -> None:
    offsets = OffsetMetadataManager()
    for partition in (0, 1):
        offsets.apply(OffsetCommitRecord("g", "t", partition, committed()))
    offsets.apply(OffsetCommitRecord("g", "t", 0, None))
    assert list(offsets.offsets_of_group("g")) == [(("t", 1), committed())]
    offsets.apply(OffsetCommitRecord("g", "t", 1, None))
    assert not offsets.has_any("g")
    assert list(offsets.offsets_of_group("g")) == []


def test_a_tombstone_for_what_is_not_there_changes_nothing() -> None:
    offsets = OffsetMetadataManager()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed()))
    for place in (("g", "t", 5), ("g", "other", 0), ("other", "t", 0)):
        offsets.apply(OffsetCommitRecord(*place, None))
    assert list(offsets.offsets_of_group("g")) == [(("t", 0), committed())]


def test_offsets_of_a_topic_are_not_those_of_another_with_the_same_name() -> None:
    offsets = OffsetMetadataManager()
    offsets.apply(OffsetCommitRecord("known", "t", 0, committed(topic_id=FIRST_ID)))
    offsets.apply(OffsetCommitRecord("newer", "t", 0, committed(topic_id=SECOND_ID)))
    offsets.apply(OffsetCommitRecord("old", "t", 3, committed()))
    offsets.apply(OffsetCommitRecord("known", "u", 0, committed(topic_id=FIRST_ID)))
    assert list(offsets.partitions_of_topic(("t", FIRST_ID))) == [("known", 0)]
    assert list(offsets.partitions_of_topic(("t", SECOND_ID))) == [("newer", 0)]
    assert list(offsets.partitions_of_topic(("t", None))) == [("old", 3)]
    assert list(offsets.topics()) == [("t", FIRST_ID), ("t", SECOND_ID), ("t", None), ("u", FIRST_ID)]


def test_a_topic_is_known_by_the_newest_commits_and_no_longer_than_there_are_any() -> None:
    offsets = OffsetMetadataManager()
    for partition in (0, 1):
        offsets.apply(OffsetCommitRecord("g", "t", partition, committed(topic_id=FIRST_ID)))
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(2, topic_id=FIRST_ID)))
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(3, topic_id=SECOND_ID)))
    assert list(offsets.partitions_of_topic(("t", FIRST_ID))) == [("g", 1)]
    assert list(offsets.partitions_of_topic(("t", SECOND_ID))) == [("g", 0)]
    offsets.apply(OffsetCommitRecord("g", "t", 1, None))
    offsets.apply(OffsetCommitRecord("g", "t", 1, None))
    assert list(offsets.topics()) == [("t", SECOND_ID)]
    offsets.apply(OffsetCommitRecord("g", "t", 0, None))
    assert list(offsets.topics()) == []
    assert list(offsets.partitions_of_topic(("nobody's", FIRST_ID))) == []


def test_a_commit_is_written_with_the_time_it_was_made_at() -> None:
    asked = OffsetToCommit("t", 0, 7, 3, "how far", NO_EXPIRY, FIRST_ID)
    records, errors = build_commit_records("g", [asked], 1_000, 10)
    assert errors == {("t", 0): None}
    assert records == [
        OffsetCommitRecord("g", "t", 0, CommittedOffset(7, 3, "how far", 1_000, NO_EXPIRY, FIRST_ID))
    ]


def test_no_metadata_is_empty_metadata_and_an_unknown_epoch_is_none() -> None:
    records, _ = build_commit_records("g", [OffsetToCommit("t", 0, 7, -9, None, 5_000)], 1_000, 10)
    assert records == [OffsetCommitRecord("g", "t", 0, CommittedOffset(7, -1, "", 1_000, 5_000))]


def test_a_commit_with_an_expiry_of_its_own_is_what_its_record_can_hold() -> None:
    asked = OffsetToCommit("t", 0, 7, 3, "m", 5_000, FIRST_ID)
    [record], _ = build_commit_records("g", [asked], 1_000, 10)
    assert decode(*encode(record)) == record


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [("", True), ("x" * 10, True), ("x" * 11, False), ("é" * 10, True), ("😀" * 5, True), ("😀" * 6, False)],
)
def test_metadata_is_measured_in_the_characters_of_java(metadata: str, fits: bool) -> None:
    records, errors = build_commit_records(
        "g", [OffsetToCommit("t", 0, 7, -1, metadata, NO_EXPIRY)], 1_000, 10
    )
    assert isinstance(errors["t", 0], OffsetMetadataTooLargeError) is not fits
    assert len(records) == fits


def test_metadata_of_one_partition_that_is_too_large_does_not_hinder_the_others() -> None:
    asked = [OffsetToCommit("t", number, 7, -1, "x" * 10 * number, NO_EXPIRY) for number in range(3)]
    records, errors = build_commit_records("g", asked, 1_000, 10)
    assert [record.partition for record in records] == [0, 1]
    assert list(errors) == [("t", 0), ("t", 1), ("t", 2)]
    assert isinstance(errors["t", 2], OffsetMetadataTooLargeError)


@pytest.mark.parametrize(("now_ms", "expired"), [(1_099, False), (1_100, True), (5_000, True), (0, False)])
def test_an_offset_is_kept_for_the_retention_time(now_ms: int, expired: bool) -> None:
    assert OffsetExpirationCondition(retention_ms=100).is_expired(committed(), now_ms) is expired


@pytest.mark.parametrize(("now_ms", "expired"), [(4_999, False), (5_000, True)])
def test_an_expiry_of_its_own_wins_over_the_retention_time(now_ms: int, expired: bool) -> None:
    own = CommittedOffset(1, -1, "", 1_000, expire_timestamp_ms=5_000)
    assert OffsetExpirationCondition(retention_ms=100).is_expired(own, now_ms) is expired
    assert OffsetExpirationCondition(retention_ms=1_000_000).is_expired(own, now_ms) is expired
