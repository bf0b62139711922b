"""The queries of one run, which are started, polled and stopped together.

Spark reports progress in its own thread. `poll` processes the reports in the caller's thread.
"""

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.runtime.progress import Progress, QueryState, QueryStatus, parse_progress
from moldau.spark.stream_start import prepare_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from moldau.pipelines.planner.query_planner import PlannedQuery
    from moldau.pipelines.runtime.end_offsets import EndOffsets, EndOffsetTracker

POLL_S = 0.05
TERMINATION_EVENT_TIMEOUT_S = 5.0
"""How long Spark may take to report the last batch of a terminated query."""


class QueryGroup:
    def __init__(
        self,
        spark: "SparkSession",
        planned: Sequence["PlannedQuery"],
        on_batch: Callable[[Progress], None],
        ends: "EndOffsetTracker",
    ) -> None:
        self._spark = spark
        self._ends = ends
        self._planned = planned
        self._on_batch = on_batch
        self._running: dict[str, StreamingQuery] = {}
        """The running queries by name."""
        self._names: dict[str, str] = {}
        """The query names by Spark's run id."""
        self._states = {each.name: QueryState(each.name) for each in planned}
        self._unterminated: set[str] = set()
        """The run ids of queries for which no termination event has arrived."""
        self._listener = _Listener()
        self._is_stopping = False
        self.failure: BaseException | None = None
        """The first error of a query."""

    def start(self, available_now: bool) -> None:
        """Starts all queries. If a query cannot start, stops all queries and raises PipelineError."""
        self._spark.streams.addListener(self._listener)
        prepare_streams(self._spark)
        for each in self._planned:
            try:
                query = each.start(available_now)
            except Exception as error:
                self.failure = error
                self.stop(finish_s=0)
                if isinstance(error, PipelineError):
                    # The message already names the query.
                    raise
                raise PipelineError(f"{each.name}: {summarize_error(error)}") from error
            run_id = str(query.runId)
            self._running[each.name] = query
            self._names[run_id] = each.name
            self._unterminated.add(run_id)

    def poll(self) -> list[QueryState]:
        self._drain_events()
        for name, query in self._running.items():
            previous = self._states[name]
            if previous.state not in (QueryStatus.DONE, QueryStatus.STOPPED, QueryStatus.FAILED):
                state, ends = self._observe(query, previous), self._poll_end_offsets()
                if ends is not None and state.last is not None:
                    state = replace(state, lag=state.last.lag_to(ends))
                self._states[name] = state
        return list(self._states.values())

    def _poll_end_offsets(self) -> "EndOffsets | None":
        return self._ends.poll(each.last for each in self._states.values() if each.last is not None)

    def _observe(self, query: "StreamingQuery", previous: QueryState) -> QueryState:
        if query.isActive:
            is_running = query.status["isTriggerActive"]
            if previous.last is None and not is_running:
                return previous
            return replace(previous, state=QueryStatus.RUNNING if is_running else QueryStatus.WAITING)
        error = query.exception()
        if error is not None:
            self.failure = self.failure or error
            return replace(previous, state=QueryStatus.FAILED, error=summarize_error(error))
        if str(query.runId) in self._unterminated:
            # Keep the state, because the last batch has not been reported yet.
            return previous
        return replace(previous, state=QueryStatus.STOPPED if self._is_stopping else QueryStatus.DONE)

    @property
    def are_finished(self) -> bool:
        return not any(query.isActive for query in self._running.values())

    def stop(self, finish_s: float) -> list[QueryState]:
        """Stops each query after its current batch, or after `finish_s`. The next run repeats an interrupted batch."""
        self._is_stopping = True
        deadline = time.monotonic() + finish_s
        current_batches = {name: _batch(query) for name, query in self._running.items() if query.isActive}
        while current_batches:
            for name, batch in list(current_batches.items()):
                query = self._running[name]
                is_between = not query.status["isTriggerActive"] or _batch(query) != batch
                if not query.isActive or is_between or time.monotonic() >= deadline:
                    query.stop()
                    del current_batches[name]
            if current_batches:
                time.sleep(POLL_S)
        return self.end()

    def end(self) -> list[QueryState]:
        """Waits for the last events of terminated queries."""
        deadline = time.monotonic() + TERMINATION_EVENT_TIMEOUT_S
        while self._unterminated and time.monotonic() < deadline:
            self._drain_events(POLL_S)
        self._unterminated.clear()
        self._spark.streams.removeListener(self._listener)
        self._ends.close()
        return self.poll()

    def _drain_events(self, timeout_s: float = 0.0) -> None:
        while True:
            try:
                run_id, report = self._listener.events.get(block=timeout_s > 0, timeout=timeout_s)
            except queue.Empty:
                return
            timeout_s = 0.0
            name = self._names.get(run_id)
            if name is None:
                continue
            if report is None:
                self._unterminated.discard(run_id)
                continue
            progress = parse_progress(name, json.loads(report))
            lag_to = progress.lag_to(self._poll_end_offsets() or {})
            if lag_to is not None:
                # Use the lag to the current end offsets. The reported lag omits records that arrived after planning.
                progress = replace(progress, lag=lag_to)
            self._states[name] = self._states[name].after(progress)
            self._on_batch(progress)


def _batch(query: "StreamingQuery") -> int | None:
    progress: Any = query.lastProgress
    return None if progress is None else int(progress["batchId"])


class _Listener(StreamingQueryListener):
    """Queues Spark's events. An event is a run id with the progress as JSON, or a run id with None for termination."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.events.put((str(event.progress.runId), event.progress.json))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.put((str(event.runId), None))
