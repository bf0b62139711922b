"""How fast a total grows, measured whenever the metrics are written. Pure."""

from moldau.metrics.histogram import WINDOW_MS


class WindowedRate:
    """The growth of a total per second, over the last one to two windows."""

    def __init__(self) -> None:
        self._previous: tuple[int, float] | None = None
        """Time and total at the start of the previous window."""
        self._window = (0, 0.0)
        self._latest = (0, 0.0)

    def update(self, now_us: int, total: float) -> None:
        self._latest = (now_us, total)
        if self._previous is None:
            self._previous = self._window = self._latest
        elif now_us - self._window[0] >= WINDOW_MS * 1000:
            self._previous, self._window = self._window, self._latest

    @property
    def per_second(self) -> float:
        """The rate; 0 before the second update."""
        if self._previous is None or self._latest[0] <= self._previous[0]:
            return 0.0
        return (self._latest[1] - self._previous[1]) * 1e6 / (self._latest[0] - self._previous[0])
