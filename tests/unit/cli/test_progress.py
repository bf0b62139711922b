"""The progress bar of long operations."""

import asyncio
import io
import time
from collections.abc import Sequence

import pytest
from rich.console import Console

from moldau.cli import progress
from moldau.cli.consume_progress import CountProgress, OffsetProgress
from moldau.cli.progress import progress_bar, run_in_batches
from moldau.client.record import ConsumerRecord, TopicPartition


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


def test_a_bar_works_without_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    with progress_bar("reading") as bar:
        bar.update_bytes(1_500_000, 3_000_000)
        wait_for_bar(written)
    assert "1.5 MB of 3.0 MB" in written.getvalue()
    with progress_bar("reading", enabled=False) as bar:
        assert not bar.is_shown


def test_results_for_a_file_are_not_printed_above_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = terminal(monkeypatch)
    with progress_bar("reading"):
        wait_for_bar(written)
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in written.getvalue()


def test_a_count_of_printed_records_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    with progress_bar("consuming") as bar:
        progress = CountProgress(bar, 1_200)
        progress.add([record(0, offset) for offset in range(300)])
        wait_for_bar(written)
    assert "300 of 1,200 records" in written.getvalue()


def test_the_share_of_offsets_counts_gaps_and_ignores_later_records(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    starts = {TopicPartition("orders", 0): 100, TopicPartition("orders", 1): 0}
    with progress_bar("consuming") as bar:
        progress = OffsetProgress(bar, starts, {TopicPartition("orders", 0): 200, TopicPartition("orders", 1): 50})
        progress.add([record(0, 109), record(0, 149), record(1, 70), record(2, 9)])
        wait_for_bar(written)
    assert "100 of 150 offsets" in written.getvalue()


def record(partition: int, offset: int) -> ConsumerRecord:
    return ConsumerRecord("orders", partition, offset, 0, 0, None, b"v", ())


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Replaces the terminal. A bar appears at once."""
    written = io.StringIO()
    monkeypatch.setattr(progress, "err_console", Console(file=written, force_terminal=True, width=100))
    monkeypatch.setattr(progress, "DELAY_S", 0)
    return written


def wait_for_bar(written: io.StringIO) -> None:
    deadline = time.monotonic() + 10
    while not written.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The bar is drawn ten times a second.
    time.sleep(0.15)
