"""Offsets in options and checkpoints."""

import json

import pytest

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.source.offsets import (
    EarliestOrLatest,
    SpecificOffsets,
    SpecificTimestamps,
    StreamPosition,
    check_complete,
    check_order,
    format_partitions,
    parse_assignment,
    parse_offset_limit,
    parse_times,
)

ORDERS_0, ORDERS_1, ORDERS_10 = (TopicPartition("orders", index) for index in (0, 1, 10))
PAYMENTS = TopicPartition("payments", 0)


def test_equal_positions_have_equal_json() -> None:
    one = StreamPosition({ORDERS_10: 3, PAYMENTS: 4, ORDERS_0: 1, ORDERS_1: 2}, {"payments": "b", "orders": "a"})
    other = StreamPosition({ORDERS_0: 1, ORDERS_1: 2, ORDERS_10: 3, PAYMENTS: 4}, {"orders": "a", "payments": "b"})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert json.dumps(StreamPosition(one.offsets).to_json()) == (
        '{"orders": {"0": 1, "1": 2, "10": 3}, "payments": {"0": 4}}'
    )


def test_a_position_is_restored_from_a_checkpoint() -> None:
    position = StreamPosition({ORDERS_0: 7, PAYMENTS: 0}, {"orders": "a"}, "spark-1")
    assert StreamPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_offsets_of_the_kafka_connector_are_a_position() -> None:
    assert StreamPosition.from_json({"orders": {"0": 23}}) == StreamPosition({ORDERS_0: 23})


def test_offsets_of_a_recreated_topic_are_ignored() -> None:
    before = StreamPosition({ORDERS_0: 7, PAYMENTS: 3}, {"orders": "a", "payments": "b"})
    assert before.recreated_topics(StreamPosition({}, {"orders": "c", "payments": "b"})) == ["orders"]
    assert before.without_recreated(StreamPosition({}, {"orders": "c"})) == {PAYMENTS: 3}
    assert StreamPosition({ORDERS_0: 7}).without_recreated(StreamPosition({}, {"orders": "c"})) == {ORDERS_0: 7}


def test_a_truncated_log_is_resumed_at_its_end_only_if_the_topic_id_matches() -> None:
    before = StreamPosition({ORDERS_0: 7, PAYMENTS: 3}, {"orders": "a"})
    now = StreamPosition({ORDERS_0: 5, PAYMENTS: 2}, {"orders": "a", "payments": "b"})
    assert before.resume_offsets(now) == {ORDERS_0: 5}
    assert before.resume_offsets(StreamPosition({ORDERS_0: 9, PAYMENTS: 9})) == {ORDERS_0: 7, PAYMENTS: 3}
    assert before.resume_offsets(StreamPosition({ORDERS_0: 9, PAYMENTS: 9}, {"orders": "c"})) == {PAYMENTS: 3}
    assert before.resume_offsets(StreamPosition({})) == {}


@pytest.mark.parametrize(("text", "offset"), [("earliest", EARLIEST), (" Latest ", LATEST)])
def test_a_limit_may_be_earliest_or_latest(text: str, offset: int) -> None:
    assert parse_offset_limit("startingOffsets", text) == EarliestOrLatest(offset)


def test_a_limit_may_be_offsets_including_minus_1_and_minus_2() -> None:
    place = parse_offset_limit("startingOffsets", '{"orders": {"0": 23, "1": -2}, "payments": {"0": -1}}')
    assert place == SpecificOffsets({ORDERS_0: 23, ORDERS_1: -2, PAYMENTS: -1})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("newest", "not JSON"),
        ("[1]", "startingOffsets is JSON like"),
        ("{}", "names no partition"),
        ('{"orders": 5}', "'orders' has 5"),
        ('{"orders": {}}', "'orders' has {}"),
        ('{"orders": {"first": 5}}', '{"first": 5}'),
        ('{"orders": {"0": "5"}}', '{"0": "5"}'),
        ('{"orders": {"0": true}}', '{"0": true}'),
        ('{"orders": {"0": 1.5}}', '{"0": 1.5}'),
        ('{"orders": {"0": -3}}', "-3 is not an offset of orders-0"),
        ('{"orders": {"0": 1, "0": 2}}', "'0' is duplicated"),
    ],
)
def test_an_invalid_limit_is_refused_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_offset_limit("startingOffsets", text)
    assert complaint in str(refused.value)


