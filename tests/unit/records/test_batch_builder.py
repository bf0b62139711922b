"""Building and changing batches, and control records."""

from uuid import UUID

import pytest

from moldau.errors import CorruptRecordError
from moldau.records import control_records as control
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch, recompress, with_append_time
from moldau.records.compression import GZIP, NONE, ZSTD
from moldau.records.record import Record, iterate_records
from support.control_batches import control_batch

RECORDS = [
    Record(timestamp=1000, key=b"a", value=b"first", headers=(("trace", b"1"), ("none", None))),
    Record(timestamp=990, key=None, value=b"second"),
    Record(timestamp=1010, key=b"c", value=None),
]


def test_header_fields_have_their_positions() -> None:
    batch = Batch(
        build_batch(
            RECORDS,
            base_offset=70,
            leader_epoch=4,
            compression=GZIP,
            producer_id=9,
            producer_epoch=2,
            base_sequence=33,
            transactional=True,
        )
    )
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (70, 72, 73)
    assert (batch.leader_epoch, batch.count, batch.compression) == (4, 3, GZIP)
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1010)
    assert (batch.producer_id, batch.producer_epoch) == (9, 2)
    assert (batch.base_sequence, batch.last_sequence) == (33, 35)
    assert batch.is_transactional
    assert not batch.is_control
    assert not batch.is_log_append_time
    assert batch.delete_horizon_ms is None
    assert batch.has_valid_checksum()


def test_records_may_keep_their_offsets() -> None:
    kept = [Record(offset=12, timestamp=1), Record(offset=19, timestamp=2)]
    batch = Batch(build_batch(kept, base_offset=10, keep_offsets=True))
    assert batch.last_offset == 19
    assert [one.offset for one in iterate_records(batch)] == [12, 19]


def test_offsets_that_are_not_ascending_are_rejected() -> None:
    with pytest.raises(ValueError, match="does not come after"):
        build_batch([Record(offset=3), Record(offset=3)], keep_offsets=True)
    with pytest.raises(ValueError, match="does not come after"):
        build_batch([Record(offset=3)], base_offset=4, keep_offsets=True)


def test_a_batch_without_records_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", range(5))
def test_recompression_changes_only_the_codec(source: int, target: int) -> None:
    batch = Batch(
        build_batch(RECORDS, base_offset=5, compression=source, producer_id=1, producer_epoch=0, base_sequence=2)
    )
    rebuilt = recompress(batch, target)
    assert rebuilt.compression == target
    assert rebuilt.has_valid_checksum()
    assert list(iterate_records(rebuilt)) == list(iterate_records(batch))
    same = ("base_offset", "last_offset", "base_timestamp", "max_timestamp", "count", "leader_epoch")
    same += ("producer_id", "producer_epoch", "base_sequence")
    assert [getattr(rebuilt, field) for field in same] == [getattr(batch, field) for field in same]
    assert recompress(rebuilt, NONE).data == build_batch(
        RECORDS, base_offset=5, producer_id=1, producer_epoch=0, base_sequence=2
    )


def test_append_time_applies_to_all_records() -> None:
    batch = Batch(build_batch(RECORDS, compression=ZSTD))
    stamped = with_append_time(batch, 5000)
    assert stamped.is_log_append_time
    assert stamped.max_timestamp == 5000
    assert stamped.compression == ZSTD
    assert stamped.has_valid_checksum()
    assert {one.timestamp for one in iterate_records(stamped)} == {5000}
    assert [one.value for one in iterate_records(stamped)] == [one.value for one in RECORDS]
    assert not batch.is_log_append_time


def test_consecutive_batches_are_split() -> None:
    first, second = build_batch(RECORDS), build_batch(RECORDS, base_offset=3)
    assert [batch.base_offset for batch in split(first + second)] == [0, 3]


VOTERS = (control.LeaderChangeVoter(1), control.LeaderChangeVoter(2), control.LeaderChangeVoter(3))
QUORUM_VOTERS = (
    control.RecordedVoter(
        1,
        UUID(int=11),
        (
            control.RecordedVoterEndpoint("NODES", "host-1", 9092),
            control.RecordedVoterEndpoint("CLIENTS", "10.0.0.1", 65_535),
        ),
    ),
    control.RecordedVoter(2, None, (), 0, 2),
)
NAMED_VOTERS = (control.LeaderChangeVoter(1, UUID(int=11)), control.LeaderChangeVoter(2, UUID(int=12)))


@pytest.mark.parametrize(
    "message",
    [
        control.LeaderChange(1, VOTERS, VOTERS[:2]),
        control.LeaderChange(2, NAMED_VOTERS, NAMED_VOTERS[1:]),
        control.EndTransaction(commit=True, coordinator_epoch=7),
        control.EndTransaction(commit=False, coordinator_epoch=0),
        control.SnapshotHeader(123_456),
        control.SnapshotFooter(),
        control.KRaftVersion(1),
        control.Voters(()),
        control.Voters(QUORUM_VOTERS),
        control.OtherControl(9, b"\x00\x01"),
    ],
)
def test_control_records_round_trip(message: control.ControlRecord) -> None:
    batch = Batch(control_batch(message, timestamp=88, base_offset=6, leader_epoch=3))
    assert batch.is_control
    assert batch.has_valid_checksum()
    assert (batch.base_offset, batch.leader_epoch, batch.base_timestamp) == (6, 3, 88)
    assert batch.is_transactional == isinstance(message, control.EndTransaction)
    (record,) = iterate_records(batch)
    assert control.decode(record) == message


def test_a_commit_marker_has_kafkas_format() -> None:
    (record,) = iterate_records(
        Batch(
            control_batch(
                control.EndTransaction(commit=True, coordinator_epoch=5), timestamp=0, producer_id=4, producer_epoch=1
            )
        )
    )
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x05"


@pytest.mark.parametrize(
    "message",
    [
        control.LeaderChange(1, VOTERS, VOTERS),
        control.LeaderChange(2, NAMED_VOTERS, ()),
        control.EndTransaction(True, 7),
        control.SnapshotHeader(5),
        control.SnapshotFooter(),
        control.KRaftVersion(1),
        control.Voters(QUORUM_VOTERS),
    ],
)
def test_truncated_control_records_are_corrupt(message: control.ControlRecord) -> None:
    key, value = control.encode_key(message), control.encode_value(message)
    assert value
    for size in range(len(value)):
        with pytest.raises(CorruptRecordError):
            control.decode(Record(key=key, value=value[:size]))


def test_a_control_record_without_a_type_is_corrupt() -> None:
    for key in (None, b"", b"\x00\x00\x00"):
        with pytest.raises(CorruptRecordError):
            control.control_type(key)
