"""Metadata records in Kafka's binary format, and rejected input."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, UnsupportedVersionError
from moldau.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

# Written by hand from Kafka's schemas: frame version, api key and version as uvarints, then the fields.
KNOWN = [
    (NoOpRecord(), "01 14 00 00"),
    (TopicRecord(name="orders", topic_id=TOPIC_ID), "01 02 00 07 6f7264657273" + TOPIC_ID.hex + "00"),
    (RemoveTopicRecord(topic_id=TOPIC_ID), "01 09 00" + TOPIC_ID.hex + "00"),
    (ConfigRecord(resource_type=2, resource_name="t", name="a.b", value=None), "01 04 00 02 02 74 04 612e62 00 00"),
    (FeatureLevelRecord(name="f", feature_level=30), "01 0c 00 02 66 001e 00"),
    (
        ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000),
        "01 0f 00 00000001 0000000000000002 00000000000003e8 00",
    ),
    (
        PartitionRecord(
            partition_id=3,
            topic_id=TOPIC_ID,
            replicas=(1, 2),
            isr=(1,),
            leader=1,
            leader_epoch=4,
            partition_epoch=5,
            directories=(None, None),
        ),
        "01 03 02 00000003" + TOPIC_ID.hex + "03 00000001 00000002 02 00000001 01 01 00000001 00000004 00000005"
        "03" + "00" * 32 + "00",
    ),
    (
        PartitionChangeRecord(partition_id=3, topic_id=TOPIC_ID, isr=(1,), leader=1),
        "01 05 02 00000003" + TOPIC_ID.hex + "02 00 05 02 00000001 01 04 00000001",
    ),
    (
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1),
        "01 11 02 00000001 0000000000000007 01 00 01 ff",
    ),
    (
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=TOPIC_ID,
            broker_epoch=7,
            end_points=(BrokerEndpoint(name="P", host="h", port=65535, security_protocol=0),),
            features=(BrokerFeature(name="f", min_supported_version=1, max_supported_version=2),),
            rack="r",
            fenced=False,
            log_dirs=(TOPIC_ID,),
        ),
        "01 00 03 00000001 00" + TOPIC_ID.hex + "0000000000000007 02 02 50 02 68 ffff 0000 00"
        "02 02 66 0001 0002 00 02 72 00 00 01 00 11 02" + TOPIC_ID.hex,
    ),
]


@pytest.mark.parametrize(("record", "value"), KNOWN, ids=[type(record).__name__ for record, _ in KNOWN])
def test_a_record_has_kafkas_binary_layout(record: Record, value: str) -> None:
    assert encode(record).hex() == value.replace(" ", "")
    assert decode(bytes.fromhex(value)) == record


@pytest.mark.parametrize(("record", "value"), KNOWN, ids=[type(record).__name__ for record, _ in KNOWN])
def test_a_record_truncated_anywhere_is_rejected(record: Record, value: str) -> None:
    whole = bytes.fromhex(value)
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode(whole[:size])


def test_trailing_bytes_are_rejected() -> None:
    with pytest.raises(CorruptRecordError, match="trailing bytes"):
        decode(encode(NoOpRecord()) + b"\x00")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("02140000", "frame version 2"),
        ("01630000", "api key 99"),
        ("01020100", "api key 2 are supported in version 0, not 1"),
    ],
)
def test_unknown_records_and_versions_are_rejected(value: str, complaint: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=complaint):
        decode(bytes.fromhex(value))


names = st.text(max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
replicas = st.lists(ints, max_size=4).map(tuple)


@given(
    st.one_of(
        st.builds(TopicRecord, name=names, topic_id=st.uuids()),
        st.builds(
            ConfigRecord, resource_type=st.integers(-128, 127), resource_name=names, name=names, value=st.none() | names
        ),
        st.builds(
            PartitionChangeRecord,
            partition_id=ints,
            topic_id=st.uuids(),
            isr=st.none() | replicas,
            leader=ints,
            replicas=st.none() | replicas,
            removing_replicas=st.none() | replicas,
            adding_replicas=st.none() | replicas,
            leader_recovery_state=st.integers(-1, 1),
            directories=st.none() | st.lists(st.uuids(), max_size=3).map(tuple),
        ),
    )
)
def test_every_record_round_trips(record: Record) -> None:
    assert decode(encode(record)) == record
