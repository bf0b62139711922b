"""Committed offsets: records of a commit, lookup by group and topic, expiration."""

from uuid import UUID

import pytest

from moldau.errors import OffsetMetadataTooLargeError
from moldau.groups.committed_offsets import CommittedOffsets, OffsetExpirationCondition, build_commit_records
from moldau.groups.formats import decode, encode
from moldau.groups.records import NO_EXPIRY, CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import OffsetToCommit

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)


def committed(offset: int = 1, *, topic_id: UUID | None = None) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 1_000, NO_EXPIRY, topic_id)


def test_the_latest_commit_of_a_partition_wins() -> None:
    offsets = CommittedOffsets()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(1)))
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed(2)))
    assert offsets.get("g", "t", 0) == committed(2)


@pytest.mark.parametrize("place", [("other", "t", 0), ("g", "other", 0), ("g", "t", 1)])
def test_offsets_are_separate_per_group_topic_and_partition(place: tuple[str, str, int]) -> None:
    offsets = CommittedOffsets()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed()))
    assert offsets.get(*place) is None


def test_tombstones_delete_offsets() -> None:
    offsets = CommittedOffsets()
    for partition in (0, 1):
        offsets.apply(OffsetCommitRecord("g", "t", partition, committed()))
    offsets.apply(OffsetCommitRecord("g", "t", 0, None))
    assert list(offsets.offsets_of_group("g")) == [(("t", 1), committed())]
    offsets.apply(OffsetCommitRecord("g", "t", 1, None))
    assert not offsets.has_any("g")
    assert list(offsets.offsets_of_group("g")) == []


def test_a_tombstone_of_a_missing_offset_changes_nothing() -> None:
    offsets = CommittedOffsets()
    offsets.apply(OffsetCommitRecord("g", "t", 0, committed()))
    for place in (("g", "t", 5), ("g", "other", 0), ("other", "t", 0)):
        offsets.apply(OffsetCommitRecord(*place, None))
    assert list(offsets.offsets_of_group("g")) == [(("t", 0), committed())]


def test_topics_of_the_same_name_have_separate_offsets() -> None:
    offsets = CommittedOffsets()
    offsets.apply(OffsetCommitRecord("known", "t", 0, committed(topic_id=FIRST_ID)))
    offsets.apply(OffsetCommitRecord("newer", "t", 0, committed(topic_id=SECOND_ID)))
    offsets.apply(OffsetCommitRecord("old", "t", 3, committed()))
    offsets.apply(OffsetCommitRecord("known", "u", 0, committed(topic_id=FIRST_ID)))
    assert list(offsets.partitions_of_topic(("t", FIRST_ID))) == [("known", 0)]
    assert list(offsets.partitions_of_topic(("t", SECOND_ID))) == [("newer", 0)]
    assert list(offsets.partitions_of_topic(("t", None))) == [("old", 3)]
    assert list(offsets.topics()) == [("t", FIRST_ID), ("t", SECOND_ID), ("t", None), ("u", FIRST_ID)]


def test_a_topic_is_listed_while_it_has_offsets() -> None:
    offsets = CommittedOffsets()
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


def test_a_commit_record_has_the_commit_time() -> None:
    asked = OffsetToCommit("t", 0, 7, 3, "how far", NO_EXPIRY, FIRST_ID)
    records, errors = build_commit_records("g", [asked], 1_000, 10)
    assert errors == {("t", 0): None}
    assert records == [OffsetCommitRecord("g", "t", 0, CommittedOffset(7, 3, "how far", 1_000, NO_EXPIRY, FIRST_ID))]


def test_missing_metadata_and_leader_epoch_have_defaults() -> None:
    records, _ = build_commit_records("g", [OffsetToCommit("t", 0, 7, -9, None, 5_000)], 1_000, 10)
    assert records == [OffsetCommitRecord("g", "t", 0, CommittedOffset(7, -1, "", 1_000, 5_000))]


def test_a_commit_with_expiration_drops_epoch_and_topic_id() -> None:
    asked = OffsetToCommit("t", 0, 7, 3, "m", 5_000, FIRST_ID)
    [record], _ = build_commit_records("g", [asked], 1_000, 10)
    assert decode(*encode(record)) == record


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [("", True), ("x" * 10, True), ("x" * 11, False), ("é" * 10, True), ("😀" * 5, True), ("😀" * 6, False)],
)
def test_metadata_length_is_counted_in_utf16_units(metadata: str, fits: bool) -> None:
    records, errors = build_commit_records("g", [OffsetToCommit("t", 0, 7, -1, metadata, NO_EXPIRY)], 1_000, 10)
    assert isinstance(errors["t", 0], OffsetMetadataTooLargeError) is not fits
    assert len(records) == fits


def test_too_large_metadata_fails_only_its_partition() -> None:
    asked = [OffsetToCommit("t", number, 7, -1, "x" * 10 * number, NO_EXPIRY) for number in range(3)]
    records, errors = build_commit_records("g", asked, 1_000, 10)
    assert [record.partition for record in records] == [0, 1]
    assert list(errors) == [("t", 0), ("t", 1), ("t", 2)]
    assert isinstance(errors["t", 2], OffsetMetadataTooLargeError)


@pytest.mark.parametrize(("now_ms", "expired"), [(1_099, False), (1_100, True), (5_000, True), (0, False)])
def test_an_offset_is_kept_for_the_retention_time(now_ms: int, expired: bool) -> None:
    assert OffsetExpirationCondition(retention_ms=100).is_expired(committed(), now_ms) is expired


@pytest.mark.parametrize(("now_ms", "expired"), [(4_999, False), (5_000, True)])
def test_an_expiration_timestamp_overrides_the_retention_time(now_ms: int, expired: bool) -> None:
    own = CommittedOffset(1, -1, "", 1_000, expire_timestamp_ms=5_000)
    assert OffsetExpirationCondition(retention_ms=100).is_expired(own, now_ms) is expired
    assert OffsetExpirationCondition(retention_ms=1_000_000).is_expired(own, now_ms) is expired
