"""The same random workload on Moldau and Apache Kafka: after compaction every client reads the same records from both.

MOLDAU_COMPACTION_SEEDS sets the number of workloads (2), MOLDAU_COMPACTION_FIRST_SEED the first of them (7). The first
two delete records. One keeps tombstones, and the other one is compacted while it is written.
"""

import os
import time
from collections.abc import Callable, Iterator

import pytest
from apache_kafka import ApacheKafka, available
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]
from java_clients import JavaClients, poll_until

from moldau.records.batch import split
from moldau.records.record import iterate_records
from support.broker_process import BrokerProcess
from support.compaction_workload import SEGMENT_BYTES, CompactionWorkload, DeleteRecords, Write
from support.partition_readers import PARTITION_READERS, READ_TIMEOUT_S, Range, Row
from support.topics import Topics
from support.wire import DELETE_RECORDS, WireClient, end_offset, fetch, new_producer_id, produce

SEEDS = int(os.environ.get("MOLDAU_COMPACTION_SEEDS", "2"))
FIRST_SEED = int(os.environ.get("MOLDAU_COMPACTION_FIRST_SEED", "7"))
WORKLOAD_BYTES = 6_000_000
COMPACTION_TIMEOUT_S = 60
NEVER = 1.0
"""A dirty ratio that no log exceeds."""
ALWAYS = 0.0001


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The bootstrap addresses of Moldau and Apache Kafka, both with a fast cleaner."""
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not available: {reason}")
    directory = tmp_path_factory.mktemp("compaction")
    with (
        BrokerProcess(directory / "moldau", "--log-cleaner-backoff-ms", "100") as moldau,
        ApacheKafka(directory / "kafka", {"log.cleaner.backoff.ms": "100"}, heap="512m") as kafka,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Makes `Topics` wait for topics: Kafka responds before a topic can be used.
        patch.setenv("MOLDAU_TEST_BOOTSTRAP", kafka.bootstrap)
        yield {"moldau": moldau.bootstrap, "kafka": kafka.bootstrap}


class Replay:
    """A workload on one broker, in a topic of its own."""

    def __init__(self, bootstrap: str, workload: CompactionWorkload) -> None:
        self._workload = workload
        self._topics = Topics(bootstrap)
        self._wire = WireClient(bootstrap)
        self.bootstrap = bootstrap
        self.topic = self._topics.create(
            cleanup_policy="compact,delete" if workload.deletes_records else "compact",
            retention_ms=-1,
            segment_bytes=SEGMENT_BYTES,
            min_cleanable_dirty_ratio=ALWAYS if workload.is_cleaned_while_written else NEVER,
            delete_retention_ms=86_400_000 if workload.keeps_tombstones else 1,
            max_message_bytes=1_000_000,
        )
        self._producer_ids = [new_producer_id(self._wire) for _ in range(workload.producers)]
        self._end = 0

    def close(self) -> None:
        self._wire.close()
        self._topics.admin.delete_topics([self.topic])[self.topic].result(20)

    def apply(self, step: Write | DeleteRecords) -> None:
        if isinstance(step, Write):
            data = step.batch(self._producer_ids)
            assert produce(self._wire, self.topic, data) == (0, self._end)
            self._end += len(step.records)
            return
        wanted = {"name": self.topic, "partitions": [{"partition_index": 0, "offset": step.before_offset}]}
        response = self._wire.request(DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 10_000})
        assert response["topics"][0]["partitions"][0]["error_code"] == 0

    def start_cleaning(self) -> None:
        change = ConfigEntry("min.cleanable.dirty.ratio", str(ALWAYS), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[change])
        for future in self._topics.admin.incremental_alter_configs([resource]).values():
            future.result(20)

    def rows(self) -> list[Row]:
        """Reads the partition with plain fetches."""
        offset, end = self._workload.log.start, end_offset(self._wire, self.topic)
        assert end == self._workload.log.end
        rows: list[Row] = []
        while offset < end:
            data = fetch(self._wire, self.topic, offset, partition_max_bytes=8 * SEGMENT_BYTES)["records"] or b""
            batches = [batch for batch in split(data, allow_partial=True) if batch.next_offset > offset]
            assert batches, f"nothing is left to read from offset {offset} to {end}"
            for batch in batches:
                rows += [
                    Row(record.offset, record.key, record.value, record.timestamp)
                    for record in iterate_records(batch)
                    if record.offset >= self._workload.log.start
                ]
            offset = batches[-1].next_offset
        return rows

    def wait_for_rows(self, expected: list[Row], *, with_tombstones: bool) -> None:
        deadline = time.monotonic() + COMPACTION_TIMEOUT_S
        while True:
            rows = self.rows()
            if rows == expected or (not with_tombstones and values_of(rows) == values_of(expected)):
                return
            assert time.monotonic() < deadline, (
                f"{self.bootstrap} has {len(rows)} records, and not {len(expected)}: "
                f"{sorted({row.offset for row in rows} ^ {row.offset for row in expected})[:20]} differ"
            )
            time.sleep(0.1)


def values_of(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.value is not None]


def write_and_compact(workload: CompactionWorkload, replays: list[Replay]) -> list[Row]:
    """Writes the workload, waits until both brokers have compacted all of it, and returns the expected records."""
    for step in workload.steps():
        for replay in replays:
            replay.apply(step)
    # The first cleaning after a tombstone sets its delete horizon, and the next one removes it.
    for number in range(1 if workload.keeps_tombstones else 2):
        for write in workload.closing_steps():
            for replay in replays:
                replay.apply(write)
        if number == 0 and not workload.is_cleaned_while_written:
            for replay in replays:
                replay.start_cleaning()
        expected = workload.log.survivors(keeps_tombstones=workload.keeps_tombstones)
        for replay in replays:
            replay.wait_for_rows(expected, with_tombstones=workload.keeps_tombstones or number == 1)
    return expected


def java_reader(java: JavaClients) -> Callable[[Range], list[Row]]:
    def read(what: Range) -> list[Row]:
        partition = f"{what.topic}:0"
        consumer = java.consumer(
            what.bootstrap,
            f"reader of {what.bootstrap} {what.topic}",
            partitions=[partition],
            enable_auto_commit=False,
            max_partition_fetch_bytes=what.max_partition_fetch_bytes,
        )
        # The consumer begins at the start of the log.
        poll_until(lambda: consumer.position(partition) >= what.end, f"Java reads {what}", READ_TIMEOUT_S)
        rows = [
            Row(
                each["offset"],
                each["key"].encode(),
                None if each["value"] is None else each["value"].encode(),
                each["timestamp"],
            )
            for each in consumer.events_of("record")
        ]
        consumer.close()
        return rows

    return read


def test_every_client_reads_the_same_records_from_moldau_and_kafka(
    brokers: dict[str, str], java: JavaClients, capsys: pytest.CaptureFixture[str]
) -> None:
    readers = {**PARTITION_READERS, "java": java_reader(java)}
    written = survived = 0
    began = time.monotonic()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        workload = CompactionWorkload(seed, WORKLOAD_BYTES)
        replays = [Replay(bootstrap, workload) for bootstrap in brokers.values()]
        expected = write_and_compact(workload, replays)
        log = workload.log
        for replay in replays:
            what = Range(replay.bootstrap, replay.topic, log.start, log.end, workload.max_partition_fetch_bytes)
            for name, read in readers.items():
                rows = read(what)
                assert rows == expected, f"seed {seed}: {name} read {len(rows)} of {len(expected)} records from {what}"
            replay.close()
        written, survived = written + len(log.rows), survived + len(expected)
    with capsys.disabled():
        print(
            f"\n{SEEDS} seeds in {time.monotonic() - began:.0f} s: {written} records written to each, {survived} "
            f"left by compaction, read from both with {', '.join(readers)}"
        )
