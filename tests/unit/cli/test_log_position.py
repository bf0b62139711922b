"""Positions in a log as users write them."""

import pytest

from moldau.cli.log_position import LogPosition, PositionError, parse_position, parse_time

NOW_MS = 1_800_000_000_000
"""2027-01-15T08:00:00Z"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", LogPosition("beginning")),
        ("Earliest", LogPosition("beginning")),
        ("end", LogPosition("end")),
        ("latest", LogPosition("end")),
        ("0", LogPosition("offset", 0)),
        (" 1200 ", LogPosition("offset", 1200)),
        ("-10", LogPosition("last", 10)),
        ("@1700000000123", LogPosition("time", 1_700_000_000_123)),
        ("2026-11-18T10:00:00Z", LogPosition("time", 1_794_996_000_000)),
        ("2026-11-18T10:00", LogPosition("time", 1_794_996_000_000)),
        ("2026-11-18 11:00:00.123999+01:00", LogPosition("time", 1_794_996_000_123)),
        ("2026-11-18", LogPosition("time", 1_794_960_000_000)),
        ("5 minutes ago", LogPosition("time", NOW_MS - 300_000)),
        ("90s ago", LogPosition("time", NOW_MS - 90_000)),
        ("1.5 Hours ago", LogPosition("time", NOW_MS - 5_400_000)),
        ("2d ago", LogPosition("time", NOW_MS - 172_800_000)),
    ],
)
def test_positions_are_parsed(text: str, expected: LogPosition) -> None:
    assert parse_position(text, NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a position; use beginning, end, an offset"),
        ("soon", "is not a position"),
        ("12:00", "is not a position"),
        ("2026-13-01", "is not a position"),
        ("five minutes ago", "'90s ago', '5 minutes ago'"),
        ("5 ago", "'90s ago', '5 minutes ago'"),
        ("30000 days ago", "before 1970"),
        ("1969-12-31", "before 1970"),
        ("2030-01-01", "is in the future"),
        ("@9999999999999999", "is in the future"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PositionError) as refused:
        parse_position(text, NOW_MS)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5 minutes ago", NOW_MS - 300_000), ("@1700000000123", 1_700_000_000_123), ("2999-01-01", 32_472_144_000_000)],
)
def test_times_are_parsed(text: str, expected: int) -> None:
    assert parse_time(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["1200", "-10", "end", "soon", "five minutes ago", "1969-12-31"])
def test_other_texts_are_not_times(text: str) -> None:
    with pytest.raises(PositionError):
        parse_time(text, NOW_MS)
