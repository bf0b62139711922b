"""Messages between bytes and plain values, for any API and version, made from the schemas on first use.

Reading gives `Message`s: attributes by field name, lists for arrays, ints for times in milliseconds, UUID
or None, and memoryviews of the frame for record data, which is therefore not copied. Writing takes trees of
dicts and lists; fields that a version does not have are left out, so one tree serves every version.

The functions that do it are Python written for each message (`readers.py`, `writers.py`); `generated_source` shows
them.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from moldau.wire.decoder_compiler import compile_decoder, decoder_source
from moldau.wire.decoder_runtime import (
    ELEMENTS_MAX,
    TAGS_MAX,
    Cursor,
    DecodeError,
    Message,
    ReadFunction,
    read_tags,
)
from moldau.wire.encoder_compiler import compile_encoder, encoder_source
from moldau.wire.encoder_runtime import WriteFunction, write_unsigned_varint
from moldau.wire.schema import MessageKind, is_flexible, message_type, schema_fields

__all__ = [
    "COPIED_BYTES_MAX",
    "ELEMENTS_MAX",
    "TAGS_MAX",
    "Cursor",
    "DecodeError",
    "Message",
    "decoder",
    "encoder",
    "entity_decoder",
    "entity_encoder",
    "generated_source",
    "has_flexible_header",
    "read_tags",
    "write_unsigned_varint",
]

COPIED_BYTES_MAX = 1 << 20
"""Up to this size a message is copied before it is read, unless it carries records: the copy takes far less time than
it saves, and above it the memory counts for more."""


@cache
def decoder(api_key: int, version: int, kind: MessageKind) -> Callable[[memoryview], Message]:
    """The function that reads a whole message body; raises DecodeError."""
    # Answers come from nodes that were asked for them: of all topics of a cluster there may be very many.
    return entity_decoder(
        message_type(api_key, version, kind), elements_max=ELEMENTS_MAX if kind == "request" else None
    )


@cache
def encoder(api_key: int, version: int, kind: MessageKind) -> Callable[[bytearray, Any], None]:
    """The function that appends a message body made of a plain tree to a buffer."""
    return entity_encoder(message_type(api_key, version, kind))


def entity_decoder(
    entity: type, *, elements_max: int | None = ELEMENTS_MAX
) -> Callable[[memoryview], Message]:
    """As `decoder`, for a struct that is no request or response: a dataclass in the manner of kio's. Without
    elements_max there may be as many elements as there are bytes, of which each takes one at least."""
    read: ReadFunction | None = None
    copied_bytes_max = 0 if _carries_records(entity) else COPIED_BYTES_MAX

    def decode(data: memoryview) -> Message:
        nonlocal read
        if read is None:
            read = compile_decoder(entity)
        copy = data.tobytes() if len(data) <= copied_bytes_max else data
        try:
            message: Message = read(data, copy, 0, len(data) if elements_max is None else elements_max)[0]
        except (struct.error, IndexError) as error:
            raise DecodeError(str(error)) from None
        return message

    return decode


def entity_encoder(entity: type) -> Callable[[bytearray, Any], None]:
    """As `encoder`, for a struct that is no request or response: a dataclass in the manner of kio's."""
    write: WriteFunction | None = None

    def encode(out: bytearray, tree: Any) -> None:
        nonlocal write
        if write is None:
            write = compile_encoder(entity)
        try:
            write(out, tree)
        except KeyError as error:
            raise KeyError(f"{entity.__name__} needs a value for {error.args[0]}") from error

    return encode


@cache
def has_flexible_header(api_key: int, version: int) -> bool:
    return is_flexible(message_type(api_key, version, "request"))


def generated_source(entity: type) -> str:
    """The Python that reads an entity, and the Python that writes it."""
    return f"{decoder_source(entity)}\n\n{encoder_source(entity)}"


def _carries_records(entity: type) -> bool:
    return any(
        field.kafka_type == "records" or (field.entity is not None and _carries_records(field.entity))
        for field in schema_fields(entity)
    )
