"""`moldau group lag`: the lag of groups in records and in seconds, once or live."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from math import ceil, inf, isfinite
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import ConsoleDimensions
from rich.console import Group as RenderGroup
from rich.live import Live
from rich.text import Text

from moldau.cli.admin import REQUEST_TIMEOUT_MS, connected_cluster, notify_if_slow, run_or_exit
from moldau.cli.console import TextTable, make_table, out_console, pluralize, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, IsolationLevel, Json, option, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.group_lag import GroupLagSample, PartitionLagSample
from moldau.client.admin.group_lag_estimator import GroupLagEstimator
from moldau.client.admin.requester import single_result
from moldau.client.errors import KafkaError, UnsupportedVersionError
from moldau.lag.state import LagState, PartitionLag

REFRESH_S = 2.0
UNKNOWN = "-"
STATE_STYLES = {LagState.OK: "green", LagState.FALLING_BEHIND: "yellow"}
NUMBERS = ("partition", "committed", "end", "lag", "time lag", "committed/s", "produced/s", "caught up in")
COLUMNS = ("group", "topic", *NUMBERS, "trend", "state", "consumer")
LEFT_OUT_IF_NARROW = ("committed", "end", "produced/s", "committed/s", "trend", "caught up in")
"""Columns that a narrow terminal does not show, the least important first."""
SHRINKING_WIDTHS = {"group": 24, "topic": 24, "consumer": 16}
"""To which width these columns can shrink before others are left out: names are folded, and consumers truncated."""
COLUMN_GAP = 2


def group_lag(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", callback=validate_name, help="Group id; by default all groups.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the lag live, until Ctrl-C.")] = False,
    count: Annotated[
        int | None, option("--count", "NUMBER", "With --watch: end after this many updates.", min=1)
    ] = None,
    as_json: Json = False,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> None:
    """Show how far groups are behind: in records, in seconds, and how long it takes them to catch up.

    The time lag is the age of the first unread record. Rates and states come from the last ten samples, so a group that
    was not looked at before has none yet. --isolation-level is only for brokers that cannot tell how a group reads, as
    Apache Kafka; there, this command samples by itself.

    moldau group lag billing --watch
    """
    if count is not None and not watch:
        raise typer.BadParameter("--count needs --watch", param_hint="--count")
    run_or_exit(_show(group, bootstrap, count if watch else 1, watch, as_json, isolation_level), bootstrap)


async def _show(
    group: str | None, bootstrap: str, count: int | None, watch: bool, as_json: bool, isolation_level: str
) -> None:
    connecting = connected_cluster(
        bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS, groups=() if group is None else (group,)
    )
    async with connecting as cluster:
        admin = Admin(cluster, timeout_ms=REQUEST_TIMEOUT_MS)
        source = LagSource(admin, group, isolation_level)
        with notify_if_slow(f"waiting for {bootstrap} ..."):
            samples = await source.read()
        if not samples and not watch:
            print_notice("There are no groups. Run `moldau consume TOPIC --group NAME` to create one.")
        is_live = watch and not as_json and sys.stdout.isatty()
        with Live(console=out_console, auto_refresh=False) if is_live else nullcontext() as live:
            number = 1
            while True:
                if as_json:
                    _print_json(samples)
                elif live is not None:
                    live.update(render(samples, out_console.size, source.error), refresh=True)
                else:
                    _print_samples(samples, with_time=watch)
                if number == count:
                    return
                number += 1
                await asyncio.sleep(REFRESH_S)
                samples = await source.read_again(samples)


class LagSource:
    """Reads the samples of coordinators, or samples by itself if the brokers do not."""

    def __init__(self, admin: Admin, group: str | None, isolation_level: str) -> None:
        self._admin = admin
        self._group = group
        self._isolation_level = isolation_level
        self._estimator: GroupLagEstimator | None = None
        self.error: KafkaError | None = None
        """Why the latest samples could not be read."""

    async def read(self) -> list[GroupLagSample]:
        if self._estimator is None:
            try:
                if self._group is None:
                    return await self._admin.list_group_lags()
                return [single_result(await self._admin.describe_group_lags([self._group]))]
            except UnsupportedVersionError:
                self._estimator = GroupLagEstimator(
                    self._admin, isolation_level=self._isolation_level, interval_ms=int(REFRESH_S * 1_000)
                )
        return await self._estimator.sample(() if self._group is None else (self._group,))

    async def read_again(self, previous: list[GroupLagSample]) -> list[GroupLagSample]:
        """Returns the previous samples after a transient error, for example while a coordinator fails over."""
        try:
            samples = await self.read()
        except KafkaError as error:
            if not error.is_retriable:
                raise
            self.error = error
            return previous
        self.error = None
        return samples


# Text


def render(samples: Sequence[GroupLagSample], size: ConsoleDimensions, error: KafkaError | None = None) -> RenderGroup:
    """Returns the summary and a table that fit into a terminal. If not all partitions fit, the worst are shown."""
    rows = _rows(samples)
    age = _age(samples)
    row_count = max(1, size.height - 3 - (error is not None) - (age is not None))
    parts: list[Any] = [Text(_summary(samples), style="bold", no_wrap=True, overflow="ellipsis")]
    if len(rows) > row_count:
        rows.sort(key=_severity)
        hidden = pluralize(len(rows) - row_count + 1, "more partition")
        rows = rows[: row_count - 1]
        parts += [_table(rows, size.width), Text(f"and {hidden}, in a better state", style="dim")]
    else:
        parts.append(_table(rows, size.width))
    if age is not None:
        parts.append(Text(age, style="dim", no_wrap=True, overflow="ellipsis"))
    if error is not None:
        parts.append(Text(f"not up to date: {error}", style="red", no_wrap=True, overflow="ellipsis"))
    return RenderGroup(*parts)


def _age(samples: Sequence[GroupLagSample]) -> str | None:
    """Returns how old the oldest sample is: the screen is updated more often than groups are sampled."""
    ages_ms = [each.age_ms for each in samples if each.age_ms is not None]
    if not ages_ms:
        return None
    interval_s = samples[0].interval_ms / 1_000
    return f"sampled {max(ages_ms) // 1_000} s ago, every {interval_s:g} s"


def _print_samples(samples: Sequence[GroupLagSample], *, with_time: bool) -> None:
    if with_time:
        age = _age(samples)
        out_console.print(time.strftime("%H:%M:%S") + ("" if age is None else f", {age}"), markup=False)
    if not samples:
        return
    out_console.print(_summary(samples), markup=False)
    print_table(_table(_rows(samples), out_console.width if sys.stdout.isatty() else None))
    lags = [each.lag for group in samples for each in group.partitions]
    if (
        not with_time
        and any(lag.lag_records is not None for lag in lags)
        and all(lag.commit_rate is None for lag in lags)
    ):
        interval_s = samples[0].interval_ms / 1_000
        print_notice(f"This is the first sample: there are rates after the next one, in {interval_s:g} s.")


def _summary(samples: Sequence[GroupLagSample]) -> str:
    lags = [each.lag for group in samples for each in group.partitions]
    name = samples[0].group if len(samples) == 1 else pluralize(len(samples), "group")
    if not lags:
        return f"{name}: no committed offsets"
    return f"{name}: {_total_lag(lags)}; {_state_counts(lags)}"


def _total_lag(lags: Sequence[PartitionLag]) -> str:
    known = [lag.lag_records for lag in lags if lag.lag_records is not None]
    if not known:
        return "lag unknown"
    text = "no records behind" if not sum(known) else f"{pluralize(sum(known), 'record')} behind"
    if len(known) < len(lags):
        text = f"lag unknown, at least {text}" if sum(known) else "lag unknown"
    time_ms = max((lag.lag_ms for lag in lags if lag.lag_ms is not None), default=0)
    return f"{text}, at most {format_ms(time_ms)}" if time_ms and len(known) == len(lags) else text


def _state_counts(lags: Sequence[PartitionLag]) -> str:
    """Returns how many partitions are not ok, and why if that is the same, such as `1 of 3 partitions: stopped`."""
    counts = Counter(lag.state for lag in lags if lag.state is not LagState.OK)
    partitions = pluralize(len(lags), "partition")
    if not counts:
        return f"all {partitions} ok" if len(lags) > 1 else f"{partitions} ok"
    if len(counts) == 1:
        ((state, count),) = counts.items()
        return f"{count} of {partitions}: {_state_name(state)}"
    return f"{counts.total()} of {partitions} not ok"


def _state_name(state: LagState) -> str:
    return str(state).replace("_", " ")


def _rows(samples: Sequence[GroupLagSample]) -> list[tuple[str, PartitionLagSample]]:
    return [(group.group, each) for group in samples for each in group.partitions]


def _severity(row: tuple[str, PartitionLagSample]) -> tuple[bool, bool, int, int]:
    """A sort key: partitions that are not ok come first, of those the unknown ones, then the largest time lag."""
    lag = row[1].lag
    return lag.state is LagState.OK, lag.lag_records is not None, -(lag.lag_ms or 0), -(lag.lag_records or 0)


def _table(rows: Sequence[tuple[str, PartitionLagSample]], width: int | None) -> TextTable:
    """Makes a table for a terminal of this width, or with all columns."""
    lines = [_cells(group, each) for group, each in rows]
    columns = COLUMNS if width is None else _fitting_columns(lines, width)
    table = make_table(*columns, numbers=NUMBERS, unfolded=("trend", "state"))
    for line in lines:
        table.add_row(*(line[column] for column in columns))
    return table


def _fitting_columns(lines: Sequence[dict[str, Text]], width: int) -> Collection[str]:
    widths = {
        column: max(cell_len(column), *(line[column].cell_len for line in lines)) if lines else cell_len(column)
        for column in COLUMNS
    }
    for column, smallest in SHRINKING_WIDTHS.items():
        widths[column] = min(widths[column], smallest)
    # The line above the table names a single group.
    is_one_group = len({line["group"].plain for line in lines}) == 1
    for column in (*(("group",) if is_one_group else ()), *LEFT_OUT_IF_NARROW):
        if sum(widths.values()) + COLUMN_GAP * (len(widths) - 1) <= width:
            break
        del widths[column]
    return widths


def _cells(group: str, sample: PartitionLagSample) -> dict[str, Text]:
    lag = sample.lag
    end_offset = lag.last_stable_offset if lag.is_read_committed else lag.high_watermark
    return {
        "group": Text(group),
        "topic": Text(sample.partition.topic),
        "partition": Text(str(sample.partition.partition)),
        "committed": Text(str(lag.committed_offset)),
        "end": Text(UNKNOWN if end_offset is None else str(end_offset)),
        "lag": Text(UNKNOWN if lag.lag_records is None else str(lag.lag_records)),
        "time lag": Text(format_ms(lag.lag_ms)),
        "committed/s": Text(_format_rate(lag.commit_rate)),
        "produced/s": Text(_format_rate(lag.produce_rate)),
        "caught up in": Text(_format_catch_up(lag)),
        "trend": Text(trend(lag) or UNKNOWN),
        "state": Text(_state_name(lag.state), style=STATE_STYLES.get(lag.state, "red")),
        "consumer": Text(_consumer(sample), no_wrap=True, overflow="ellipsis"),
    }


def trend(lag: PartitionLag) -> str | None:
    """Returns how the lag changes, or None if that is unknown."""
    if lag.commit_rate is None or lag.produce_rate is None:
        return None
    gain = lag.commit_rate - lag.produce_rate
    if not lag.lag_records or not gain:
        return "steady"
    return "shrinks" if gain > 0 else "grows"


def format_ms(value_ms: int | None) -> str:
    """Returns a time with two units at most, such as `3.2 s` or `2 h 5 min`."""
    if value_ms is None:
        return UNKNOWN
    if value_ms < 60_000:
        return f"{value_ms / 1000:.1f} s" if value_ms else "0 s"
    seconds = value_ms // 1000
    for size, unit, smaller_size, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("at least a minute")


def _format_rate(rate: float | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate:.1f}" if rate < 100 else str(round(rate))


def _format_catch_up(lag: PartitionLag) -> str:
    left_s = lag.catch_up_s
    if left_s is None:
        return UNKNOWN
    return format_ms(ceil(left_s) * 1000) if left_s < inf else "never"


def _consumer(sample: PartitionLagSample) -> str:
    return UNKNOWN if sample.member_id is None else f"{sample.client_id}{sample.client_host} {sample.member_id}"


# JSON


def _print_json(samples: Iterable[GroupLagSample]) -> None:
    for group in samples:
        for each in group.partitions:
            out_console.print(json.dumps(to_row(group, each)), markup=False)


def to_row(group: GroupLagSample, sample: PartitionLagSample) -> dict[str, Any]:
    """Returns the sample as JSON. The first fields are those of the topic `moldau.metrics`."""
    lag = sample.lag
    left_s = lag.catch_up_s
    return {
        "time_ms": lag.sampled_ms,
        "group": group.group,
        "topic": sample.partition.topic,
        "partition": sample.partition.partition,
        "committed_offset": lag.committed_offset,
        "high_watermark": lag.high_watermark,
        "log_start_offset": lag.log_start_offset,
        "lag_records": lag.lag_records,
        "lag_ms": lag.lag_ms,
        "commit_rate": lag.commit_rate,
        "produce_rate": lag.produce_rate,
        "state": str(lag.state),
        "trend": trend(lag),
        "last_stable_offset": lag.last_stable_offset,
        "isolation_level": "read_committed" if lag.is_read_committed else "read_uncommitted",
        "time_source": "append" if lag.is_append_time else "timestamp",
        "catches_up": None if left_s is None else isfinite(left_s),
        "catch_up_seconds": None if left_s is None or not isfinite(left_s) else round(left_s, 1),
        "member_id": sample.member_id,
        "client_id": sample.client_id,
        "client_host": sample.client_host,
    }