def test_a_batch_cannot_start_at_latest_or_end_at_earliest() -> None:
    with pytest.raises(OptionError, match="startingOffsets cannot be latest"):
        parse_offset_limit("startingOffsets", "latest", illegal=LATEST)
    with pytest.raises(OptionError, match="startingOffsets of orders-1 cannot be latest"):
        parse_offset_limit("startingOffsets", '{"orders": {"0": 0, "1": -1}}', illegal=LATEST)
    with pytest.raises(OptionError, match="endingOffsets cannot be earliest"):
        parse_offset_limit("endingOffsets", "earliest", illegal=EARLIEST)
    with pytest.raises(OptionError, match="endingOffsets of orders-0 cannot be earliest"):
        parse_offset_limit("endingOffsets", '{"orders": {"0": -2}}', illegal=EARLIEST)
    assert parse_offset_limit("endingOffsets", '{"orders": {"0": -1}}', illegal=EARLIEST) == SpecificOffsets(
        {ORDERS_0: -1}
    )


def test_times_are_milliseconds_since_1970() -> None:
    assert parse_times("startingOffsetsByTimestamp", '{"orders": {"0": 1700000000000}}') == SpecificTimestamps(
        {ORDERS_0: 1_700_000_000_000}
    )
    with pytest.raises(OptionError, match="orders-0 must be a time in milliseconds since 1970, not -1"):
        parse_times("startingOffsetsByTimestamp", '{"orders": {"0": -1}}')


def test_an_assignment_is_sorted_without_duplicates() -> None:
    assert parse_assignment('{"payments": [0], "orders": [1, 0, 1]}') == [ORDERS_0, ORDERS_1, PAYMENTS]


@pytest.mark.parametrize(
    "text", ["orders", "{}", '{"orders": 0}', '{"orders": [-1]}', '{"orders": ["0"]}', '{"a": []}']
)
def test_an_invalid_assignment_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="assign is JSON like"):
        parse_assignment(text)


def test_both_ends_must_name_the_same_partitions() -> None:
    with pytest.raises(OptionError, match="only one of them has orders-1"):
        check_order(SpecificOffsets({ORDERS_0: 0, ORDERS_1: 0}), SpecificOffsets({ORDERS_0: 5}))


def test_an_end_before_its_start_is_refused_unless_it_is_latest() -> None:
    with pytest.raises(OptionError, match="orders-0 would be read from 9 to 5"):
        check_order(SpecificOffsets({ORDERS_0: 9}), SpecificOffsets({ORDERS_0: 5}))
    with pytest.raises(OptionError, match="orders-0 would be read from 9 to 5"):
        check_order(SpecificTimestamps({ORDERS_0: 9}), SpecificTimestamps({ORDERS_0: 5}))
    check_order(SpecificOffsets({ORDERS_0: 9}), SpecificOffsets({ORDERS_0: -1}))
    check_order(SpecificOffsets({ORDERS_0: 9}), SpecificTimestamps({ORDERS_0: 5}))
    check_order(SpecificOffsets({ORDERS_0: 9}), SpecificOffsets({ORDERS_0: 9}))


def test_explicit_offsets_must_match_the_existing_partitions() -> None:
    check_complete("startingOffsets", {ORDERS_0: 1, ORDERS_1: 2}, [ORDERS_0, ORDERS_1])
    with pytest.raises(OptionError, match=r"orders-1 is missing \(-2 is the earliest, -1 the latest\)"):
        check_complete("startingOffsets", {ORDERS_0: 1}, [ORDERS_0, ORDERS_1])
    with pytest.raises(OptionError, match=r"orders-1 is missing$"):
        check_complete("startingOffsetsByTimestamp", {ORDERS_0: 1}, [ORDERS_0, ORDERS_1])
    with pytest.raises(OptionError, match="names payments-0, which is not among"):
        check_complete("startingOffsets", {ORDERS_0: 1, PAYMENTS: 2}, [ORDERS_0])


def test_a_long_list_of_partitions_is_abbreviated() -> None:
    assert format_partitions([TopicPartition("t", index) for index in range(7)]) == "t-0, t-1, t-2, t-3, t-4 and 2 more"
