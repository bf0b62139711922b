"""Records as lines of JSON: what `moldau consume --json` prints and `moldau produce --json` reads back without loss.

Keys, values and header values are strings if they are UTF-8, {"base64": ...} if not, and null if they are null.
"""

import base64
import binascii
import json
from typing import Any, NamedTuple

from moldau.cli.console import bytes_to_json
from moldau.client.record import ConsumerRecord
from moldau.records.record import TIMESTAMP_MAX, Header
from moldau.settings.option_parser import did_you_mean

FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
PARTITION_MAX = 2**31 - 1
_SHAPES = 'a string, null or {"base64": "..."}'


class RecordJsonError(ValueError):
    """The error for a line that is not a record. The message says which field is wrong and what it may be."""


class NewRecord(NamedTuple):
    """A record to produce. Partition and timestamp are None if the producer chooses them."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def format_json(record: ConsumerRecord) -> bytes:
    """Returns a record as JSON, without a newline."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [
            [_to_json(name.encode("utf-8", "surrogateescape")), _to_json(value)] for name, value in record.headers
        ],
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _to_json(data: bytes | None) -> str | dict[str, str] | None:
    return None if data is None else bytes_to_json(data)


def parse_json(line: bytes) -> NewRecord:
    """Parses a line. `topic` and `offset` are ignored. Raises RecordJsonError if the line is not a record."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordJsonError(f"not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError:
        raise RecordJsonError("not UTF-8 text") from None
    except (RecursionError, ValueError):
        raise RecordJsonError("JSON that is nested too deeply, or has a number with too many digits") from None
    if not isinstance(fields, dict):
        raise RecordJsonError(f'expected an object such as {{"value": "text"}}, not {_kind(fields)}')
    for name in fields:
        if name not in FIELDS:
            raise RecordJsonError(f"unknown field {name!r}{did_you_mean(name, FIELDS)} (fields: {', '.join(FIELDS)})")
    if "value" not in fields:
        raise RecordJsonError("the field 'value' is missing; use null for a record without a value")
    timestamp_ms = _parse_integer(fields, "timestamp", -1, TIMESTAMP_MAX)
    return NewRecord(
        value=_parse_bytes(fields["value"], "value"),
        key=_parse_bytes(fields.get("key"), "key"),
        headers=_parse_headers(fields.get("headers")),
        partition=_parse_integer(fields, "partition", 0, PARTITION_MAX),
        timestamp_ms=None if timestamp_ms == -1 else timestamp_ms,
    )


def _parse_integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise RecordJsonError(f"{name} must be an integer from {low} to {high}, or null, not {_kind(value)}")
    return value


def _parse_bytes(value: object, field: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise RecordJsonError(f'{field} has a lone surrogate, which is not text; use {{"base64": "..."}}') from None
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise RecordJsonError(f"{field} is not valid base64 with padding") from None
    raise RecordJsonError(f"{field} must be {_SHAPES}, not {_kind(value)}")


def _parse_headers(headers: object) -> tuple[Header, ...]:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        raise RecordJsonError(f"headers must be a list of [name, value] pairs, not {_kind(headers)}")
    parsed: list[Header] = []
    for number, pair in enumerate(headers):
        field = f"headers[{number}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise RecordJsonError(f"{field} must be a pair [name, value], not {_kind(pair)}")
        name = _parse_bytes(pair[0], f"{field}[0]")
        if name is None:
            raise RecordJsonError(f"{field}[0], the name of a header, cannot be null")
        parsed.append((name.decode("utf-8", "surrogateescape"), _parse_bytes(pair[1], f"{field}[1]")))
    return tuple(parsed)


def _kind(value: object) -> str:
    """Returns a JSON value for an error message, or its type if it is long."""
    text = json.dumps(value)
    if len(text) <= 30:
        return text
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "a long value"
