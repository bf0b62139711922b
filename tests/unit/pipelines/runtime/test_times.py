"""Times entered by users."""

from datetime import UTC, datetime

import pytest

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.runtime.times import elapsed_text, parse_start_time

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("2 hours ago", "2026-01-31T10:00:00.000Z"),
        ("1 day ago", "2026-01-30T12:00:00.000Z"),
        ("an hour ago", "2026-01-31T11:00:00.000Z"),
        ("90 Seconds ago", "2026-01-31T11:58:30.000Z"),
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T10:00", "2026-01-31T10:00:00.000Z"),
        ("2026-01-31T10:00:00.5Z", "2026-01-31T10:00:00.500Z"),
        ("2026-01-31T10:00:00+02:00", "2026-01-31T08:00:00.000Z"),
    ],
)
def test_a_start_time_is_parsed(given: str, meant: str) -> None:
    assert parse_start_time(given, NOW) == meant


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("yesterday", "is not a time; use 2026-01-31T12:00"),
        ("hours ago", "is not a time"),
        ("", "is not a time"),
        ("1969-12-31", "before 1970"),
        ("2026-02-01", "in the future"),
        ("9999999999 weeks ago", "is too long ago"),
    ],
)
def test_an_invalid_start_time_is_explained(given: str, why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        parse_start_time(given, NOW)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("2026-01-31T11:59:55Z", "5 s"),
        ("2026-01-31T11:57:01Z", "2 min"),
        ("2026-01-31T09:30:00Z", "2 h 30 min"),
        ("2026-01-28T10:00:00Z", "3 d 2 h"),
        ("2026-01-31T12:00:03Z", "0 s"),
    ],
)
def test_elapsed_time_is_shown_briefly(time: str, message: str) -> None:
    assert elapsed_text(time, NOW) == message
