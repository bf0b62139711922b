"""Zig-zag variable-length integers of records. Hot loops inline the one-byte case."""

from moldau.errors import CorruptRecordError
from moldau.platform.disk import Buffer

_LONG_BYTES_MAX = 10
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Returns the number and the position after it. Raises IndexError if the data ends inside the number."""
    value = shift = 0
    for here in range(position, position + _LONG_BYTES_MAX):
        byte = data[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), here + 1
        shift += 7
    raise CorruptRecordError(f"a variable-length number takes more than {_LONG_BYTES_MAX} bytes")


def write_varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    output = bytearray()
    while zigzag >= 0x80:
        output.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    output.append(zigzag)
    return bytes(output)
