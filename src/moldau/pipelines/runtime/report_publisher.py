"""Publishes the states of a run's queries to the topic of reports, in the background."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, TimeoutError

from moldau.client.admin.admin import Admin
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.producer.producer import Producer
from moldau.observe.logging import get_logger
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.planner.connection import cluster_settings
from moldau.pipelines.query_report import (
    ERROR_LENGTH_MAX,
    HEARTBEAT_INTERVAL_S,
    REPORT_INTERVAL_S,
    REPORT_TOPIC,
    REPORT_TOPIC_CONFIGS,
    QueryReport,
)
from moldau.pipelines.runtime.progress import QueryState
from moldau.pipelines.runtime.state_directory import RunRecord
from moldau.spark.loop_thread import event_loop_thread

CLOSE_TIMEOUT_S = 5.0
SEND_TIMEOUT_MS = 10_000

_log = get_logger("pipelines.reports")


class ReportPublisher:
    """Never fails a run: an error is logged once, and publishing is tried again at the next heartbeat."""

    def __init__(self, pipeline: PipelineDefinition, record: RunRecord) -> None:
        self._is_enabled = pipeline.publish_progress
        self._settings = cluster_settings(pipeline)
        self._record = record
        self._published: dict[str, tuple[QueryState, float]] = {}
        """What was last queued for each query, and when."""
        self._pending: dict[str, QueryReport] = {}
        self._sending: Future[None] | None = None
        self._producer: Producer | None = None
        self._retry_at_s = 0.0
        self._has_warned = False

    def publish(self, states: Sequence[QueryState], *, is_final: bool = False) -> None:
        """Queues reports of the states that are due, and sends them unless a request is in progress."""
        if not self._is_enabled:
            return
        now_s = time.monotonic()
        for state in states:
            if is_final or self._is_due(state, now_s):
                self._published[state.query] = (state, now_s)
                self._pending[state.query] = _to_report(self._record, state)
        self._send_pending()

    def _is_due(self, state: QueryState, now_s: float) -> bool:
        known = self._published.get(state.query)
        if known is None:
            return True
        previous, published_s = known
        is_busy = {previous.state, state.state} <= {"running", "waiting"}
        if previous.state != state.state and not is_busy:
            return True
        interval_s = REPORT_INTERVAL_S if previous.last != state.last else HEARTBEAT_INTERVAL_S
        return now_s - published_s >= interval_s

    def _send_pending(self) -> None:
        if self._sending is not None and not self._sending.done():
            return
        if self._pending and time.monotonic() >= self._retry_at_s:
            reports, self._pending = self._pending, {}
            self._sending = event_loop_thread().start(self._send(reports))

    async def _send(self, reports: Mapping[str, QueryReport]) -> None:
        try:
            producer = await self._open()
            deliveries = [
                await producer.send(REPORT_TOPIC, each.to_json(), key=each.key, partition=0)
                for each in reports.values()
            ]
            for delivery in deliveries:
                await delivery
        except Exception as error:
            # Also unexpected errors: otherwise `close` would raise them and end a successful run as a failed one.
            self._retry_at_s = time.monotonic() + HEARTBEAT_INTERVAL_S
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    f"the progress of the pipeline {self._record.name} cannot be published to {REPORT_TOPIC}; the "
                    "pipeline continues. `publish_progress: false` disables this",
                    error=error,
                )

    async def _open(self) -> Producer:
        if self._producer is None:
            cluster = await event_loop_thread().cluster(self._settings)
            try:
                # One partition, so that one node has the reports of all queries.
                await Admin(cluster).create_topic(REPORT_TOPIC, partitions=1, configs=REPORT_TOPIC_CONFIGS)
            except KafkaError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
            producer = Producer(cluster, delivery_timeout_ms=SEND_TIMEOUT_MS, linger_ms=0)
            await producer.start()
            self._producer = producer
        return self._producer

    def close(self, states: Sequence[QueryState]) -> None:
        """Publishes the final states, and waits for them for a limited time."""
        if not self._is_enabled:
            return
        self._retry_at_s = 0.0
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        self._wait(self._sending, deadline_s)
        self.publish(states, is_final=True)
        self._wait(self._sending, deadline_s)
        if self._producer is not None:
            self._wait(event_loop_thread().start(self._producer.abort()), deadline_s)
            self._producer = None

    @staticmethod
    def _wait(future: "Future[None] | None", deadline_s: float) -> None:
        if future is None:
            return
        try:
            future.result(max(0.1, deadline_s - time.monotonic()))
        except TimeoutError:
            _log.warning("the last progress of the pipeline was not published in time")


def _to_report(record: RunRecord, state: QueryState) -> QueryReport:
    last = state.last
    return QueryReport(
        pipeline=record.name,
        query=state.query,
        state=state.state,
        time_ms=time.time_ns() // 1_000_000,
        started=record.started,
        host=record.host,
        pid=record.pid,
        master=record.master,
        generation=record.generation,
        rows=state.rows,
        late=state.late,
        lag=state.lag,
        batch=None if last is None else last.batch,
        batch_ms=None if last is None else last.batch_ms,
        input_rate=None if last is None else last.input_rate,
        process_rate=None if last is None else last.process_rate,
        watermark=None if last is None else last.watermark,
        error=None if state.error is None else state.error[:ERROR_LENGTH_MAX],
    )
