"""Format strings of `moldau consume --format`."""

import pytest

from moldau.cli.record_format import RecordFormat, RecordFormatError
from moldau.client.record import ConsumerRecord

RECORD = ConsumerRecord(
    "orders", 3, 1200, 1_700_000_000_000, False, b"key", b"\xffvalue", (("a", b"1"), ("b", None), ("a", b""))
)
EMPTY = ConsumerRecord("orders", 0, 0, -1, False, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b""),
        (b"%t %p %o %T", b"orders 3 1200 1700000000000"),
        (rb"%k=%s\n", b"key=\xffvalue\n"),
        (b"%K %S %R", b"3 6 \0\0\0\x06"),
        (b"[%h]", b"[a=1,b=NULL,a=]"),
        (b"%%", b"%"),
        (b"100%%%%%s%%", b"100%%\xffvalue%"),
        (rb"\n\r\t\\\"\q", b'\n\r\t\\"q'),
        # As in C: hexadecimal, octal with a leading 0, decimal without.
        (rb"\0\x41\0x42\0103\68", b"\0ABCD"),
        # A backslash before a token is printed.
        (rb"\%s", b"\\\xffvalue"),
        ("é%o".encode(), "é1200".encode()),
    ],
)
def test_tokens_and_escapes_are_replaced(text: bytes, expected: bytes) -> None:
    assert RecordFormat(text).format(RECORD) == expected


def test_missing_keys_and_values_print_nothing_and_have_the_length_minus_one() -> None:
    assert RecordFormat(b"%k|%s|%K|%S|%R|%h|%T").format(EMPTY) == b"||-1|-1|\xff\xff\xff\xff||-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"%z", "%z is not a token; the tokens are %t topic"),
        ("%é".encode(), "%é is not a token"),
        (b"100%", "use %% to print a percent sign"),
        (rb"\x", "needs hexadecimal digits"),
        (rb"\x100", "larger than one byte"),
        (rb"\400", "larger than one byte"),
        (rb"\08", "not an octal number"),
    ],
)
def test_invalid_formats_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(RecordFormatError) as refused:
        RecordFormat(text)
    assert message in str(refused.value)
