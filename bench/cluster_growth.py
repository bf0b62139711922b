"""Cost of metadata as a cluster grows: a hundred, a thousand and ten thousand partitions on three nodes of Moldau."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import KafkaError, KafkaException

from bench.brokers import PAGE_CACHE, let_idle
from bench.cluster_nodes import CLUSTER_ID, NODES, Cluster, MoldauCluster, cores
from bench.cluster_plan import ClusterPlan
from bench.load import LoadFailed
from bench.plan import Bench, figures
from bench.report import Cell, Metric, Row, Table, count, decimals
from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.controller.messages import heartbeat_request
from moldau.controller.requests import BrokerHeartbeat
from moldau.metadata.records import decode as decode_record
from moldau.metadata.snapshot import image_from_records
from moldau.raft.messages import SnapshotId
from moldau.raft.snapshot_format import decode_snapshot
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import encoder
from moldau.wire.frames import encode_request_header

PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 5
SNAPSHOT_INTERVAL_S = 2
IN_SYNC_TIMEOUT_S = 120

CREATED = Metric("created in s", decimals(1))
NODE_MEMORY = Metric("KB on a node per partition", decimals(1))
IMAGE_MEMORY = Metric("B of metadata per partition", count)
SNAPSHOT = Metric("snapshot, B", count)
SNAPSHOT_EACH = Metric("B per partition", decimals(1))
HEARTBEAT = Metric("heartbeat, B", count)
IDLE = Metric("idle cores of all nodes", decimals(3))
TRAFFIC = Metric("idle traffic of all nodes, KB/s", decimals(1))


@dataclass(frozen=True)
class Step:
    partitions: int
    created_s: float
    node_bytes: float
    """Growth of one node since it was empty."""
    image_bytes: int
    snapshot_bytes: int
    heartbeat_bytes: int
    idle_cores: float
    traffic_bytes_per_s: float


def growth(bench: Bench, plan: ClusterPlan) -> Table:
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory:
        # Short enough that each step has a snapshot to measure.
        settings = {"metadata.log.max.snapshot.interval.ms": str(SNAPSHOT_INTERVAL_S * 1000)}
        with MoldauCluster(Path(directory), PAGE_CACHE, settings=settings) as cluster:
            let_idle()
            empty_bytes = cluster.resident_bytes()
            rows = []
            for partitions in plan.growth:
                rows.append(_row(_grow(plan, cluster, partitions, empty_bytes)))
                bench.print_row("metadata", rows[-1])
    note = (
        f"Three replicas each, topics of {PARTITIONS_PER_TOPIC} partitions, {TOPICS_PER_REQUEST} in a request, on top "
        "of those of the row before. *On a node* is all that a replica costs a process, its open log included; *of "
        "metadata* is the image alone, as read from the node's own newest snapshot. A heartbeat carries no partitions "
        "but those that could not be opened. Idle traffic is all that goes over the loopback device."
    )
    return Table("Metadata as the cluster grows", tuple(rows), note)


def _row(step: Step) -> Row:
    def cell(metric: Metric, value: float) -> Cell:
        return Cell(metric, figures({MoldauCluster.name: [value]}, float))

    return Row(
        f"{step.partitions:,} partitions",
        (
            cell(CREATED, step.created_s),
            cell(NODE_MEMORY, step.node_bytes / step.partitions / 1e3),
            cell(IMAGE_MEMORY, step.image_bytes / step.partitions),
            cell(SNAPSHOT, step.snapshot_bytes),
            cell(SNAPSHOT_EACH, step.snapshot_bytes / step.partitions),
            cell(HEARTBEAT, step.heartbeat_bytes),
            cell(IDLE, step.idle_cores),
            cell(TRAFFIC, step.traffic_bytes_per_s / 1e3),
        ),
    )


def _grow(plan: ClusterPlan, cluster: MoldauCluster, partitions: int, empty_bytes: int) -> Step:
    began = time.monotonic()
    _create(cluster, partitions)
    created_s = time.monotonic() - began
    let_idle(2.0)
    added = cluster.resident_bytes() - empty_bytes
    traffic, watched_from = _loopback_bytes(), time.monotonic()
    idle = cores(cluster, plan.idle_s)
    traffic_rate = (_loopback_bytes() - traffic) / (time.monotonic() - watched_from)
    snapshot = _newest_snapshot(cluster, f"after-{partitions}")
    image_bytes, offset = _measure_snapshot(snapshot)
    return Step(
        partitions,
        created_s,
        added / NODES,
        image_bytes,
        snapshot.stat().st_size,
        _heartbeat_bytes(offset),
        idle,
        traffic_rate,
    )


def _create(cluster: Cluster, partitions: int) -> None:
    """Creates partitions up to a total of `partitions`; returns when all are in sync."""
    admin = cluster.admin()
    there = {name for name in cluster.metadata(admin).topics if name.startswith("grown-")}
    wanted = [f"grown-{index}" for index in range(partitions // PARTITIONS_PER_TOPIC)]
    missing = [name for name in wanted if name not in there]
    for first in range(0, len(missing), TOPICS_PER_REQUEST):
        try:
            cluster.create_topics(missing[first : first + TOPICS_PER_REQUEST], PARTITIONS_PER_TOPIC)
        except KafkaException as error:
            # The topics are being created; the wait below covers them.
            if error.args[0].code() != KafkaError.REQUEST_TIMED_OUT:
                raise
    cluster.wait_until(lambda: cluster.is_in_sync(wanted, admin), "all replicas are in sync", IN_SYNC_TIMEOUT_S)


def _newest_snapshot(cluster: MoldauCluster, topic: str) -> Path:
    """Triggers a new snapshot by creating a small topic, and returns it."""
    directory = cluster.data_dir / "node-1" / "data" / "__cluster_metadata-0"

    def found() -> list[Path]:
        return sorted(directory.glob("*.checkpoint"))

    before = found()[-1:]
    time.sleep(SNAPSHOT_INTERVAL_S)
    cluster.create_topics([topic], 1)
    cluster.wait_until(lambda: found()[-1:] != before, "a new snapshot exists")
    return found()[-1]


def _measure_snapshot(snapshot: Path) -> tuple[int, int]:
    """Returns the memory of the snapshot's image and the offset of its last record."""
    end_offset, epoch = (int(part) for part in snapshot.stem.split("-"))
    contents = decode_snapshot(SnapshotId(end_offset, epoch), snapshot.read_bytes())
    gc.collect()
    tracemalloc.start()
    try:
        image = image_from_records(
            (decode_record(value) for value in contents.values),
            cluster_id=CLUSTER_ID,
            end_offset=end_offset,
            epoch=epoch,
            leader_id=contents.leader_id,
        )
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return size, image.offset


def _heartbeat_bytes(metadata_offset: int) -> int:
    """Returns the size of one request on the wire."""
    version = SUPPORTED_VERSIONS[ApiKey.BROKER_HEARTBEAT].maximum
    frame = encode_request_header(ApiKey.BROKER_HEARTBEAT, version, 1, "node-1")
    encoder(ApiKey.BROKER_HEARTBEAT, version, "request")(
        frame, heartbeat_request(BrokerHeartbeat(1, 5, metadata_offset))
    )
    return 4 + len(frame)


def _loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    raise LoadFailed("no loopback device to measure traffic on")
