"""A histogram of durations with fixed buckets. Pure."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from moldau.metrics.exposition import Sample, format_labels

WINDOW_MS = 30_000
"""Quantiles and averages are those of the last 30 to 60 seconds, if the metrics are requested at least that often."""

BOUNDS_MS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 300, 500, 750, 1e3, 2e3, 5e3, 1e4, 3e4)
QUANTILES = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
"""By their names in the metrics of the JMX exporter."""


class DurationHistogram:
    """Counts durations since the start, and those of the last one to two windows, whose quantiles are shown."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self._window_start_ms = 0
        self._window_start = list(self.counts)
        self._previous_start = list(self.counts)
        self._window_start_sum_ms = self._previous_start_sum_ms = 0.0

    def record(self, duration_ms: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self.sum_ms += duration_ms

    @property
    def count(self) -> int:
        return sum(self.counts)

    def roll_window(self, now_ms: int) -> None:
        """Starts a new window if the last one is over. Called whenever the metrics are written."""
        if now_ms - self._window_start_ms < WINDOW_MS:
            return
        self._window_start_ms = now_ms
        self._previous_start, self._window_start = self._window_start, list(self.counts)
        self._previous_start_sum_ms, self._window_start_sum_ms = self._window_start_sum_ms, self.sum_ms

    @property
    def average_ms(self) -> float:
        """The average since the previous window; if there was no duration, of all; 0 if there never was one."""
        count = self.count - sum(self._previous_start)
        if count:
            return (self.sum_ms - self._previous_start_sum_ms) / count
        return self.sum_ms / self.count if self.count else 0.0

    def quantiles_ms(self) -> list[float]:
        """Returns the QUANTILES of the durations since the previous window; none if there were none."""
        recent = [count - before for count, before in zip(self.counts, self._previous_start, strict=True)]
        return _quantiles(recent)

    def samples(self, labels: dict[str, object]) -> Iterator[Sample]:
        """Yields the samples of a histogram in seconds."""
        total = 0
        for bound_ms, count in zip((*BOUNDS_MS, float("inf")), self.counts, strict=True):
            total += count
            bound = "+Inf" if bound_ms == float("inf") else f"{bound_ms / 1000:g}"
            yield Sample(total, format_labels({**labels, "le": bound}), "_bucket")
        text = format_labels(labels)
        yield Sample(self.sum_ms / 1000, text, "_sum")
        yield Sample(total, text, "_count")


def _quantiles(counts: Sequence[int]) -> list[float]:
    """Returns the QUANTILES, interpolated within their buckets."""
    total = sum(counts)
    if not total:
        return []
    found = []
    for quantile in QUANTILES.values():
        rank = quantile * total
        below = 0
        for index, count in enumerate(counts):
            if below + count >= rank and count:
                low = BOUNDS_MS[index - 1] if index else 0.0
                high = BOUNDS_MS[min(index, len(BOUNDS_MS) - 1)]
                found.append(low + (high - low) * (rank - below) / count)
                break
            below += count
    return found
