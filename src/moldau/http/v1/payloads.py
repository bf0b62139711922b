"""Encodings of keys, values and header values in JSON: as JSON, as text or as base64.

A payload is an object with one field that names its encoding, or null: `{"json": {"id": 7}}`, `{"text": "hi"}`,
`{"base64": "//8="}`. Produced and consumed records use the same form.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema

from moldau.client.record import ConsumerRecord
from moldau.http.simple_api.fields import Text
from moldau.http.v1.fields import Body, View
from moldau.server.cpu_budget import CpuBudget

PayloadFormat = Literal["json", "text", "base64"]
_TAGS = {"json": "~json", "text": "~text", "base64": "~base64"}
"""The tags of the encodings. Errors leave them out of the names of fields."""
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)


def _check_base64(value: str) -> str:
    if _BASE64.fullmatch(value) is None:
        raise ValueError("the value is not base64")
    return value


def _check_json(value: Any) -> Any:
    try:
        _dump(value)
    except UnicodeEncodeError:
        raise ValueError("the value has a lone surrogate, which UTF-8 cannot encode") from None
    except (ValueError, RecursionError):
        raise ValueError("the value has a number that is too large, or is nested too deeply") from None
    return value


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


Base64 = Annotated[str, AfterValidator(_check_base64), WithJsonSchema({"type": "string", "format": "byte"})]


class JsonPayload(Body):
    json_value: Annotated[Any, AfterValidator(_check_json)] = Field(alias="json")
    """Any JSON value. It is written without spaces, and its numbers as Python writes them."""

    def to_bytes(self) -> bytes:
        return _dump(self.json_value)


class TextPayload(Body):
    text: Text
    """Text, which is written as UTF-8."""

    def to_bytes(self) -> bytes:
        return self.text.encode()


class Base64Payload(Body):
    base64: Base64
    """Bytes in base64 with padding."""

    def to_bytes(self) -> bytes:
        return b64decode(self.base64)


def _encoding_of(value: Any) -> str | None:
    """Returns the tag of a payload; None if the value is not an object with a known encoding."""
    if isinstance(value, dict):
        for name in value:
            if name in _TAGS:
                return _TAGS[name]
        return None
    if isinstance(value, JsonPayload | TextPayload | Base64Payload):
        return _TAGS[type(value).__name__.removesuffix("Payload").lower()]
    return None


_JSON, _TEXT, _BASE64_DATA = (Tag(tag) for tag in _TAGS.values())

Payload = Annotated[
    Annotated[JsonPayload, _JSON] | Annotated[TextPayload, _TEXT] | Annotated[Base64Payload, _BASE64_DATA],
    Discriminator(
        _encoding_of,
        custom_error_type="payload",
        custom_error_message='a payload is null, {"json": ...}, {"text": ...} or {"base64": ...}',
    ),
]


class HeaderBody(Body):
    name: Text
    value: Payload | None = None


class HeaderView(View):
    name: str
    value: JsonPayload | TextPayload | Base64Payload | None


class RecordView(View):
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970; null if the record has none."""
    timestamp_type: Literal["CreateTime", "LogAppendTime"]
    key: JsonPayload | TextPayload | Base64Payload | None
    value: JsonPayload | TextPayload | Base64Payload | None
    """The value. `{"base64": ...}` if the bytes are not valid in the requested format."""
    headers: list[HeaderView]


def payload_bytes(payload: JsonPayload | TextPayload | Base64Payload | None) -> bytes | None:
    return None if payload is None else payload.to_bytes()


async def write_records(budget: CpuBudget, records: Iterable[ConsumerRecord], form: PayloadFormat) -> str:
    """Returns the records as a JSON array. The node does other work in between if there are many."""
    return f"[{','.join([await budget.run(partial(write_record, each, form)) for each in records])}]"


def write_record(record: ConsumerRecord, form: PayloadFormat) -> str:
    """Returns a record as JSON. Payloads that are JSON are copied unchanged, so that nothing is lost.

    Keys and header values are seldom JSON, so they are text in this format.
    """
    key_form: PayloadFormat = "text" if form == "json" else form
    headers = ",".join(
        f'{{"name":{json.dumps(name)},"value":{write_payload(value, key_form)}}}' for name, value in record.headers
    )
    time_type = "LogAppendTime" if record.is_log_append_time else "CreateTime"
    return (
        f'{{"topic":{json.dumps(record.topic)},"partition":{record.partition},"offset":{record.offset},'
        f'"timestamp":{record.timestamp if record.timestamp >= 0 else "null"},"timestamp_type":"{time_type}",'
        f'"key":{write_payload(record.key, key_form)},"value":{write_payload(record.value, form)},'
        f'"headers":[{headers}]}}'
    )


def write_payload(data: bytes | None, form: PayloadFormat) -> str:
    """Returns a payload as JSON, in base64 if the bytes are not valid in the format."""
    if data is None:
        return "null"
    if form != "base64":
        try:
            text = data.decode()
            if form == "text":
                return f'{{"text":{json.dumps(text)}}}'
            # Numbers are not converted, because their text is copied.
            json.loads(text, parse_constant=_reject_constant, parse_int=str, parse_float=str)
            return f'{{"json":{text}}}'
        except (ValueError, RecursionError):
            pass
    return f'{{"base64":"{b64encode(data).decode()}"}}'


def record_size(record: ConsumerRecord) -> int:
    """Returns the number of bytes of key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
