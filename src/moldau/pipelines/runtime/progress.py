"""What Spark tells about a batch, as the few numbers people ask for. Pure."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class QueryStatus(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of one query."""

    query: str
    at: str
    batch: int
    rows: int
    input_rate: float
    """Records that came in, per second since the last batch."""
    process_rate: float
    """Records per second that the batch could have gone on with."""
    batch_ms: int
    lag: int | None
    """Records that were in the topics behind those of the batch when it was told of; None where nobody knows."""
    late: int = 0
    """Rows left out because the watermark had passed them. Spark sums before it looks: one may stand for several
    records."""
    watermark: str | None = None
    read: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How far the topics have been read: the next offset, by topic and partition."""

    def lag_to(self, ends: Mapping[tuple[str, str], int]) -> int | None:
        """How many records there are behind what was read; None where the end of a partition is not known."""
        read = _by_partition(self.read)
        if not read or not read.keys() <= ends.keys():
            return None
        return sum(max(0, ends[each] - offset) for each, offset in read.items())


@dataclass(frozen=True, slots=True)
class QueryState:
    """A query as it stands."""

    query: str
    state: QueryStatus = QueryStatus.STARTING
    rows: int = 0
    """In this run."""
    late: int = 0
    last: Progress | None = None
    error: str | None = None
    lag: int | None = None
    """Records that are in the topics now, and not in a batch that is done; None where nobody knows."""

    def after(self, progress: Progress) -> "QueryState":
        return replace(
            self,
            rows=self.rows + progress.rows,
            late=self.late + progress.late,
            last=progress,
            lag=progress.lag,
        )


def parse_progress(query: str, told: Mapping[str, Any]) -> Progress:
    """`told` is Spark's StreamingQueryProgress, from its JSON."""
    sources = told.get("sources") or []
    operators = told.get("stateOperators") or []
    duration = told.get("batchDuration")
    if duration is None:
        duration = (told.get("durationMs") or {}).get("triggerExecution", 0)
    return Progress(
        query=query,
        at=str(told.get("timestamp", "")),
        batch=int(told.get("batchId", -1)),
        rows=sum(int(each.get("numInputRows", 0)) for each in sources),
        input_rate=sum(_rate(each.get("inputRowsPerSecond")) for each in sources),
        process_rate=sum(_rate(each.get("processedRowsPerSecond")) for each in sources),
        batch_ms=int(duration),
        lag=lag_of(sources),
        late=sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators),
        watermark=(told.get("eventTime") or {}).get("watermark"),
        read=_read(sources),
    )


def _read(sources: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """A partition that several sources read counts as far as the last of them has come."""
    read: dict[str, dict[str, int]] = {}
    for each in sources:
        for (topic, partition), offset in (_offsets(each.get("endOffset")) or {}).items():
            known = read.setdefault(topic, {})
            known[partition] = min(offset, known.get(partition, offset))
    return read


def lag_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """How many records were in the topics behind those of a batch when it was planned, over all sources; None where
    one does not say."""
    lags = [_source_lag(each) for each in sources]
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def _source_lag(source: Mapping[str, Any]) -> int | None:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    # A partition that is new counts once it is known where reading it begins.
    return sum(max(0, latest[each] - offset) for each, offset in end.items() if each in latest)


def _offsets(told: object) -> dict[tuple[str, str], int] | None:
    """Spark gives offsets as JSON, or as text that is JSON."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    return _by_partition(told) if isinstance(told, Mapping) else None


def _by_partition(told: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    return {
        (topic, partition): offset
        for topic, partitions in told.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _rate(told: object) -> float:
    """Spark divides by the time a batch took, which may be nothing."""
    rate = float(told) if isinstance(told, int | float | str) else 0.0
    return rate if math.isfinite(rate) else 0.0


def to_json(progress: Progress) -> str:
    return json.dumps({"event": "batch", **asdict(progress)})


def from_json(line: str) -> Progress | None:
    """None for a line that tells of something else, or was cut short by a crash."""
    try:
        kept = json.loads(line)
        if kept.pop("event", None) != "batch":
            return None
        return Progress(**kept)
    except (ValueError, TypeError, AttributeError):
        return None


def latest_progress(lines: Iterable[str], generation: int | None = None) -> dict[str, Progress]:
    """The last batch of each query, of all or of those of one generation of checkpoints."""
    found: dict[str, Progress] = {}
    begun = generation
    for line in lines:
        each = from_json(line)
        if each is None:
            begun = _started_generation(line) or begun
        elif generation in (None, begun):
            found[each.query] = each
    return found


def _started_generation(line: str) -> int | None:
    try:
        kept = json.loads(line)
        return int(kept["generation"]) if kept["event"] == "started" else None
    except (ValueError, TypeError, KeyError):
        return None


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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rotated_path(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def read_lines(path: Path) -> Iterable[str]:
    """All lines that are kept, the oldest first."""
    for each in (rotated_path(path), path):
        try:
            with each.open(errors="replace") as file:
                yield from file
        except FileNotFoundError:
            continue
