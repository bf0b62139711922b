"""Reports of running queries, which pipelines publish to a compacted topic. No I/O.

The key of a record is `<pipeline>/<query>`, and its value the latest report as JSON. So every reader of the topic knows
the queries of all pipelines, on whatever machine they run.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

REPORT_TOPIC = "moldau.pipelines"
RETENTION_MS = 7 * 24 * 3_600_000
REPORT_TOPIC_CONFIGS = {
    # A pipeline that has not run for a week is no longer listed.
    "cleanup.policy": "compact,delete",
    "retention.ms": str(RETENTION_MS),
    "segment.ms": str(3_600_000),
}
REPORT_INTERVAL_S = 5.0
"""The shortest time between two reports of a query, except when its state changes."""
HEARTBEAT_INTERVAL_S = 30.0
"""The longest time between two reports of a query that runs."""
LOST_AFTER_MS = 100_000
"""A query that runs and has not reported for this long was probably killed: three reports are missing."""

REPORTS_MAX = 1_000
"""How many queries a reader keeps. Later ones are ignored."""
REPORT_BYTES_MAX = 16_384
NAME_LENGTH_MAX = 255
"""Names become labels of metrics."""
ERROR_LENGTH_MAX = 1_000
_INTEGER_MAX = 2**63 - 1
_TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, after which Python has no times."""

RUNNING_STATES = ("starting", "running", "waiting")
LOST = "lost"


@dataclass(frozen=True, slots=True)
class QueryReport:
    pipeline: str
    query: str
    state: str
    """A `QueryStatus`."""
    time_ms: int
    """The time of the report."""
    started: str
    """When the run started."""
    host: str
    pid: int
    master: str
    generation: int
    rows: int = 0
    """The number of records read since the start of the run."""
    late: int = 0
    lag: int | None = None
    batch: int | None = None
    batch_ms: int | None = None
    input_rate: float | None = None
    process_rate: float | None = None
    watermark: str | None = None
    error: str | None = None

    @property
    def key(self) -> bytes:
        return f"{self.pipeline}/{self.query}".encode()

    def state_at(self, now_ms: int) -> str:
        """Returns the state; `lost` if the query should run and has stopped to report."""
        is_silent = self.state in RUNNING_STATES and now_ms - self.time_ms > LOST_AFTER_MS
        return LOST if is_silent else self.state

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


_FIELDS = frozenset(each.name for each in fields(QueryReport))
_INTEGERS = ("time_ms", "pid", "generation", "rows", "late")
_OPTIONAL_INTEGERS = ("lag", "batch", "batch_ms")
_OPTIONAL_RATES = ("input_rate", "process_rate")
_TEXTS = ("pipeline", "query", "state", "started", "host", "master")
_OPTIONAL_TEXTS = ("watermark", "error")


def parse_report(value: bytes) -> QueryReport | None:
    """Returns the report, or None if the value is none: every client can write to the topic."""
    if len(value) > REPORT_BYTES_MAX:
        return None
    try:
        document = json.loads(value)
        # Ignore fields of later versions.
        report = QueryReport(**{name: each for name, each in document.items() if name in _FIELDS})
        for name in (*_TEXTS, *_OPTIONAL_TEXTS):
            _check_text(getattr(report, name), is_optional=name in _OPTIONAL_TEXTS)
        for name in (*_INTEGERS, *_OPTIONAL_INTEGERS):
            _check_integer(getattr(report, name), is_optional=name in _OPTIONAL_INTEGERS)
        for name in _OPTIONAL_RATES:
            _check_rate(getattr(report, name))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    has_short_names = max(len(report.pipeline), len(report.query)) <= NAME_LENGTH_MAX
    return report if has_short_names and 0 <= report.time_ms <= _TIME_MS_MAX else None


def _check_text(found: object, *, is_optional: bool) -> None:
    if isinstance(found, str):
        # JSON can contain surrogates, which cannot be printed.
        found.encode()
    elif found is not None or not is_optional:
        raise TypeError("not a text")


def _check_integer(found: object, *, is_optional: bool) -> None:
    if found is None and is_optional:
        return
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) > _INTEGER_MAX:
        raise TypeError("not an integer")


def _check_rate(found: object) -> None:
    if found is not None and not (isinstance(found, int | float) and math.isfinite(found)):
        raise TypeError("not a rate")


class LatestReports:
    """The latest report of each query, from the records of the topic in their order."""

    def __init__(self) -> None:
        self._reports: dict[bytes, QueryReport] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        if value is None:
            self._reports.pop(key, None)
            return
        report = parse_report(value)
        has_space = key in self._reports or len(self._reports) < REPORTS_MAX
        if report is not None and report.key == key and has_space:
            self._reports[key] = report

    def drop_expired(self, now_ms: int) -> None:
        """Drops the reports that the retention of the topic deletes, too."""
        self._reports = {key: each for key, each in self._reports.items() if each.time_ms >= now_ms - RETENTION_MS}

    def clear(self) -> None:
        self._reports.clear()

    def __iter__(self) -> Iterator[QueryReport]:
        return iter(sorted(self._reports.values(), key=lambda each: (each.pipeline, each.query)))
