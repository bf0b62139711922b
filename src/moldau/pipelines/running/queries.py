"""The queries of one run on Spark: started together, looked at, stopped together.

Spark tells of batches from a thread of its own; what it tells is taken up in `look`, so that all else here happens in
the caller's thread.
"""

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.failures import sentence_of
from moldau.pipelines.running.progress import Progress, QueryState, State, progress_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from moldau.pipelines.planning.building import PlannedQuery
    from moldau.pipelines.running.log_ends import Ends, LogEnds

POLL_S = 0.05
LAST_WORDS_S = 5.0
"""How long after its end Spark may take to tell of a query's last batch."""


class Queries:
    def __init__(
        self,
        spark: "SparkSession",
        planned: Sequence["PlannedQuery"],
        on_batch: Callable[[Progress], None] = lambda progress: None,
        ends: "LogEnds | None" = None,
    ) -> None:
        self._spark = spark
        self._ends = ends
        self._planned = planned
        self._on_batch = on_batch
        self._running: dict[str, StreamingQuery] = {}
        """By name."""
        self._names: dict[str, str] = {}
        """By run id."""
        self._states = {each.name: QueryState(each.name) for each in planned}
        self._untold: set[str] = set()
        """Run ids of which Spark has not said yet that they ended."""
        self._listener = _Listener()
        self._was_asked_to_stop = False
        self.failure: BaseException | None = None
        """Of the first query that failed."""

    def start(self, available_now: bool) -> None:
        """Raises PipelineError where one cannot be started; then none runs."""
        self._spark.streams.addListener(self._listener)
        for each in self._planned:
            try:
                query = each.start(available_now)
            except Exception as error:
                self.failure = error
                self.stop(finish_s=0)
                if isinstance(error, PipelineError):
                    # It says itself which query that is.
                    raise
                raise PipelineError(f"{each.name}: {sentence_of(error)}") from error
            run_id = str(query.runId)
            self._running[each.name] = query
            self._names[run_id] = each.name
            self._untold.add(run_id)

    def look(self) -> list[QueryState]:
        """How each query stands now."""
        self._hear()
        for name, query in self._running.items():
            before = self._states[name]
            if before.state not in (State.DONE, State.STOPPED, State.FAILED):
                self._states[name] = self._with_lag(self._after_looking(query, before))
        return list(self._states.values())

    def _with_lag(self, state: QueryState) -> QueryState:
        ends = self._known_ends()
        if ends is None or state.last is None:
            return state
        return replace(state, lag=state.last.behind(ends))

    def _known_ends(self) -> "Ends | None":
        if self._ends is None:
            return None
        return self._ends.look(each.last for each in self._states.values() if each.last is not None)

    def _after_looking(self, query: "StreamingQuery", before: QueryState) -> QueryState:
        if not query.isActive:
            error = query.exception()
            if error is not None:
                self.failure = self.failure or error
                return replace(before, state=State.FAILED, error=sentence_of(error))
            if str(query.runId) in self._untold:
                # Its last batch is still to be told of.
                return before
            return replace(before, state=State.STOPPED if self._was_asked_to_stop else State.DONE)
        status = query.status
        if before.last is None and not status["isTriggerActive"]:
            return before
        return replace(before, state=State.RUNNING if status["isTriggerActive"] else State.WAITING)

    @property
    def are_over(self) -> bool:
        return not any(query.isActive for query in self._running.values())

    def stop(self, finish_s: float) -> list[QueryState]:
        """Lets every query finish the batch it is in, for so long, and ends it. Nothing is lost where the time is too
        short: the batch is done again when the pipeline runs next."""
        self._was_asked_to_stop = True
        deadline = time.monotonic() + finish_s
        begun = {name: _batch(query) for name, query in self._running.items() if query.isActive}
        while begun:
            for name, batch in list(begun.items()):
                query = self._running[name]
                is_between = not query.status["isTriggerActive"] or _batch(query) != batch
                if not query.isActive or is_between or time.monotonic() >= deadline:
                    query.stop()
                    del begun[name]
            if begun:
                time.sleep(POLL_S)
        return self.end()

    def end(self) -> list[QueryState]:
        """When all have ended: waits for the last that Spark has to tell."""
        deadline = time.monotonic() + LAST_WORDS_S
        while self._untold and time.monotonic() < deadline:
            self._hear(POLL_S)
        self._untold.clear()
        self._spark.streams.removeListener(self._listener)
        if self._ends is not None:
            self._ends.close()
        return self.look()

    def _hear(self, timeout_s: float = 0.0) -> None:
        while True:
            try:
                run_id, told = (
                    self._listener.events.get(timeout=timeout_s)
                    if timeout_s
                    else (self._listener.events.get_nowait())
                )
            except queue.Empty:
                return
            timeout_s = 0.0
            name = self._names.get(run_id)
            if name is None:
                continue
            if told is None:
                self._untold.discard(run_id)
                continue
            progress = progress_of(name, json.loads(told))
            behind = progress.behind(self._known_ends() or {})
            if behind is not None:
                # What came while the batch was under way was not there when Spark planned it.
                progress = replace(progress, lag=behind)
            self._states[name] = self._states[name].after(progress)
            self._on_batch(progress)


def _batch(query: "StreamingQuery") -> int | None:
    progress: Any = query.lastProgress
    return None if progress is None else int(progress["batchId"])


class _Listener(StreamingQueryListener):
    """Puts into a queue what Spark tells of all queries of the session: the run id with the progress as JSON, or with
    None when the query has ended."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.events.put((str(event.progress.runId), event.progress.json))

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.events.put((str(event.runId), None))
