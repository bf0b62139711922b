"""What Spark tells about a batch, as the few numbers people ask for. Pure."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class State(StrEnum):
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
    """Records that are in the topics and not processed yet; None where the source does not say."""
    late: int = 0
    """Rows left out because the watermark had passed them. Spark sums before it looks: one may stand for several
    records."""
    watermark: str | None = None


@dataclass(frozen=True, slots=True)
class QueryState:
    """A query as it stands."""

    query: str
    state: State = State.STARTING
    rows: int = 0
    """In this run."""
    late: int = 0
    last: Progress | None = None
    error: str | None = None

    def after(self, progress: Progress) -> "QueryState":
        return replace(self, rows=self.rows + progress.rows, late=self.late + progress.late, last=progress)


def progress_of(query: str, told: Mapping[str, Any]) -> Progress:
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
    )


def lag_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """How many records are in the topics behind what was read, over all sources; None where one does not say."""
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
    if not isinstance(told, Mapping):
        return None
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


def latest_of(lines: Iterable[str]) -> dict[str, Progress]:
    """The last batch of each query."""
    found = (from_json(line) for line in lines)
    return {each.query: each for each in found if each is not None}
