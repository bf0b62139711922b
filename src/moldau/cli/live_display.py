"""The part of a terminal that changes, below lines that stay. One thread draws both: where two do, they draw over each
other."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live

EVERY_S = 0.125


class Drawing:
    def __init__(self, console: Console, changing: Callable[[], RenderableType]) -> None:
        self._console = console
        self._changing = changing
        self._staying: deque[RenderableType] = deque()
        self._live = Live(console=console, auto_refresh=False)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw_on, name="moldau terminal", daemon=True)

    def stay(self, line: RenderableType) -> None:
        """From any thread."""
        self._staying.append(line)

    def _draw_on(self) -> None:
        while not self._is_over.wait(EVERY_S) and self._draw_if_seen():
            pass

    def _draw_if_seen(self) -> bool:
        """A terminal that was closed is no reason to fail: what is drawn is not what is done."""
        try:
            self._draw()
        except OSError:
            return False
        return True

    def _draw(self) -> None:
        if self._staying:
            lines = [self._staying.popleft() for _ in range(len(self._staying))]
            # Cleared first: what follows may be higher than what was there.
            self._live.update(Group(), refresh=True)
            for line in lines:
                self._console.print(line)
        self._live.update(self._changing(), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._draw_if_seen():
            self._live.stop()
