"""The progress bar of long operations."""

import asyncio
import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from moldau.cli import progress
from moldau.cli.progress import progress_bar, run_in_batches


def shown(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, delay_s: float) -> str:
    """Runs a short operation with a bar and returns what was written to standard error."""
    written = io.StringIO()
    monkeypatch.setattr(progress, "err_console", Console(file=written, force_terminal=is_terminal, width=100))
    monkeypatch.setattr(progress, "DELAY_S", delay_s)

    async def operation() -> None:
        with progress_bar("moving") as bar:
            bar.update(1, 4, "1 of 4 partitions, 1.2 MB left")
            # The bar starts in a callback of the event loop.
            await asyncio.sleep(0.001)

    asyncio.run(operation())
    return written.getvalue()


def test_a_bar_appears_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1 of 4 partitions, 1.2 MB left" in shown(monkeypatch, is_terminal=True, delay_s=0)


def test_a_short_operation_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, is_terminal=True, delay_s=60) == ""


def test_nothing_is_written_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, is_terminal=False, delay_s=0) == ""


def test_batches_cover_each_key_once() -> None:
    batches: list[Sequence[int]] = []

    async def double(batch: Sequence[int]) -> dict[int, int]:
        batches.append(batch)
        return {each: 2 * each for each in batch}

    results = asyncio.run(run_in_batches("doubling", "number", [1, 2, 3, 2, 4, 5], double, batch_size=2))
    assert results == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}
    assert [list(each) for each in batches] == [[1, 2], [3, 4], [5]]
