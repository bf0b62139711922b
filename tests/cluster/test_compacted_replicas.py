"""Compaction on every replica while leaders die with records that no other replica has: after the truncations all
replicas have the records that compaction must leave. MOLDAU_COMPACTION_KILLS sets the number of leaders (2)."""

import os
import random
import time
from pathlib import Path

import pytest

from moldau.records.batch import split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from support.broker_process_cluster import BrokerProcessCluster
from support.partition_readers import PARTITION_READERS, Range, Row
from support.wire import DELETE_RECORDS, WireClient, fetch, latest, new_producer_id, produce

pytestmark = pytest.mark.clients

KILLS = int(os.environ.get("MOLDAU_COMPACTION_KILLS", "2"))
TOPIC = "compacted"
SEGMENT_BYTES = 20_000
KEYS = 30
PRODUCERS = 4
T0 = 1_700_000_000_000
TIMEOUT_S = 60
ALL, LEADER = -1, 1
TRUNCATED = "truncated the log to where it diverges"


class CompactedPartition:
    """A partition, written batch by batch, and the records that are committed."""

    def __init__(self, cluster: BrokerProcessCluster, randomness: random.Random) -> None:
        self._cluster = cluster
        self._random = randomness
        self.rows: list[Row] = []
        """All committed records."""
        self.start = 0
        self._uncommitted: list[tuple[int, int, list[Record]]] = []
        with self._leader() as wire:
            self._producer_ids = [new_producer_id(wire) for _ in range(PRODUCERS)]
        self._sequences = [0] * PRODUCERS

    @property
    def end(self) -> int:
        return self.rows[-1].offset + 1 if self.rows else 0

    def _leader(self) -> WireClient:
        return WireClient(self._cluster.nodes[self._cluster.leader_of(TOPIC)].bootstrap)

    def write(self, count: int) -> None:
        """Writes batches of plain and idempotent producers with acks=all."""
        with self._leader() as wire:
            for _ in range(count):
                producer = self._random.randrange(PRODUCERS) if self._random.random() < 0.5 else None
                self._commit(wire, self._records(), producer)

    def write_to_leader_only(self, count: int) -> None:
        """Writes batches that the leader acknowledges alone. Call `find_end` when there is another leader."""
        sequences = list(self._sequences)
        with self._leader() as wire:
            for number in range(count):
                producer, records = number % PRODUCERS, self._records()
                error, offset = produce(wire, TOPIC, self._batch(records, producer), acks=LEADER)
                assert error == 0
                self._uncommitted.append((offset, producer, records))
                self._sequences[producer] += len(records)
        self._sequences = sequences

    def find_end(self) -> None:
        """Adds the uncommitted batches that the new leader has: a paused follower may have a response to read."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._leader() as wire:
            while (found := latest(wire, TOPIC))["error_code"]:
                assert time.monotonic() < deadline, f"the new leader has no end offset: {found}"
        for offset, producer, records in self._uncommitted:
            if offset < found["offset"]:
                assert offset == self.end
                self._add(records, producer)
        self._uncommitted = []
        assert found["offset"] == self.end

    def fill(self) -> None:
        """Closes the segments of all replicas: writes records until each has rolled twice."""
        with self._leader() as wire:
            for number in range(6 * SEGMENT_BYTES // 1_000):
                self._commit(wire, [Record(timestamp=T0, key=b"filler-%d" % (number % 5), value=b"x" * 1_000)], None)

    def _commit(self, wire: WireClient, records: list[Record], producer: int | None) -> None:
        error, offset = produce(wire, TOPIC, self._batch(records, producer), acks=ALL)
        assert (error, offset) == (0, self.end)
        self._add(records, producer)

    def _add(self, records: list[Record], producer: int | None) -> None:
        if producer is not None:
            self._sequences[producer] += len(records)
        offset = self.end
        self.rows += [
            Row(offset + number, record.key, record.value, record.timestamp) for number, record in enumerate(records)
        ]

    def delete_records(self) -> None:
        self.start = self._random.randint(self.start, self.end - 1)
        wanted = {"name": TOPIC, "partitions": [{"partition_index": 0, "offset": self.start}]}
        with self._leader() as wire:
            response = wire.request(DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 10_000})
        assert response["topics"][0]["partitions"][0]["error_code"] == 0

    def _records(self) -> list[Record]:
        return [
            Record(
                timestamp=T0 + 1_000 * self.end + number,
                key=b"key-%d" % self._random.randrange(KEYS),
                value=None
                if self._random.random() < 0.2
                else self._random.randbytes(self._random.choice([0, 50, 2_000])),
            )
            for number in range(self._random.randint(1, 5))
        ]

    def _batch(self, records: list[Record], producer: int | None) -> bytes:
        codec = self._random.randrange(5)
        if producer is None:
            return build_batch(records, compression=codec)
        return build_batch(
            records,
            compression=codec,
            producer_id=self._producer_ids[producer],
            producer_epoch=0,
            base_sequence=self._sequences[producer],
        )

    def survivors(self, active_base: int) -> list[Row]:
        """Returns what a replica has whose segments below this offset are compacted. Tombstones are retained."""
        latest = {row.key: row.offset for row in self.rows if row.offset < active_base}
        return [
            row
            for row in self.rows
            if row.offset >= self.start and (row.offset >= active_base or latest[row.key] == row.offset)
        ]


def read_replica(bootstrap: str, start: int, end: int) -> list[Row]:
    """Reads the records of one replica, leader or not."""
    rows: list[Row] = []
    with WireClient(bootstrap) as wire:
        offset = start
        while offset < end:
            found = fetch(wire, TOPIC, offset)
            batches = list(split(found["records"] or b""))
            if found["error_code"] or not batches:
                return rows
            assert batches[-1].next_offset > offset
            rows += [
                Row(record.offset, record.key, record.value, record.timestamp)
                for batch in batches
                for record in iterate_records(batch)
                if record.offset >= offset
            ]
            offset = batches[-1].next_offset
    return rows


def active_base(data_dir: Path) -> int:
    return max(int(path.stem) for path in (data_dir / f"{TOPIC}-0").glob("*.log"))


def wait_for_compaction(cluster: BrokerProcessCluster, partition: CompactedPartition) -> None:
    for node_id, node in cluster.nodes.items():
        expected = partition.survivors(active_base(node.data_dir))
        deadline = time.monotonic() + TIMEOUT_S
        while (rows := read_replica(node.bootstrap, partition.start, partition.end)) != expected:
            assert time.monotonic() < deadline, (
                f"node {node_id} has {len(rows)} records, and not {len(expected)}: "
                f"{sorted({row.offset for row in rows} ^ {row.offset for row in expected})[:20]} differ"
            )
            time.sleep(0.1)


def test_replicas_have_the_same_records_after_truncations_and_compaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    randomness = random.Random(7)
    settings = {"log.cleaner.backoff.ms": "100"}
    with BrokerProcessCluster(tmp_path, settings=settings) as cluster:
        cluster.create_topic(
            TOPIC,
            cleanup_policy="compact,delete",
            retention_ms="-1",
            segment_bytes=str(SEGMENT_BYTES),
            min_cleanable_dirty_ratio="0.0001",
        )
        cluster.wait_in_sync(TOPIC)
        partition = CompactedPartition(cluster, randomness)
        for number in range(KILLS):
            partition.write(40)
            leader = cluster.leader_of(TOPIC)
            followers = [node_id for node_id in cluster.nodes if node_id != leader]
            for node_id in followers:
                cluster.pause(node_id)
            partition.write_to_leader_only(randomness.randint(2, 12))
            cluster.kill(leader)
            for node_id in followers:
                cluster.resume(node_id)
            cluster.wait_until(lambda old=leader: cluster.leader_of(TOPIC) not in (-1, old), "another leader")
            partition.find_end()
            partition.write(20)
            cluster.start(leader)
            cluster.wait_in_sync(TOPIC)
            if number % 3 == 1:
                partition.delete_records()
        partition.fill()
        wait_for_compaction(cluster, partition)
        leader = cluster.leader_of(TOPIC)
        expected = partition.survivors(active_base(cluster.nodes[leader].data_dir))
        for name, read in PARTITION_READERS.items():
            for max_bytes in (1, 1024 * 1024):
                what = Range(cluster.bootstrap, TOPIC, partition.start, partition.end, max_bytes)
                assert read(what) == expected, f"{name} with {max_bytes} bytes"
        truncated = sum(node.log_path.read_text(errors="replace").count(TRUNCATED) for node in cluster.nodes.values())
    assert truncated >= KILLS
    with capsys.disabled():
        print(
            f"\n{KILLS} kills of a leader with records of its own, {truncated} truncations, {len(partition.rows)} "
            f"records committed, {len(expected)} left by compaction"
        )
