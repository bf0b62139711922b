"""The end offsets of a pipeline's topics. They are fetched in the background, so that the displayed lag is current."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress

from moldau.client.consumer.offset_lookup import LATEST, list_offsets
from moldau.client.record import TopicPartition
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.planner.connection import cluster_settings
from moldau.pipelines.planner.topic_streams import reads_committed
from moldau.pipelines.runtime.progress import Progress
from moldau.spark.loop_thread import event_loop_thread

FETCH_INTERVAL_S = 1.0
FETCH_TIMEOUT_MS = 5_000
STALE_AFTER_S = 15.0
"""The maximum age of end offsets. Older ones are treated as unknown."""

EndOffsets = dict[tuple[str, str], int]


class EndOffsetTracker:
    """Fetches end offsets in the background. Ignores errors, because the queries report them."""

    def __init__(self, pipeline: PipelineDefinition) -> None:
        self._settings = cluster_settings(pipeline)
        # Sources with different levels are an exception. Their lag is then too small while a transaction is open.
        self._isolation_level = int(any(reads_committed(pipeline, each) for each in pipeline.sources))
        self._pending_fetch: Future[EndOffsets] | None = None
        self._known: EndOffsets = {}
        self._fetched_at_s: float | None = None
        self._next_s = 0.0
        self._is_closed = False

    def poll(self, batches: Iterable[Progress]) -> EndOffsets | None:
        """Returns the latest end offsets, {} if they are older than STALE_AFTER_S, or None before the first response.

        Starts a fetch for the partitions of `batches` if a fetch is due.
        """
        if self._pending_fetch is not None and self._pending_fetch.done():
            with suppress(Exception):
                self._known = self._pending_fetch.result()
                self._fetched_at_s = time.monotonic()
            self._pending_fetch = None
        if self._pending_fetch is None and not self._is_closed and time.monotonic() >= self._next_s:
            read = (item for each in batches for item in each.read.items())
            requested = {TopicPartition(topic, int(each)) for topic, partitions in read for each in partitions}
            if requested:
                self._next_s = time.monotonic() + FETCH_INTERVAL_S
                self._pending_fetch = event_loop_thread().start(self._fetch(sorted(requested)))
        if self._fetched_at_s is None:
            return None
        return self._known if time.monotonic() - self._fetched_at_s < STALE_AFTER_S else {}

    async def _fetch(self, requested: list[TopicPartition]) -> EndOffsets:
        cluster = await event_loop_thread().cluster(self._settings)
        times = dict.fromkeys(requested, LATEST)
        found = await list_offsets(cluster, times, isolation_level=self._isolation_level, timeout_ms=FETCH_TIMEOUT_MS)
        return {(each.topic, str(each.partition)): end.offset for each, end in found.items()}

    def close(self) -> None:
        self._is_closed = True
        if self._pending_fetch is not None:
            self._pending_fetch.cancel()
