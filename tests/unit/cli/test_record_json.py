"""Records as lines of JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.record_json import NewRecord, RecordJsonError, format_json, parse_json
from moldau.client.record import ConsumerRecord
from moldau.records.record import TIMESTAMP_MAX

payloads = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
names = st.text(max_size=8) | st.binary(max_size=5).map(lambda name: name.decode("utf-8", "surrogateescape"))
records = st.builds(
    ConsumerRecord,
    topic=st.just("orders"),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, TIMESTAMP_MAX),
    is_log_append_time=st.booleans(),
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(names, payloads), max_size=4).map(tuple),
)


@given(records)
def test_a_record_is_read_back_as_it_was_printed(record: ConsumerRecord) -> None:
    line = format_json(record)
    assert b"\n" not in line
    assert parse_json(line) == NewRecord(
        record.value,
        record.key,
        tuple(record.headers),
        record.partition,
        None if record.timestamp == -1 else record.timestamp,
    )


def test_null_empty_text_and_bytes_are_different() -> None:
    values = [None, b"", b"\xff", b'{"base64": "/w=="}']
    lines = [format_json(ConsumerRecord("t", 0, 0, 0, False, value, b"")) for value in values]
    assert [json.loads(line)["key"] for line in lines] == [None, "", {"base64": "/w=="}, '{"base64": "/w=="}']
    assert [parse_json(line).key for line in lines] == values


def test_only_the_value_is_required() -> None:
    assert parse_json(b'{"value": "tea"}') == NewRecord(b"tea")
    assert parse_json(b'\xef\xbb\xbf{"value": null, "timestamp": null, "headers": null}\r') == NewRecord(None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tea", "not JSON: Expecting value (column 1)"),
        ('{"value": "tea"', "not JSON: Expecting ',' delimiter (column 16)"),
        (b'{"value": "\xff"}', "not UTF-8 text"),
        ("[" * 100_000, "nested too deeply"),
        ('{"value": ' + "9" * 5_000 + "}", "too many digits"),
        ("[1]", 'expected an object such as {"value": "text"}, not [1]'),
        ('{"vlaue": "tea"}', "unknown field 'vlaue'; did you mean value?"),
        ('{"key": "tea"}', "the field 'value' is missing; use null"),
        ('{"value": {"id": 7}}', 'value must be a string, null or {"base64": "..."}, not {"id": 7}'),
        ('{"value": 7}', "not 7"),
        ('{"value": ["a long list with very much text in it"]}', "not a list"),
        ('{"value": {"base64": "/w"}}', "value is not valid base64 with padding"),
        ('{"value": {"base64": "/w==", "more": 1}}', "value must be"),
        ('{"value": {"base64": "é"}}', "not valid base64"),
        (r'{"value": "\ud800"}', "value has a lone surrogate"),
        ('{"value": "x", "partition": -1}', "partition must be an integer from 0 to 2147483647, or null, not -1"),
        ('{"value": "x", "partition": true}', "not true"),
        ('{"value": "x", "timestamp": 1.5}', "timestamp must be an integer"),
        ('{"value": "x", "timestamp": NaN}', "timestamp must be an integer"),
        ('{"value": "x", "headers": {"a": "b"}}', "headers must be a list of [name, value] pairs"),
        ('{"value": "x", "headers": [["a"]]}', "headers[0] must be a pair [name, value]"),
        ('{"value": "x", "headers": [["a", "b"], [null, "b"]]}', "headers[1][0], the name of a header, cannot be null"),
        ('{"value": "x", "headers": [["a", 1]]}', "headers[0][1] must be a string"),
    ],
)
def test_lines_that_are_not_records_are_refused(line: str | bytes, message: str) -> None:
    with pytest.raises(RecordJsonError) as refused:
        parse_json(line.encode() if isinstance(line, str) else line)
    assert message in str(refused.value)
