"""Decoders and encoders of messages of any API and version, compiled from the schemas on first use.

Decoders return `Message` objects with one attribute per field. Arrays become lists, times become ints in milliseconds,
and a zero UUID becomes None. Record data becomes a memoryview of the frame and is not copied.

Encoders take trees of dicts and lists. Keys that are not fields of the version are ignored, so that one tree serves
every version.

`generated_source` returns the Python source of the compiled functions.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from moldau.wire.decoder_compiler import compile_decoder, decoder_source
from moldau.wire.decoder_runtime import ELEMENTS_MAX, DecodeError, Message, ReadFunction
from moldau.wire.encoder_compiler import WriteFunction, compile_encoder, encoder_source
from moldau.wire.schema import MessageKind, is_flexible, message_type, schema_fields

__all__ = ["DecodeError", "Message", "decoder", "encoder", "entity_decoder", "entity_encoder", "has_flexible_header"]

COPIED_BYTES_MAX = 1 << 20
"""Messages up to this size that carry no records are copied to `bytes` first, because `bytes` are decoded faster."""


@cache
def decoder(api_key: int, version: int, kind: MessageKind) -> Callable[[memoryview], Message]:
    """Returns a function that decodes a message body. The function raises DecodeError."""
    # The number of elements in a response is not limited, because brokers are trusted and the Metadata response of a
    # large cluster has very many elements.
    return entity_decoder(
        message_type(api_key, version, kind), elements_max=ELEMENTS_MAX if kind == "request" else None
    )


@cache
def encoder(api_key: int, version: int, kind: MessageKind) -> Callable[[bytearray, Any], None]:
    """Returns a function that appends an encoded message body to a buffer."""
    return entity_encoder(message_type(api_key, version, kind))


def entity_decoder(entity: type, *, elements_max: int | None = ELEMENTS_MAX) -> Callable[[memoryview], Message]:
    """Returns a decoder for any dataclass that is declared like kio's.

    If `elements_max` is None, only the message size limits the number of elements. Each element takes at least a byte.
    """
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
    """Returns an encoder for any dataclass that is declared like kio's."""
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
    """Returns the generated source of an entity's decoder and encoder."""
    return f"{decoder_source(entity)}\n\n{encoder_source(entity)}"


def _carries_records(entity: type) -> bool:
    return any(
        field.kafka_type == "records" or (field.entity is not None and _carries_records(field.entity))
        for field in schema_fields(entity)
    )
