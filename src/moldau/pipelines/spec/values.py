"""Texts with a meaning in a pipeline: durations, times, names."""

import re
from datetime import UTC, datetime

_DURATION = re.compile(r"\s*(\d+)\s*(ms|milliseconds?|s|seconds?|min|minutes?|h|hours?|d|days?)\s*", re.I)
_UNITS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""What pipelines and sinks are called: it is part of paths, of groups' ids and of command lines."""
SLUG_RULE = "use letters, digits, - and _, a letter or digit first, at most 128"


def parse_duration(text: str) -> str:
    """As Spark takes it; raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 10 seconds, 500 ms or 1 hour")
    number, unit = found.groups()
    return f"{int(number)} {_UNITS.get(unit.lower(), unit.lower())}"


def parse_starting(text: str) -> str:
    """`earliest`, `latest` or a time; raises ValueError."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    parse_time_ms(text)
    return text


def parse_time_ms(text: str) -> int:
    """An ISO 8601 time as milliseconds since 1970; one without a zone is in UTC. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither earliest nor latest nor a time such as 2024-05-01T00:00:00Z"
        ) from None
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def is_sql_name(text: str) -> bool:
    """Whether it can name a view in SQL as it stands."""
    return _NAME.fullmatch(text) is not None


def is_slug(text: str) -> bool:
    """Whether it can be part of a path, of a group's id and of a command line."""
    return _SLUG.fullmatch(text) is not None
