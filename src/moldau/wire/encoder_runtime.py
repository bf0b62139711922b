"""What all writing of messages stands on: the few functions that written writers (`writers.py`) call."""

import struct
from collections.abc import Callable
from typing import Any

WriteFunction = Callable[[bytearray, Any], None]

_INT32 = struct.Struct(">i")
_BYTES = (bytes, bytearray, memoryview)


def write_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_tags(out: bytearray, tags: list[tuple[int, WriteFunction, Any]]) -> None:
    write_unsigned_varint(out, len(tags))
    for tag, write, value in tags:
        body = bytearray()
        write(body, value)
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(body))
        out += body


# Records may be given as bytes, or as stored records (`frames.StoredRecords`) that the frame splices in when it
# leaves.


def write_records(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, _BYTES):
        out += _INT32.pack(-1 if value is None else len(value))
        out += value or b""
    else:
        out += _INT32.pack(value.size)
        out.splice(value)  # type: ignore[attr-defined]


def write_compact_records(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, _BYTES):
        write_unsigned_varint(out, 0 if value is None else len(value) + 1)
        out += value or b""
    else:
        write_unsigned_varint(out, value.size + 1)
        out.splice(value)  # type: ignore[attr-defined]
