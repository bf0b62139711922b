"""The format string of `moldau consume --format`, with the tokens and escapes of kcat's `-f`."""

import re
from collections.abc import Callable

from moldau.client.record import ConsumerRecord

TOKENS_HELP = (
    "%t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value, %h headers, %K and %S the length of key "
    "and value (-1: null), %R the length of the value as four bytes, %% a percent sign"
)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ESCAPE = re.compile(rb"\\(?:x(?P<hex>[0-9A-Fa-f]*)|(?P<number>0[xX][0-9A-Fa-f]+|[0-9]+)|(?P<other>.))", re.DOTALL)

Part = Callable[[ConsumerRecord], bytes]


class RecordFormatError(ValueError):
    """The error for an invalid format string. The message is a sentence for the user."""


class RecordFormat:
    """A parsed format string."""

    def __init__(self, text: bytes) -> None:
        """Raises RecordFormatError if a token or an escape is unknown."""
        self._parts: list[bytes | Part] = []
        literal, *others = text.split(b"%")
        self._add_literal(literal)
        # `%%` splits into an empty piece, and the piece after it is a literal.
        is_literal = False
        for index, piece in enumerate(others):
            if is_literal:
                self._add_literal(piece)
                is_literal = False
            elif piece:
                self._parts.append(_token(piece))
                self._add_literal(piece[1:])
            elif index + 1 < len(others):
                self._parts.append(b"%")
                is_literal = True
            else:
                raise RecordFormatError("the format ends with a single %; use %% to print a percent sign")

    def _add_literal(self, text: bytes) -> None:
        if text:
            self._parts.append(_ESCAPE.sub(_unescape, text))

    def format(self, record: ConsumerRecord) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in self._parts])


def _token(piece: bytes) -> Part:
    part = _TOKENS.get(piece[:1])
    if part is None:
        name = piece.decode("utf-8", "replace")[0]
        raise RecordFormatError(f"%{name} is not a token; the tokens are {TOKENS_HELP}")
    return part


def _unescape(escape: re.Match[bytes]) -> bytes:
    """Returns the bytes of an escape. Numbers are read as in C: hexadecimal, octal with a leading 0, else decimal."""
    text = escape[0].decode()
    if escape["other"] is not None:
        return _ESCAPES.get(escape["other"], escape["other"])
    if escape["hex"] is not None:
        if not escape["hex"]:
            raise RecordFormatError(r"\x needs hexadecimal digits, such as \x1f")
        value = int(escape["hex"], 16)
    else:
        value = _number(escape["number"].decode(), text)
    if value > 255:
        raise RecordFormatError(f"{text} is larger than one byte; the maximum is \\xff")
    return bytes([value])


def _number(digits: str, escape: str) -> int:
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    try:
        return int(digits, 8 if digits.startswith("0") else 10)
    except ValueError:
        raise RecordFormatError(f"{escape} is not an octal number, which its leading 0 announces") from None


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )


_TOKENS: dict[bytes, Part] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"T": lambda record: b"%d" % record.timestamp,
    b"k": lambda record: record.key or b"",
    b"s": lambda record: record.value or b"",
    b"h": _headers,
    b"K": lambda record: b"%d" % _length(record.key),
    b"S": lambda record: b"%d" % _length(record.value),
    b"R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
}
