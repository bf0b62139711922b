"""Times entered by users, such as `2026-01-31T12:00`, `2 hours ago` or `earliest`. No I/O."""

import re
from datetime import UTC, datetime, timedelta

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.spec.values import parse_time
from moldau.settings.option_parser import duration_text

EARLIEST, LATEST = "earliest", "latest"
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
AGO = re.compile(rf"(\d+|an?)\s*({'|'.join(UNITS)})s?\s+ago", re.I)


def parse_start_time(entered: str, now: datetime) -> str:
    """Returns an ISO 8601 time in UTC, `earliest` or `latest`. Times without a zone are in UTC."""
    text = entered.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    ago = AGO.fullmatch(text)
    if ago is not None:
        number = 1 if ago[1].lower() in ("a", "an") else int(ago[1])
        try:
            return iso(now - timedelta(seconds=number * UNITS[ago[2].lower()]))
        except OverflowError:
            raise PipelineError(f"{entered!r} is too long ago; use `earliest`") from None
    try:
        time = parse_time(text)
    except ValueError:
        raise PipelineError(
            f"{entered!r} is not a time; use 2026-01-31T12:00 (in UTC), '2 hours ago', earliest or latest"
        ) from None
    if time < datetime(1970, 1, 1, tzinfo=UTC):
        raise PipelineError(f"{entered!r} is before 1970; use `earliest`")
    if time > now:
        raise PipelineError(f"{entered!r} is in the future; a replay starts in the past")
    return iso(time)


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def elapsed_text(time: str, now: datetime) -> str:
    """Returns the time since an ISO time as text, for example `3 min`."""
    return duration_text(max(0, int((now - datetime.fromisoformat(time)).total_seconds())))
