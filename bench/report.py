"""Measurements as figures, ratios to Kafka and verdicts on the aims, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median


@dataclass(frozen=True)
class Metric:
    """A measured quantity, and which direction is better."""

    label: str
    show: Callable[[float], str]
    higher_is_better: bool = False
    compared: bool = True
    """False for figures that only help to read others; they have no ratio."""


@dataclass(frozen=True)
class Figures:
    """Runs of both brokers for one metric, in order: run i of one beside run i of the other."""

    moldau: tuple[float, ...]
    kafka: tuple[float, ...] = ()

    @property
    def middle(self) -> tuple[float | None, float | None]:
        """Medians of both brokers."""
        return (median(self.moldau) if self.moldau else None, median(self.kafka) if self.kafka else None)

    @property
    def ratio(self) -> float | None:
        """Moldau's median over Kafka's; None without a Kafka run, or if it measured zero."""
        ours, theirs = self.middle
        return ours / theirs if ours is not None and theirs else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Smallest and largest ratio of two runs made side by side."""
        ratios = [ours / theirs for ours, theirs in zip(self.moldau, self.kafka, strict=False) if theirs != 0]
        return (min(ratios), max(ratios)) if len(ratios) > 1 else None


@dataclass(frozen=True)
class Cell:
    """One metric in one case, with the aimed ratio if there is one."""

    metric: Metric
    figures: Figures
    aim: float | None = None

    @property
    def met(self) -> bool | None:
        """None if there is nothing to judge."""
        ratio = self.figures.ratio
        return None if self.aim is None or ratio is None else met(self.metric, self.aim, ratio)


@dataclass(frozen=True)
class Row:
    case: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Cases as rows, metrics as columns. If the metrics of a column differ between rows, the cases name them."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""
    sides: tuple[str, str] = ("Moldau", "Kafka")
    """What is compared. The names of `Figures` are those of the default."""


OTHERS = Metric("other cores busy", lambda number: f"{number:.2f}", compared=False)
BACKGROUND_CORES_MAX = 0.25


def disturbed(tables: Sequence[Table]) -> list[tuple[str, str, float]]:
    """Returns cases measured while other work ran on the machine: table, case and cores. Their ratios are not valid: a
    broker with many threads suffers more than one with a single thread."""
    found = []
    for table in tables:
        for row in table.rows:
            for cell in row.cells:
                worst = max(cell.figures.moldau + cell.figures.kafka, default=0.0)
                if cell.metric is OTHERS and worst > BACKGROUND_CORES_MAX:
                    found.append((table.title, row.case, worst))
    return found


def render_disturbed(tables: Sequence[Table]) -> str:
    found = disturbed(tables)
    if not found:
        return ""
    title, case, cores = max(found, key=lambda one: one[2])
    return (
        f"**Not a valid comparison: other work ran on the machine during {len(found)} of the cases below, "
        f"up to {cores:.1f} cores ({title}, {case}). Run it again on a quiet machine.**"
    )


def met(metric: Metric, aim: float, ratio: float) -> bool:
    """Returns whether a ratio reaches an aim, at the two decimals shown."""
    shown = round(ratio, 2)
    return shown >= aim if metric.higher_is_better else shown <= aim


def aim_text(metric: Metric, aim: float) -> str:
    return f"{'≥' if metric.higher_is_better else '≤'} {aim:g}"


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * round(share * 100_000) // 100_000))
    return ordered[rank - 1]


def _ratio_text(figures: Figures) -> str:
    if figures.ratio is None:
        return "-"
    text = f"{figures.ratio:.2f}"
    if figures.spread is not None:
        text += f" ({figures.spread[0]:.2f} to {figures.spread[1]:.2f})"
    return text


def _verdict(cell: Cell) -> str:
    if cell.aim is None:
        return "-"
    verdict = {None: "", True: ": met", False: ": **not met**"}[cell.met]
    return aim_text(cell.metric, cell.aim) + verdict


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---", *["---:"] * (len(head) - 1)]) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in body]
    return "\n".join(lines)


def _head(column: Sequence[Cell], sides: tuple[str, str], with_kafka: bool) -> list[str]:
    labels = {cell.metric.label for cell in column}
    ours, theirs = sides
    head = [f"{labels.pop()}, {ours}" if len(labels) == 1 else ours]
    if with_kafka:
        head.append(theirs)
        if column[0].metric.compared:
            head.append("ratio")
        if any(cell.aim is not None for cell in column):
            head.append("aim")
    return head


def _texts(column: Sequence[Cell], cell: Cell, with_kafka: bool) -> list[str]:
    ours, theirs = ("-" if middle is None else cell.metric.show(middle) for middle in cell.figures.middle)
    texts = [ours]
    if with_kafka:
        texts.append(theirs)
        if column[0].metric.compared:
            texts.append(_ratio_text(cell.figures))
        if any(other.aim is not None for other in column):
            texts.append(_verdict(cell))
    return texts


def render_table(table: Table, with_kafka: bool) -> str:
    columns = list(zip(*(row.cells for row in table.rows), strict=True))
    head = ["", *chain.from_iterable(_head(column, table.sides, with_kafka) for column in columns)]
    body = []
    for row in table.rows:
        pairs = zip(columns, row.cells, strict=True)
        body.append([row.case, *chain.from_iterable(_texts(column, cell, with_kafka) for column, cell in pairs)])
    note = f"{table.note}\n\n" if table.note else ""
    return f"### {table.title}\n\n{note}{markdown_table(head, body)}\n"


@dataclass(frozen=True)
class AimSummary:
    """Result of the cases of a table that share a metric and an aim."""

    title: str
    metric: Metric
    aim: float
    ratios: tuple[tuple[float, str], ...]

    @property
    def met(self) -> int:
        return sum(met(self.metric, self.aim, ratio) for ratio, _ in self.ratios)

    @property
    def worst(self) -> tuple[float, str]:
        return min(self.ratios) if self.metric.higher_is_better else max(self.ratios)


def summarize(tables: Sequence[Table]) -> list[AimSummary]:
    found: dict[tuple[str, Metric, float], list[tuple[float, str]]] = {}
    for table in tables:
        for row in table.rows:
            for cell in row.cells:
                if cell.aim is not None and cell.figures.ratio is not None:
                    key = (table.title, cell.metric, cell.aim)
                    found.setdefault(key, []).append((cell.figures.ratio, row.case))
    return [AimSummary(*key, tuple(ratios)) for key, ratios in found.items()]


def render_summary(tables: Sequence[Table]) -> str:
    summaries = summarize(tables)
    if not summaries:
        return ""
    total, reached = sum(len(one.ratios) for one in summaries), sum(one.met for one in summaries)
    body = []
    for one in summaries:
        ratio, case = one.worst
        body.append(
            [
                f"{one.title}: {one.metric.label}",
                aim_text(one.metric, one.aim),
                f"{one.met} of {len(one.ratios)}",
                f"{ratio:.2f} ({case})",
            ]
        )
    others = {table.sides[1] for table in tables}
    to = f" to {others.pop()}" if len(others) == 1 else ""
    head = ["what", f"aim, as a ratio{to}", "met", "worst ratio"]
    return f"## Aims: {reached} of {total} met\n\n{markdown_table(head, body)}\n"


def count(number: float) -> str:
    return f"{number:,.0f}"


def decimals(places: int) -> Callable[[float], str]:
    return lambda number: f"{number:,.{places}f}"


def megabytes(number: float) -> str:
    return f"{number / 1e6:,.0f} MB" if abs(number) >= 1e7 else f"{number / 1e6:,.1f} MB"
