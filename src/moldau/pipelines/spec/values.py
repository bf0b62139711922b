"""Texts with a meaning in a pipeline: durations, times, names."""

import re
from datetime import UTC, datetime

from moldau.settings.option_parser import OptionValueError, parse_duration

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""What pipelines and sinks are called: it is part of paths, of groups' ids and of command lines."""
SLUG_RULE = "use letters, digits, - and _, a letter or digit first, at most 128"


def parse_interval(text: str) -> str:
    """Returns a duration as Spark writes intervals, `10 seconds`; raises ValueError."""
    try:
        return str(parse_duration(text))
    except OptionValueError as error:
        raise ValueError(f"{text!r} is not {error}") from None


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
