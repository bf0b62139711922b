"""The progress of queries, which is parsed from Spark's reports, and the file that stores it."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any


class QueryStatus(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one micro-batch."""

    query: str
    at: str
    batch: int
    rows: int
    input_rate: float
    """Records per second since the previous batch."""
    process_rate: float
    """Records per second during the batch."""
    batch_ms: int
    lag: int | None
    """The number of records in the topics beyond the end of the batch, at the time of the report; None if unknown."""
    late: int = 0
    """The number of rows that the watermark dropped. A row may be the aggregate of several records."""
    watermark: str | None = None
    read: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The next offsets to read, by topic and partition."""

    def lag_to(self, ends: Mapping[tuple[str, str], int]) -> int | None:
        """Returns the number of records between this batch and the end offsets; None if an end offset is unknown."""
        read = _by_partition(self.read)
        if not read or not read.keys() <= ends.keys():
            return None
        return sum(max(0, ends[each] - offset) for each, offset in read.items())


@dataclass(frozen=True, slots=True)
class QueryState:
    query: str
    state: QueryStatus = QueryStatus.STARTING
    rows: int = 0
    """The number of records read since the start of the run."""
    late: int = 0
    last: Progress | None = None
    error: str | None = None
    lag: int | None = None
    """The number of records in the topics that no finished batch includes; None if unknown."""

    def after(self, progress: Progress) -> "QueryState":
        return replace(
            self, rows=self.rows + progress.rows, late=self.late + progress.late, last=progress, lag=progress.lag
        )


def parse_progress(query: str, report: Mapping[str, Any]) -> Progress:
    """Converts the JSON of Spark's StreamingQueryProgress."""
    sources = report.get("sources") or []
    operators = report.get("stateOperators") or []
    duration = report.get("batchDuration")
    if duration is None:
        duration = (report.get("durationMs") or {}).get("triggerExecution", 0)
    return Progress(
        query=query,
        at=str(report.get("timestamp", "")),
        batch=int(report.get("batchId", -1)),
        rows=sum(int(each.get("numInputRows", 0)) for each in sources),
        input_rate=sum(_rate(each.get("inputRowsPerSecond")) for each in sources),
        process_rate=sum(_rate(each.get("processedRowsPerSecond")) for each in sources),
        batch_ms=int(duration),
        lag=lag_of(sources),
        late=sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators),
        watermark=(report.get("eventTime") or {}).get("watermark"),
        read=_read(sources),
    )


def _read(sources: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the end offsets of the batch. If several sources read a partition, uses the lowest offset."""
    read: dict[str, dict[str, int]] = {}
    for each in sources:
        for (topic, partition), offset in (_offsets(each.get("endOffset")) or {}).items():
            known = read.setdefault(topic, {})
            known[partition] = min(offset, known.get(partition, offset))
    return read


def lag_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Returns how many records the sources had beyond the end of the batch when Spark planned it; None if unknown."""
    lag = 0
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None or latest is None:
            return None
        # Count only partitions with both offsets. A new partition has no end offset until a micro-batch includes it.
        lag += sum(max(0, latest[each] - offset) for each, offset in end.items() if each in latest)
    return lag


def _offsets(report: object) -> dict[tuple[str, str], int] | None:
    """Parses the offsets of a report. Spark reports offsets as JSON or as a string that contains JSON."""
    if isinstance(report, str):
        try:
            report = json.loads(report)
        except ValueError:
            return None
    return _by_partition(report) if isinstance(report, Mapping) else None


def _by_partition(report: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    return {
        (topic, partition): offset
        for topic, partitions in report.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _rate(report: object) -> float:
    """Parses a rate. Returns 0 for NaN and infinity, which Spark reports when it divides by a duration of 0."""
    rate = float(report) if isinstance(report, int | float | str) else 0.0
    return rate if math.isfinite(rate) else 0.0


def to_json(progress: Progress) -> str:
    return json.dumps({"event": "batch", **asdict(progress)})


def latest_progress(lines: Iterable[str], generation: int | None = None) -> dict[str, Progress]:
    """Returns the last batch of each query. If `generation` is set, batches of other generations are ignored."""
    found: dict[str, Progress] = {}
    current_generation = generation
    for line in lines:
        try:
            document = json.loads(line)
            event = document.pop("event")
            if event == "started":
                current_generation = int(document["generation"])
            elif event == "batch" and generation in (None, current_generation):
                progress = Progress(**document)
                found[progress.query] = progress
        except (ValueError, TypeError, KeyError, AttributeError):
            # The line is truncated, or is an event that this version does not know.
            continue
    return found


BYTES_MAX = 8 * 1024 * 1024


class ProgressFile:
    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        if self._file.tell() > 0 and self._file.tell() + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(rotated_path(self._path))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


def rotated_path(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def read_lines(path: Path) -> Iterable[str]:
    """Yields all lines, oldest first."""
    for each in (rotated_path(path), path):
        try:
            with each.open(errors="replace") as file:
                yield from file
        except FileNotFoundError:
            continue
