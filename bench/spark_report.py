"""Spark measurements as figures, ratios and verdicts on the aims, and the tables that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.report import BACKGROUND_CORES_MAX, Figures, count, markdown_table, percentile
from bench.spark_jobs import CONNECTOR, CONNECTOR_HERE, INSIDE, LOOP, MOLDAU

TITLES = {
    MOLDAU: "`moldau`",
    LOOP: "librdkafka, plain loop",
    INSIDE: "librdkafka inside Spark",
    CONNECTOR: "JVM connector",
    CONNECTOR_HERE: "JVM connector in Moldau's session",
}
Runs = Mapping[str, Sequence[float]]
"""Figures of each contestant, in the order of rounds."""


@dataclass(frozen=True)
class Aim:
    """The ratio that Moldau's median must reach over another's."""

    against: str
    ratio: float


@dataclass(frozen=True)
class Verdict:
    what: str
    aim: str
    reached: str
    met: bool


@dataclass(frozen=True)
class Case:
    name: str
    runs: Runs
    other_cores: float
    """Most cores that anything else on the machine used during a run."""


@dataclass(frozen=True)
class Rates:
    """Rows per second: cases as rows, contestants as columns."""

    title: str
    cases: Sequence[Case]
    aims: Sequence[Aim] = ()

    @property
    def other_cores(self) -> float:
        return max(case.other_cores for case in self.cases)

    def verdicts(self) -> list[Verdict]:
        found = []
        for case in self.cases:
            for aim in self.aims:
                ratio = _compared(case.runs, aim.against).ratio
                if ratio is not None:
                    what = f"{self.title}, {case.name}: `moldau` to {TITLES[aim.against]}"
                    found.append(Verdict(what, f"≥ {aim.ratio:g}", f"{ratio:.2f}", round(ratio, 2) >= aim.ratio))
        return found

    def render(self) -> str:
        contestants = [name for name in TITLES if any(case.runs.get(name) for case in self.cases)]
        others = [name for name in contestants if name != MOLDAU]
        head = ["rows/s", *(TITLES[name] for name in contestants)]
        head += [f"ratio to {TITLES[name]}" for name in others] + ["other cores busy"]
        body = []
        for case in self.cases:
            figures = [count(median(case.runs[name])) if case.runs.get(name) else "-" for name in contestants]
            ratios = [_ratio_text(_compared(case.runs, name)) for name in others]
            body.append([case.name, *figures, *ratios, f"{case.other_cores:.2f}"])
        return f"### {self.title}\n\n{markdown_table(head, body)}\n"


@dataclass(frozen=True)
class Times:
    """Durations: contestants as rows, measures as columns; Moldau's first measure has an aim."""

    title: str
    measures: Sequence[tuple[str, Callable[[float], str]]]
    rows: Mapping[str, Sequence[float]]
    aim: float
    note: str
    other_cores: float

    def verdicts(self) -> list[Verdict]:
        if MOLDAU not in self.rows:
            return []
        label, show = self.measures[0]
        reached = self.rows[MOLDAU][0]
        return [Verdict(f"{self.title}: {label}", f"≤ {show(self.aim)}", show(reached), reached <= self.aim)]

    def render(self) -> str:
        head = ["", *(label for label, _ in self.measures)]
        body = [
            [TITLES[name], *(show(value) for value, (_, show) in zip(values, self.measures, strict=True))]
            for name, values in self.rows.items()
        ]
        note = f"{self.note} Other cores busy: at most {self.other_cores:.2f}."
        return f"### {self.title}\n\n{note}\n\n{markdown_table(head, body)}\n"


Measured = Rates | Times


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile."""
    return percentile(values, 0.5), percentile(values, 0.99)


def render_aims(measured: Sequence[Measured]) -> str:
    verdicts = [verdict for one in measured for verdict in one.verdicts()]
    if not verdicts:
        return ""
    head = ["what", "aim", "reached", ""]
    body = [[one.what, one.aim, one.reached, "met" if one.met else "**not met**"] for one in verdicts]
    reached = sum(one.met for one in verdicts)
    return f"## Aims: {reached} of {len(verdicts)} met\n\n{markdown_table(head, body)}\n"


def render_disturbed(measured: Sequence[Measured]) -> str:
    disturbed = [one for one in measured if one.other_cores > BACKGROUND_CORES_MAX]
    if not disturbed:
        return ""
    worst = max(disturbed, key=lambda one: one.other_cores)
    return (
        f"**Not a valid comparison: other work ran on the machine during {len(disturbed)} of the {len(measured)} "
        f"tables below, up to {worst.other_cores:.1f} cores ({worst.title}). Run it again on a quiet machine.**"
    )


def _compared(runs: Runs, with_: str) -> Figures:
    return Figures(tuple(runs.get(MOLDAU, ())), tuple(runs.get(with_, ())))


def _ratio_text(figures: Figures) -> str:
    if figures.ratio is None:
        return "-"
    if figures.spread is None:
        return f"{figures.ratio:.2f}"
    return f"{figures.ratio:.2f} ({figures.spread[0]:.2f} to {figures.spread[1]:.2f})"
