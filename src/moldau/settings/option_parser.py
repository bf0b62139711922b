"""Parsers for option values written as text, shared by broker settings, Spark options and pipeline files.

A parser raises OptionValueError with a message that describes the accepted values. The caller adds the name and the
value of the option to the message.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)
_UNITS_MS = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}
_ABBREVIATIONS = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
}


class OptionValueError(ValueError):
    """The error for an invalid value. Its message describes the accepted values, for example `true or false`."""


class Duration(NamedTuple):
    amount: float
    unit: str
    """A key of `_UNITS_MS`."""

    @property
    def milliseconds(self) -> int:
        return int(self.amount * _UNITS_MS[self.unit])

    def __str__(self) -> str:
        """Returns the duration in Spark's format for intervals, for example `10 seconds`."""
        return f"{self.amount:g} {self.unit}{'' if self.amount == 1 else 's'}"


def parse_boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise OptionValueError("true or false")
    return lowered == "true"


def parse_integer(text: str, low: int | None = None) -> int:
    if not _INTEGER.fullmatch(text.strip()) or (low is not None and int(text) < low):
        raise OptionValueError("an integer" if low is None else f"an integer, {low} or more")
    return int(text)


def parse_number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise OptionValueError("a number")
    return float(text)


def parse_duration(text: str, default_unit: str | None = None) -> Duration:
    """Parses a duration such as `10 seconds`, `500ms` or `1 h`. A number without a unit has the default unit."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = "" if found is None else found[2] or default_unit or ""
    unit = _ABBREVIATIONS.get(unit, unit.removesuffix("s"))
    if found is None or unit not in _UNITS_MS:
        raise OptionValueError("a duration such as 500ms, 10 seconds or 1 hour")
    return Duration(float(found[1]), unit)


def duration_text(seconds: int) -> str:
    """Returns a duration for users, for example `3 min` or `2 h 5 min`."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def parse_choice(text: str, choices: Iterable[str]) -> str:
    names = list(choices)
    lowered = text.strip().lower()
    if lowered not in names:
        raise OptionValueError(" or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}")
    return lowered


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean retention.ms?`, or an empty string if no known name is similar. Ignores case."""
    from difflib import get_close_matches  # Loaded on an error only: it adds to the memory of each node.

    by_lower_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), list(by_lower_case), n=1, cutoff=0.6)
    return f"; did you mean {by_lower_case[found[0]]}?" if found else ""


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message: the most similar known name, or all known names if none is similar."""
    names = list(known)
    return did_you_mean(name, names) or f"; there are {', '.join(names)}"
