"""Parsers of intervals, times and names in a pipeline file."""

import re
from datetime import UTC, datetime

from moldau.settings.option_parser import OptionValueError, parse_duration

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""Matches the names of pipelines and sinks, which are used in paths, group ids and command lines."""
SLUG_RULE = "use letters, digits, - and _, a letter or digit first, at most 128"


def parse_interval(text: str) -> str:
    """Returns a duration in Spark's format for intervals, such as `10 seconds`. Raises ValueError."""
    try:
        return str(parse_duration(text))
    except OptionValueError as error:
        raise ValueError(f"{text!r} is not {error}") from None


def parse_starting(text: str) -> str:
    """Returns `earliest`, `latest` or the given ISO 8601 time. Raises ValueError for other texts."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    parse_time(text)
    return text


def parse_time(text: str) -> datetime:
    """Parses an ISO 8601 time. A time without a zone is in UTC. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither earliest nor latest nor a time such as 2024-05-01T00:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def is_sql_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_slug(text: str) -> bool:
    return _SLUG.fullmatch(text) is not None
