"""Parsing, validation and description of setting values."""

import pytest

from moldau.errors import InvalidConfigError
from moldau.settings.option_parser import did_you_mean
from moldau.settings.registry import setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import describe_allowed_values, parse_value

TOPIC = setting_definitions(TopicSettings)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "-1", -1),
        ("retention.ms", " 86400000 ", 86_400_000),
        ("retention.ms", str(2**63 - 1), 2**63 - 1),
        ("preallocate", "TRUE", True),
        ("preallocate", "false", False),
        ("cleanup.policy", "compact,delete", ("compact", "delete")),
        ("cleanup.policy", " compact , delete ,compact", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "-1", -1),
    ],
)
def test_valid_text_is_parsed(name: str, text: str, value: object) -> None:
    assert parse_value(TOPIC[name], text) == value


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("retention.ms", "a week", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", str(2**63), f"Value must be no more than {2**63 - 1}"),
        ("segment.bytes", "2147483648", "Value must be no more than 2147483647"),
        ("segment.bytes", "1000", "Value must be at least 1024"),
        ("min.cleanable.dirty.ratio", "1.1", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("cleanup.policy", "compact,purge", "String must be one of: delete, compact"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "Value must be -1 or between 1 and 9"),
    ],
)
def test_invalid_text_is_rejected_with_kafkas_message(name: str, text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_value(TOPIC[name], text)
    assert str(refused.value) == f"Invalid value {text} for configuration {name}: {complaint}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("retention.ms", "an integer, -1 or more"),
        ("compression.lz4.level", "an integer from 1 to 17"),
        ("min.cleanable.dirty.ratio", "a number from 0 to 1"),
        ("preallocate", "true or false"),
        ("cleanup.policy", "a list of: delete, compact"),
        ("message.timestamp.type", "one of: CreateTime, LogAppendTime"),
    ],
)
def test_allowed_values_are_described(name: str, words: str) -> None:
    assert describe_allowed_values(TOPIC[name]) == words


def test_only_similar_names_are_suggested() -> None:
    assert did_you_mean("retention.sm", TOPIC) == "; did you mean retention.ms?"
    assert did_you_mean("xyzzy", TOPIC) == ""
