"""A live region at the bottom of a terminal, with permanent lines above the region."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live

REFRESH_INTERVAL_S = 0.125


class LiveRegion:
    """Draws the lines and the live region in one thread, so that they do not overwrite each other."""

    def __init__(self, console: Console, render: Callable[[], RenderableType]) -> None:
        self._console = console
        self._render = render
        self._lines_above: deque[RenderableType] = deque()
        self._live = Live(console=console, auto_refresh=False)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh_loop, name="moldau terminal", daemon=True)

    def print_above(self, line: RenderableType) -> None:
        """Queues a permanent line. Any thread may call this method."""
        self._lines_above.append(line)

    def _refresh_loop(self) -> None:
        while not self._is_closed.wait(REFRESH_INTERVAL_S) and self._try_draw():
            pass

    def _try_draw(self) -> bool:
        """Draws the lines and the region. Returns False, and raises no error, if the terminal was closed."""
        try:
            if self._lines_above:
                lines = [self._lines_above.popleft() for _ in range(len(self._lines_above))]
                # The region is cleared while the lines are printed, and then drawn below them.
                self._live.update(Group(), refresh=True)
                for line in lines:
                    self._console.print(line)
            self._live.update(self._render(), refresh=True)
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join()
        if self._try_draw():
            self._live.stop()
