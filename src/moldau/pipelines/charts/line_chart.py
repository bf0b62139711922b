"""Line charts as a self-contained SVG document. No I/O."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import count

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#6b6b6b")
"""The palette of Okabe and Ito, which people with colour blindness can tell apart, and two more. The last colour is for
all further series."""
SERIES_MAX = len(COLOURS)

WIDTH = 1_080
PANEL_HEIGHT = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 310, 60, 40
_PANEL_GAP = 50
_LEGEND_LINE = 18
_LABEL_LENGTH_MAX = 26
_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT

_TIME_STEPS_S = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400, 30 * 86400)
_STYLE = """
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #333 }
.title { font-size: 18px; font-weight: 600 }
.panel { font-size: 13px; font-weight: 600 }
.faint { fill: #777 }
.grid { stroke: #e4e4e4; stroke-width: 1 }
.axis { stroke: #999; stroke-width: 1 }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round }
"""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    """Times, in seconds since 1970, and values; in order of time."""

    @property
    def peak(self) -> float:
        return max((value for _, value in self.points), default=0.0)


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    series: Sequence[Series]
    is_integer: bool = False


def render_svg(title: str, panels: Sequence[Panel], begin_s: float, end_s: float, gap_s: float) -> str:
    """Draws panels below each other, with one time axis. Lines are interrupted where points are more than `gap_s`
    apart."""
    end_s = max(end_s, begin_s + 1)
    period = f"{_date_text(begin_s)} to {_date_text(end_s)} UTC"
    height = _TOP + len(panels) * (PANEL_HEIGHT + _PANEL_GAP) + _BOTTOM - _PANEL_GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
        f'<text class="faint" x="{WIDTH - 20}" y="28" text-anchor="end">{period}</text>',
    ]
    ranks: dict[str, int] = {}
    for number, panel in enumerate(panels):
        top = _TOP + number * (PANEL_HEIGHT + _PANEL_GAP)
        _add_ranks(ranks, panel)
        parts += _draw_panel(panel, top, begin_s, end_s, gap_s, ranks)
    parts.append("</svg>\n")
    return "\n".join(parts)


def _add_ranks(ranks: dict[str, int], panel: Panel) -> None:
    """Ranks the series of a panel by their peaks. A name that an earlier panel has keeps its rank and its colour."""
    used = {ranks[each.name] for each in panel.series if each.name in ranks}
    free = (rank for rank in count() if rank not in used)
    for each in sorted(panel.series, key=lambda each: (-each.peak, each.name)):
        if each.name not in ranks:
            ranks[each.name] = next(free)


def _draw_panel(
    panel: Panel, top: float, begin_s: float, end_s: float, gap_s: float, ranks: Mapping[str, int]
) -> list[str]:
    shown = sorted(panel.series, key=lambda each: ranks[each.name])
    ticks = _value_ticks(max((each.peak for each in shown), default=0.0), is_integer=panel.is_integer)
    bottom = top + PANEL_HEIGHT

    def x_of(time_s: float) -> float:
        return _LEFT + (time_s - begin_s) / (end_s - begin_s) * _PLOT_WIDTH

    def y_of(value: float) -> float:
        return bottom - value / ticks[-1] * PANEL_HEIGHT

    parts = [f'<text class="panel" x="{_LEFT}" y="{top - 9}">{escape(panel.title)}</text>']
    for tick in ticks:
        y = y_of(tick)
        style = "axis" if tick == 0 else "grid"
        parts.append(f'<line class="{style}" x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_value_text(tick)}</text>'
        )
    for time_s, text in _time_ticks(begin_s, end_s):
        x = x_of(time_s)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="faint" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    if not shown:
        middle = top + PANEL_HEIGHT / 2
        parts.append(
            f'<text class="faint" x="{_LEFT + _PLOT_WIDTH / 2}" y="{middle}" text-anchor="middle">no data</text>'
        )
    # Draw the first series last, so that others do not hide it.
    for number, each in reversed(list(enumerate(shown))):
        colour = COLOURS[min(number, SERIES_MAX - 1)]
        for run in _runs(each.points, gap_s):
            # A single point is a line of length 0, which round caps make visible.
            steps = [f"{x_of(time_s):.1f},{y_of(value):.1f}" for time_s, value in (run if len(run) > 1 else run * 2)]
            parts.append(
                f'<polyline class="line" stroke="{colour}" points="{" ".join(steps)}">'
                f"<title>{escape(each.name)}</title></polyline>"
            )
    parts += _draw_legend(shown, top)
    return parts


def _draw_legend(shown: Sequence[Series], top: float) -> list[str]:
    left = _LEFT + _PLOT_WIDTH + 20
    rest = len(shown) - SERIES_MAX
    named = shown if rest <= 0 else shown[: SERIES_MAX - 1]
    entries = [
        (COLOURS[number], f"{_shorten(each.name)}  (max {_value_text(each.peak)})") for number, each in enumerate(named)
    ]
    if rest > 0:
        entries.append((COLOURS[-1], f"{len(shown) - len(named)} more"))
    parts = []
    for number, (colour, text) in enumerate(entries):
        y = top + 8 + number * _LEGEND_LINE
        parts.append(f'<line x1="{left}" x2="{left + 16}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{left + 22}" y="{y + 4}">{escape(text)}</text>')
    return parts


def _shorten(name: str) -> str:
    return name if len(name) <= _LABEL_LENGTH_MAX else name[: _LABEL_LENGTH_MAX - 1] + "…"


def _runs(points: Sequence[tuple[float, float]], gap_s: float) -> list[list[tuple[float, float]]]:
    """Splits points where two are more than `gap_s` apart."""
    runs: list[list[tuple[float, float]]] = []
    for point in points:
        if runs and point[0] - runs[-1][-1][0] <= gap_s:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _value_ticks(peak: float, *, is_integer: bool) -> list[float]:
    """Returns about five round values from 0 to at least `peak`."""
    if peak <= 0:
        return [0.0, 1.0]
    raw = peak / 4
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= raw)
    if is_integer:
        step = max(1.0, math.ceil(step))
    return [number * step for number in range(math.ceil(peak / step) + 1)]


def _value_text(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.3g}"


def _time_ticks(begin_s: float, end_s: float) -> list[tuple[float, str]]:
    """Returns up to eight round times with their labels. The label at midnight is the date."""
    step = next((each for each in _TIME_STEPS_S if (end_s - begin_s) / each <= 8), _TIME_STEPS_S[-1])
    step = max(step, math.ceil((end_s - begin_s) / 8 / step) * step)
    first = math.ceil(begin_s / step) * step
    ticks: list[tuple[float, str]] = []
    for number in range(int((end_s - first) // step) + 1):
        time_s = first + number * step
        at = _to_time(time_s)
        is_midnight = at.hour == at.minute == at.second == 0
        ticks.append((time_s, f"{at:%d %b}" if is_midnight else f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"))
    return ticks


def _date_text(time_s: float) -> str:
    return f"{_to_time(time_s):%Y-%m-%d %H:%M}"


def _to_time(time_s: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time_s)
