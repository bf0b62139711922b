"""Records of `__consumer_offsets` in all versions, compared with Kafka's bytes."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, InvalidRequestError
from moldau.groups.formats import decode, encode
from moldau.groups.records import (
    CommittedOffset,
    GroupMetadataRecord,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadataValue,
    OffsetCommitRecord,
)
from moldau.wire.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription

ORDERS_ID = UUID("026d915c-07a0-4832-8e0c-00e326451705")
MEMBER_ID = "i-1-c2246d25-fd73-48ef-8f7b-63647991838b"

# Fetched from the offsets topic of Apache Kafka 4.3.0: what it wrote for the requests of a small client.
STATIC_MEMBER = (
    "00030008636f6e73756d657200000001000572616e67650028692d312d63323234366432352d666437332d343865662d38"
    "6637622d363336343739393138333862000001a1ddfc6d24000000010028692d312d63323234366432352d666437332d34"
    "3865662d386637622d3633363437393931383338620003692d31000570726f6265000a2f3132372e302e302e310000ea60"
    "000027100000001c00030000000100066f7264657273ffffffff00000000ffffffffffff0000001e000300000001000"
    "66f7264657273000000020000000000000001ffffffff"
)
WRITTEN_BY_KAFKA: list[tuple[str, GroupRecord, str, str | None]] = [
    (
        "a commit without membership",
        OffsetCommitRecord("solo", "orders", 0, CommittedOffset(7, 3, "wie weit", 0x1A1DDFC6C6B, -1, ORDERS_ID)),
        "00010004736f6c6f00066f726465727300000000",
        "0004000000000000000700000003097769652077656974000001a1ddfc6c6b010010026d915c07a048328e0c00e326451705",
    ),
    (
        "no leader epoch, no metadata, a negative offset",
        OffsetCommitRecord("solo", "orders", 1, CommittedOffset(-5, -1, "", 0x1A1DDFC6CAD, -1, ORDERS_ID)),
        "00010004736f6c6f00066f726465727300000001",
        "0004fffffffffffffffbffffffff01000001a1ddfc6cad010010026d915c07a048328e0c00e326451705",
    ),
    (
        "a retention time of the client's own (OffsetCommit 2)",
        OffsetCommitRecord("old", "orders", 0, CommittedOffset(5, -1, "x", 0x1A1DDFC6C84, 0x1A1DE335B04)),
        "000100036f6c6400066f726465727300000000",
        "00010000000000000005000178000001a1ddfc6c84000001a1de335b04",
    ),
    (
        "the group without a name",
        OffsetCommitRecord("", "orders", 0, CommittedOffset(7, -1, "", 0x1A1DDFC6C9E, -1, ORDERS_ID)),
        "0001000000066f726465727300000000",
        "00040000000000000007ffffffff01000001a1ddfc6c9e010010026d915c07a048328e0c00e326451705",
    ),
    (
        "an offset is deleted",
        OffsetCommitRecord("team", "other", 0, None),
        "000100047465616d00056f7468657200000000",
        None,
    ),
    (
        "a group that nobody is in yet",
        GroupMetadataRecord("team", GroupMetadataValue("", 0, None, None, 0x1A1DDFC6D1D, ())),
        "000200047465616d",
        "0003000000000000ffffffff000001a1ddfc6d1d00000000",
    ),
    (
        "a static member has its assignment",
        GroupMetadataRecord(
            "team",
            GroupMetadataValue(
                protocol_type="consumer",
                generation=1,
                protocol_name="range",
                leader=MEMBER_ID,
                state_timestamp_ms=0x1A1DDFC6D24,
                members=(
                    MemberMetadataValue(
                        member_id=MEMBER_ID,
                        instance_id="i-1",
                        client_id="probe",
                        client_host="/127.0.0.1",
                        rebalance_timeout_ms=60_000,
                        session_timeout_ms=10_000,
                        subscription=encode_subscription(Subscription(("orders",))),
                        assignment=encode_assignment(Assignment((("orders", 0), ("orders", 1)))),
                    ),
                ),
            ),
        ),
        "000200047465616d",
        STATIC_MEMBER,
    ),
    (
        "the last member has left",
        GroupMetadataRecord("team", GroupMetadataValue("consumer", 2, None, None, 0x1A1DDFC6D55, ())),
        "000200047465616d",
        "00030008636f6e73756d657200000002ffffffff000001a1ddfc6d5500000000",
    ),
    ("a group is deleted", GroupMetadataRecord("old4", None), "000200046f6c6434", None),
]


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize(
    ("record", "key", "value"), [pytest.param(*rest, id=story) for story, *rest in WRITTEN_BY_KAFKA]
)
def test_records_match_kafkas_bytes(record: GroupRecord, key: str, value: str | None) -> None:
    assert decode(bytes.fromhex(key), unhex(value)) == record
    assert encode(record) == (bytes.fromhex(key), unhex(value))


# Written down from Kafka's schemas by hand.
OLDER_OFFSETS = [
    ("0000 0000000000000005 0001 6d 0000000000000064", CommittedOffset(5, -1, "m", 100)),
    ("0001 0000000000000005 0001 6d 0000000000000064 00000000000000c8", CommittedOffset(5, -1, "m", 100, 200)),
    ("0002 0000000000000005 0001 6d 0000000000000064", CommittedOffset(5, -1, "m", 100)),
    ("0003 0000000000000005 00000009 0001 6d 0000000000000064", CommittedOffset(5, 9, "m", 100)),
]


@pytest.mark.parametrize(("value", "committed"), OLDER_OFFSETS)
def test_all_versions_of_offset_values_are_decoded(value: str, committed: CommittedOffset) -> None:
    key, _ = encode(OffsetCommitRecord("g", "t", 0, None))
    assert decode(key, bytes.fromhex(value)) == OffsetCommitRecord("g", "t", 0, committed)


def test_a_version_0_key_is_decoded_like_version_1() -> None:
    key, _ = encode(OffsetCommitRecord("g", "t", 3, None))
    assert decode(b"\0\0" + key[2:], None) == OffsetCommitRecord("g", "t", 3, None)


OLDER_GROUP = "0001 63 00000002 0001 72 0001 6d"
OLDER_TEXTS = "0001 61 0001 68"
TIME = "0000000000000064"
OLDER_BYTES = "00000001 73 00000001 74"


@pytest.mark.parametrize(
    ("value", "state_timestamp_ms", "rebalance_timeout_ms", "instance_id"),
    [
        (f"0000 {OLDER_GROUP} 00000001 0001 6d {OLDER_TEXTS} 0000000a {OLDER_BYTES}", -1, 10, None),
        (f"0001 {OLDER_GROUP} 00000001 0001 6d {OLDER_TEXTS} 00000014 0000000a {OLDER_BYTES}", -1, 20, None),
        (f"0002 {OLDER_GROUP} {TIME} 00000001 0001 6d {OLDER_TEXTS} 00000014 0000000a {OLDER_BYTES}", 100, 20, None),
        (
            f"0003 {OLDER_GROUP} {TIME} 00000001 0001 6d 0001 69 {OLDER_TEXTS} 00000014 0000000a {OLDER_BYTES}",
            100,
            20,
            "i",
        ),
        (f"0004 0263 00000002 0272 026d {TIME} 02 026d 0269 0261 0268 00000014 0000000a 0273 0274 00 00", 100, 20, "i"),
    ],
    ids=["no times, one timeout", "two timeouts", "time of the state", "static members", "flexible"],
)
def test_all_versions_of_group_values_are_decoded(
    value: str, state_timestamp_ms: int, rebalance_timeout_ms: int, instance_id: str | None
) -> None:
    member = MemberMetadataValue("m", instance_id, "a", "h", rebalance_timeout_ms, 10, b"s", b"t")
    key, _ = encode(GroupMetadataRecord("g", None))
    group = GroupMetadataValue("c", 2, "r", "m", state_timestamp_ms, (member,))
    assert decode(key, bytes.fromhex(value)) == GroupMetadataRecord("g", group)


@pytest.mark.parametrize("version", [-1, 3, 8, 13, 20, 999])
def test_other_record_types_are_ignored(version: int) -> None:
    assert decode(version.to_bytes(2, "big", signed=True) + b"\xff\xff\xff", b"anything") is None


@pytest.mark.parametrize("story", WRITTEN_BY_KAFKA, ids=lambda story: story[0])
def test_a_truncated_record_is_corrupt(story: tuple[str, GroupRecord, str, str | None]) -> None:
    _, _, key_text, value_text = story
    key, value = bytes.fromhex(key_text), unhex(value_text)
    for end in range(len(key)):
        with pytest.raises(CorruptRecordError):
            decode(key[:end], value)
    for end in range(len(value or b"")):
        with pytest.raises(CorruptRecordError):
            decode(key, (value or b"")[:end])


def test_an_unknown_value_version_is_corrupt() -> None:
    key, value = encode(OffsetCommitRecord("g", "t", 0, CommittedOffset(5, -1, "", 100)))
    assert value is not None
    with pytest.raises(CorruptRecordError, match="version 5 of the value of an offset"):
        decode(key, b"\0\5" + value[2:])
    with pytest.raises(CorruptRecordError, match="version -1 of the value of a group"):
        decode(encode(GroupMetadataRecord("g", None))[0], b"\xff\xff" + value[2:])


def test_an_unknown_tag_is_ignored() -> None:
    key, value = encode(OffsetCommitRecord("g", "t", 0, CommittedOffset(5, -1, "", 100)))
    assert value is not None
    assert value[-1] == 0, "no tags"
    with_tag = value[:-1] + b"\x01\x07\x02ab"
    assert decode(key, with_tag) == OffsetCommitRecord("g", "t", 0, CommittedOffset(5, -1, "", 100))


def test_a_huge_array_length_allocates_nothing() -> None:
    key, _ = encode(GroupMetadataRecord("g", None))
    with pytest.raises(CorruptRecordError, match="elements"):
        decode(key, bytes.fromhex("0003 0000 00000000 ffff ffff 0000000000000064 7fffffff"))


@given(st.binary(max_size=60), st.none() | st.binary(max_size=120))
def test_arbitrary_bytes_are_decoded_ignored_or_corrupt(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(CorruptRecordError):
        decode(key, value)


texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
timeouts = st.integers(0, 2**31 - 1)
members = st.builds(
    MemberMetadataValue, texts, st.none() | texts, texts, texts, timeouts, timeouts, st.binary(), st.binary()
)
groups = st.builds(
    GroupMetadataValue, texts, int32s, st.none() | texts, st.none() | texts, int64s, st.lists(members).map(tuple)
)
offsets = st.builds(CommittedOffset, int64s, int32s, texts, int64s)
records = st.one_of(
    st.builds(GroupMetadataRecord, texts, st.none() | groups),
    st.builds(OffsetCommitRecord, texts, texts, int32s, st.none() | offsets),
)


@given(records)
def test_encoded_records_decode_to_themselves(record: GroupRecord) -> None:
    assert decode(*encode(record)) == record


def test_decoded_records_do_not_reference_the_batch() -> None:
    _, _, key, value = WRITTEN_BY_KAFKA[6]
    record = decode(memoryview(bytes.fromhex(key)), memoryview(bytes.fromhex(value or "")))
    assert isinstance(record, GroupMetadataRecord)
    assert record.metadata is not None
    assert type(record.metadata.members[0].subscription) is bytes
    assert type(record.metadata.members[0].assignment) is bytes


def test_a_string_too_long_for_the_format_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="value too large for a record"):
        encode(GroupMetadataRecord("g" * 40_000, None))
