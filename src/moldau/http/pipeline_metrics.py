"""Metrics of pipelines, which the leader of the topic of reports reads from its own log when metrics are requested."""

import asyncio
from collections.abc import Callable, Iterator
from uuid import UUID

from moldau.errors import MoldauError
from moldau.metrics.exposition import MetricFamily, Sample, format_labels, gauge
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.pipelines.query_report import REPORT_TOPIC, LatestReports, QueryReport
from moldau.records.batch import split
from moldau.records.record import iterate_records
from moldau.server.api import Broker

READ_BYTES = 64 * 1024
READS_MAX = 256
"""The maximum number of reads for one request. The next request continues."""
DECOMPRESSED_BYTES_MAX = 2 * 1024 * 1024
"""Batches with more bytes are no reports. Every client can write to the topic, and decompressing blocks the node."""

log = get_logger(__name__)


class PipelineReports:
    """The latest reports in the log of this node, as far as they were read. Empty while another node leads."""

    def __init__(self) -> None:
        self._reports = LatestReports()
        self._position = 0
        self._source: tuple[UUID, int] | None = None
        """The topic id and the leader epoch in which the log was read."""

    async def refresh(self, broker: Broker) -> None:
        """Reads the records that are new since the last call. Errors are logged: other metrics must be shown."""
        partition = broker.replica_manager.get(REPORT_TOPIC, 0)
        if partition is None or not partition.is_leader:
            self._restart(None, 0)
            return
        source = (partition.topic_id, partition.leader_epoch)
        if source != self._source:
            self._restart(source, partition.log.start_offset)
        try:
            await self._read(partition)
        except MoldauError as error:
            log.warning("the reports of pipelines cannot be read", partition=str(partition.name), reason=str(error))
        self._reports.drop_expired(broker.platform.clock.wall_ms())

    def _restart(self, source: tuple[UUID, int] | None, position: int) -> None:
        self._source, self._position = source, position
        self._reports.clear()

    async def _read(self, partition: Partition) -> None:
        self._position = max(self._position, partition.log.start_offset)
        for _ in range(READS_MAX):
            records = (await partition.read(self._position, READ_BYTES)).records
            if not records.size:
                return
            for batch in split(records.read(), allow_partial=True):
                # Set before the records are decoded, so that the next request skips a batch that cannot be decoded.
                self._position = batch.next_offset
                if not batch.is_control:
                    for record in iterate_records(batch, DECOMPRESSED_BYTES_MAX):
                        self._reports.add(record.key, record.value)
            # A read from the page cache does not suspend, so let other work run here.
            await asyncio.sleep(0)

    def families(self, now_ms: int) -> Iterator[MetricFamily]:
        def of(value: Callable[[QueryReport], float | None]) -> Iterator[Sample]:
            for report in self._reports:
                found = value(report)
                if found is not None:
                    yield Sample(found, format_labels({"pipeline": report.pipeline, "query": report.query}))

        prefix = "moldau_pipeline_query"
        yield gauge(
            f"{prefix}_state",
            "State of a query of a pipeline; lost if a running query has stopped to report.",
            (
                Sample(
                    1, format_labels({"pipeline": each.pipeline, "query": each.query, "state": each.state_at(now_ms)})
                )
                for each in self._reports
            ),
        )
        yield gauge(f"{prefix}_lag_records", "Records that the query has not processed.", of(lambda each: each.lag))
        yield gauge(f"{prefix}_rows", "Records read since the start of the run.", of(lambda each: each.rows))
        yield gauge(f"{prefix}_late_rows", "Rows dropped by the watermark.", of(lambda each: each.late))
        yield gauge(f"{prefix}_input_rate", "Records that arrived per second.", of(lambda each: each.input_rate))
        yield gauge(f"{prefix}_process_rate", "Records processed per second.", of(lambda each: each.process_rate))
        yield gauge(
            f"{prefix}_batch_seconds",
            "Duration of the last micro-batch.",
            of(lambda each: None if each.batch_ms is None else each.batch_ms / 1000),
        )
        yield gauge(
            f"{prefix}_report_timestamp_seconds", "Time of the last report.", of(lambda each: each.time_ms / 1000)
        )
