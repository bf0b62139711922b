"""Where the logs end that a pipeline reads, asked for in the background while it runs: the lag that is shown is
what is in the topics now, not what was there when a batch was planned."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress

from moldau.client.consumer.log_offsets import LATEST, list_offsets
from moldau.client.record import TopicPartition
from moldau.pipelines.definition import Pipeline
from moldau.pipelines.planning.connecting import cluster_settings
from moldau.pipelines.running.progress import Progress
from moldau.spark.portal import portal

EVERY_S = 1.0
WITHIN_MS = 5_000
OLD_S = 15.0
"""What was heard longer ago is not worth telling."""

Ends = dict[tuple[str, str], int]


class LogEnds:
    """Brokers that do not answer are the business of the queries: here an end is then just not known."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._settings = cluster_settings(pipeline)
        self._isolation_level = int(_reads_committed(pipeline))
        self._asked: Future[Ends] | None = None
        self._known: Ends = {}
        self._heard_s: float | None = None
        self._next_s = 0.0
        self._is_closed = False

    def look(self, batches: Iterable[Progress]) -> Ends | None:
        """What is known now, None before anything was heard; asks for what these batches read, unless that was done
        just now."""
        if self._asked is not None and self._asked.done():
            with suppress(Exception):
                self._known = self._asked.result()
                self._heard_s = time.monotonic()
            self._asked = None
        if self._asked is None and not self._is_closed and time.monotonic() >= self._next_s:
            wanted = {
                TopicPartition(topic, int(partition))
                for each in batches
                for topic, partitions in each.read.items()
                for partition in partitions
            }
            if wanted:
                self._next_s = time.monotonic() + EVERY_S
                self._asked = portal().start(self._ask(sorted(wanted)))
        if self._heard_s is None:
            return None
        return self._known if time.monotonic() - self._heard_s < OLD_S else {}

    async def _ask(self, wanted: list[TopicPartition]) -> Ends:
        cluster = await portal().cluster(self._settings)
        found = await list_offsets(
            cluster,
            dict.fromkeys(wanted, LATEST),
            isolation_level=self._isolation_level,
            timeout_ms=WITHIN_MS,
        )
        return {(each.topic, str(each.partition)): end.offset for each, end in found.items()}

    def close(self) -> None:
        self._is_closed = True
        if self._asked is not None:
            self._asked.cancel()


def _reads_committed(pipeline: Pipeline) -> bool:
    levels = [pipeline.kafka.get("isolation.level")]
    levels += [each.options.get("kafka.isolation.level") for each in pipeline.sources]
    return "read_committed" in levels
