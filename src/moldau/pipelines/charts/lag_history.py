"""The chart of lag and rates, from the table that the template lag-history writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moldau.pipelines.charts.line_chart import Panel, Series, render_svg
from moldau.pipelines.definition import PipelineError

GROUP_LAG, PARTITION = "group-lag", "partition"
POINTS_MAX = 360
"""How many points a line has at most. Of several samples in the time of one point, the highest counts."""
_COLUMNS = ("kind", "time", "group", "topic", "partition", "lag_records", "lag_ms", "commit_rate", "produce_rate")
_INTERVAL_MS_DEFAULT = 10_000


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    groups: tuple[str, ...] = ()
    """Empty for all groups, and so for topics."""
    topics: tuple[str, ...] = ()
    begin: datetime | None = None
    """None for the oldest sample."""


def draw_lag_history(table: Path, selected: HistoryFilter) -> str:
    """Returns the chart as SVG. Raises PipelineError if the table cannot be read or has no matching samples."""
    samples = _read_samples(table, selected)
    if not samples.num_rows:
        raise PipelineError(f"{table} has no samples of these groups and topics in this time")
    times_ms = pc.cast(samples["time"], pa.int64())
    begin_ms, end_ms = pc.min(times_ms).as_py(), pc.max(times_ms).as_py()
    point_ms = max((end_ms - begin_ms) // POINTS_MAX, _interval_ms(samples), 1)
    buckets = pc.multiply(pc.divide(pc.subtract(times_ms, begin_ms), point_ms), point_ms)
    samples = samples.append_column("at", pc.add(buckets, begin_ms))
    lag = samples.filter(pc.equal(samples["kind"], GROUP_LAG))
    partitions = samples.filter(pc.equal(samples["kind"], PARTITION))
    panels = [
        Panel("Lag in records, by group", _lines(lag, "group", "lag_records", "sum"), is_integer=True),
        Panel("Lag in seconds, by group (of its slowest partition)", _lines(lag, "group", "lag_ms", "max", 0.001)),
        Panel("Committed records per second, by group", _lines(lag, "group", "commit_rate", "sum")),
        Panel("Produced records per second, by topic", _lines(partitions, "topic", "produce_rate", "sum")),
    ]
    return render_svg("Lag and rates", panels, begin_ms / 1000, end_ms / 1000, 3 * point_ms / 1000)


def _read_samples(table: Path, selected: HistoryFilter) -> pa.Table:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    conditions: list[tuple[str, str, Any]] = []
    if selected.begin is not None:
        # The days of the table limit which files are read.
        conditions.append(("day", ">=", selected.begin.astimezone(UTC).date()))
        conditions.append(("time", ">=", selected.begin))
    if selected.topics:
        conditions.append(("topic", "in", list(selected.topics)))
    try:
        found = DeltaTable(str(table)).to_pyarrow_table(columns=list(_COLUMNS), filters=conditions or None)
    except TableNotFoundError:
        raise PipelineError(
            f"there is no Delta table in {table}: create one with `moldau pipeline new lag-history --from lag-history` "
            "and run it"
        ) from None
    except (DeltaError, ValueError, KeyError, pa.ArrowException) as error:
        raise PipelineError(f"{table} is not a table of the template lag-history: {error}") from None
    found = found.set_column(
        found.schema.get_field_index("time"), "time", found["time"].cast(pa.timestamp("ms", tz="UTC"), safe=False)
    )
    if selected.groups:
        is_selected = pc.is_in(found["group"], pa.array(selected.groups, pa.string()))
        found = found.filter(pc.or_(is_selected, pc.equal(found["kind"], PARTITION)))
    return found


def _interval_ms(samples: pa.Table) -> int:
    """Returns the usual time between two samples of one partition.

    A point must not be shorter, or the sum over partitions would lack those that have no sample in its time.
    """
    counted = samples.group_by(["kind", "group", "topic", "partition"]).aggregate(
        [("time", "min"), ("time", "max"), ("time", "count")]
    )
    intervals: list[float] = sorted(
        (last - first) / timedelta(milliseconds=1) / (count - 1)
        for first, last, count in zip(
            counted["time_min"].to_pylist(),
            counted["time_max"].to_pylist(),
            counted["time_count"].to_pylist(),
            strict=True,
        )
        if count > 1
    )
    if not intervals:
        return _INTERVAL_MS_DEFAULT
    # Add half an interval, because samples are not exactly regular.
    return round(1.5 * intervals[len(intervals) // 2])


def _lines(samples: pa.Table, by: str, column: str, combine: str, scale: float = 1.0) -> Sequence[Series]:
    """Returns one line per value of `by`: the highest sample of each partition, combined over the partitions.

    The line has a gap while the lag of a partition is unknown, because a sum of the others would fall.
    """
    known = samples if column == "lag_records" else samples.filter(pc.is_valid(samples[column]))
    highest = known.group_by(["at", by, "topic", "partition"] if by != "topic" else ["at", by, "partition"])
    options = pc.ScalarAggregateOptions(skip_nulls=False)
    combined = (
        highest.aggregate([(column, "max")]).group_by(["at", by]).aggregate([(f"{column}_max", combine, options)])
    )
    combined = combined.filter(pc.is_valid(combined[f"{column}_max_{combine}"]))
    ordered = combined.sort_by([(by, "ascending"), ("at", "ascending")])
    points: dict[str, list[tuple[float, float]]] = {}
    for at, name, value in zip(
        ordered["at"].to_pylist(), ordered[by].to_pylist(), ordered[f"{column}_max_{combine}"].to_pylist(), strict=True
    ):
        points.setdefault(str(name), []).append((at / 1000, max(0.0, value * scale)))
    return [Series(name, each) for name, each in points.items()]
