"""Positions in a log as users write them, for `--from` and `--until`: offsets, times, relative times and both ends."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from moldau.client.consumer.consumer import Consumer
from moldau.client.record import TopicPartition
from moldau.settings.option_parser import Duration, OptionValueError, parse_duration

POSITION_HELP = (
    "beginning, end, an offset such as 1200, -10 for the last 10 offsets, a time such as 2026-01-31T12:00:00Z (UTC by "
    "default), @1769860800000 (milliseconds since 1970) or '5 minutes ago'"
)
TIME_HELP = (
    "a time such as 2026-01-31T12:00 (UTC by default), @1769860800000 (milliseconds since 1970) or '2 hours ago'"
)
_NAMES: dict[str, Literal["beginning", "end"]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PositionError(ValueError):
    """The error for a text that is not a position. The message is a sentence without a subject."""


class LogPosition(NamedTuple):
    to: Literal["beginning", "end", "offset", "last", "time"]
    value: int = 0
    """The offset, the number of offsets before the end, or the time in milliseconds since 1970."""


class LogBounds(NamedTuple):
    """The offsets that a consumer can read of a partition."""

    start: int
    end: int
    """The offset after the last one; with read_committed the last stable offset."""


def parse_position(text: str, now_ms: int) -> LogPosition:
    """Raises PositionError if the text is not a position, or is a time before 1970 or in the future."""
    stripped = text.strip()
    lowered = stripped.lower()
    if lowered in _NAMES:
        return LogPosition(_NAMES[lowered])
    if _INTEGER.fullmatch(stripped):
        return LogPosition("last", -int(stripped)) if stripped.startswith("-") else LogPosition("offset", int(stripped))
    time_ms = _find_time(text, now_ms)
    if time_ms is None:
        raise PositionError(f"{text!r} is not a position; use {POSITION_HELP}")
    if time_ms > now_ms:
        raise PositionError(f"{text!r} is in the future")
    return LogPosition("time", time_ms)


def parse_time(text: str, now_ms: int) -> int:
    """Returns milliseconds since 1970. Raises PositionError if the text is not a time, or is a time before 1970."""
    time_ms = _find_time(text, now_ms)
    if time_ms is None:
        raise PositionError(f"{text!r} is not {TIME_HELP}")
    return time_ms


def _find_time(text: str, now_ms: int) -> int | None:
    """Returns None if the text has no format of a time. Raises PositionError if it has one and is invalid."""
    stripped = text.strip()
    lowered = stripped.lower()
    if lowered.endswith(" ago"):
        time_ms = now_ms - _parse_ago(text, lowered.removesuffix(" ago"))
    elif stripped.startswith("@") and _INTEGER.fullmatch(stripped[1:]):
        time_ms = int(stripped[1:])
    else:
        try:
            time = datetime.fromisoformat(stripped)
        except ValueError:
            return None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        time_ms = (time - _EPOCH) // timedelta(milliseconds=1)
    if time_ms < 0:
        raise PositionError(f"{text!r} is before 1970")
    return time_ms


def _parse_ago(text: str, duration: str) -> int:
    try:
        parsed: Duration = parse_duration(duration)
    except OptionValueError:
        raise PositionError(
            f"{text!r} is not a time; use for example '90s ago', '5 minutes ago' or '2 days ago'"
        ) from None
    return parsed.milliseconds


async def find_offsets(
    consumer: Consumer, position: LogPosition, bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    """Returns the offset of a position in each partition.

    An offset outside of the log becomes the nearest end. A time means the first record at or after it, or the log end
    if there is none.
    """
    if position.to == "time":
        records = await consumer.offsets_for_times(dict.fromkeys(bounds, position.value))
        return {each: bounds[each].end if found is None else found.offset for each, found in records.items()}
    offsets = {}
    for each, (start, end) in bounds.items():
        wanted = {"beginning": start, "end": end, "offset": position.value, "last": end - position.value}[position.to]
        offsets[each] = min(max(wanted, start), end)
    return offsets


async def find_bounds(consumer: Consumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
    requested = list(partitions)
    starts = await consumer.beginning_offsets(requested)
    ends = await consumer.end_offsets(requested)
    return {each: LogBounds(starts[each], ends[each]) for each in requested}
