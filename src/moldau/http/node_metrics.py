"""The metrics of a node, read from its components when they are requested.

Dashboards add up the values of all nodes, so each series comes from exactly one node: series of a partition from its
leader, series of the whole cluster from the active controller. As in Kafka, the size and end of a log are those of each
replica, and names without a topic or partition are per node.
"""

import asyncio
from collections.abc import Iterator
from itertools import chain

from moldau import __version__
from moldau.broker_lifecycle.state import BrokerState
from moldau.http.cluster_metrics import cluster_families, controller_families, quorum_families
from moldau.http.lag_metrics import lag_families
from moldau.http.partition_metrics import PartitionTotals, partition_families, partition_slices
from moldau.http.pipeline_metrics import PipelineReports
from moldau.http.system_metrics import disk_families, network_families, process_families
from moldau.metrics.exposition import (
    PAUSE,
    MetricFamily,
    MetricType,
    Sample,
    counter,
    format_labels,
    gauge,
    write_families,
)
from moldau.server.api import Broker

METRICS_PATH = "/metrics"
SLICE_US = 1_000
"""How long metrics are written before the node does other work."""

_KAFKA_STATES = {
    BrokerState.STARTING: 1,
    BrokerState.FENCED: 2,
    BrokerState.ACTIVE: 3,
    BrokerState.CONTROLLED_SHUTDOWN: 6,
    BrokerState.STOPPED: 7,
}
"""The numbers of Kafka's BrokerState."""


async def render_metrics(broker: Broker, pipelines: PipelineReports) -> list[bytes]:
    """Returns the metrics as blocks of text. Other work of the node runs in between."""
    clock = broker.platform.clock
    await pipelines.refresh(broker)
    blocks = []
    slice_start_us = clock.monotonic_us()
    families = chain(node_families(broker), pipelines.families(clock.wall_ms()))
    for block in write_families(families):
        if block:
            blocks.append(block.encode())
        if clock.monotonic_us() - slice_start_us >= SLICE_US:
            await asyncio.sleep(0)
            slice_start_us = clock.monotonic_us()
    return blocks


def node_families(broker: Broker) -> Iterator[MetricFamily | None]:
    """Yields all metrics, and a PAUSE where values are computed for long. Each value is read when its sample is
    written."""
    _roll_windows(broker)
    yield from _broker_families(broker)
    yield from _partition_families(broker)
    if broker.controller.is_active:
        yield from cluster_families(broker.metadata.image)
    yield from controller_families(broker.controller)
    yield from quorum_families(broker)
    yield from broker.topic_metrics.families()
    yield from broker.request_metrics.families()
    yield from network_families(broker.listeners)
    yield from disk_families(broker)
    yield from process_families(broker)
    yield from lag_families(broker.lag_sampler)


def _roll_windows(broker: Broker) -> None:
    now_ms = broker.platform.clock.monotonic_ms()
    broker.topic_metrics.keep_only(broker.metadata.image.topics)
    broker.request_metrics.roll_windows(now_ms)
    broker.quorum.metrics.commit_durations.roll_window(now_ms)
    broker.replica_manager.store.sync_durations.roll_window(now_ms)


def _broker_families(broker: Broker) -> Iterator[MetricFamily | None]:
    lifecycle = broker.lifecycle
    yield gauge("moldau_build_info", "The version.", [Sample(1, format_labels({"version": __version__}))])
    yield gauge(
        "kafka_server_kafkaserver_brokerstate",
        "State of the broker: 1 starting, 2 fenced, 3 running, 6 controlled shutdown, 7 stopped.",
        _KAFKA_STATES[lifecycle.phase],
    )
    yield gauge("moldau_broker_active", "Whether the broker is registered and not fenced.", int(lifecycle.is_active))
    yield gauge("moldau_broker_lease_valid", "Whether the broker has a valid lease.", int(lifecycle.lease.is_valid()))
    yield gauge(
        "moldau_broker_shutting_down",
        "Whether the broker is shutting down.",
        int(lifecycle.phase in (BrokerState.CONTROLLED_SHUTDOWN, BrokerState.STOPPED)),
    )
    yield MetricFamily(
        "moldau_broker_heartbeat_duration_seconds",
        MetricType.HISTOGRAM,
        "Time from a heartbeat of this broker to the response of the controller.",
        lifecycle.heartbeat_metrics.durations.samples({}),
    )
    yield counter(
        "moldau_broker_heartbeat_failures_total",
        "Heartbeats of this broker that had no response or were rejected.",
        lifecycle.heartbeat_metrics.failures,
    )
    yield counter(
        "moldau_client_requests_total",
        "Requests of Kafka clients, without those of nodes.",
        broker.client_request_count,
    )


def _partition_families(broker: Broker) -> Iterator[MetricFamily | None]:
    replicas, now_ms = broker.replica_manager, broker.platform.clock.monotonic_ms()
    slices = []
    totals = PartitionTotals()
    for each in partition_slices(replicas):
        slices.append(each)
        totals.add(each, now_ms)
        yield PAUSE
    prefix = "kafka_server_replicamanager"
    yield gauge(f"{prefix}_leadercount", "Partitions that this broker leads.", totals.led)
    yield gauge(f"{prefix}_partitioncount", "Replicas on this broker.", len(replicas))
    yield gauge(
        f"{prefix}_underreplicatedpartitions",
        "Partitions that this broker leads and that lack in-sync replicas.",
        totals.under_replicated,
    )
    yield gauge(
        f"{prefix}_underminisrpartitioncount",
        "Partitions that this broker leads with fewer in-sync replicas than min.insync.replicas.",
        totals.under_min_isr,
    )
    yield gauge(
        f"{prefix}_atminisrpartitioncount",
        "Partitions that this broker leads with exactly min.insync.replicas in-sync replicas.",
        totals.at_min_isr,
    )
    yield gauge(
        f"{prefix}_offlinereplicacount",
        "Replicas on this broker that cannot be read or written.",
        len(replicas.offline_replicas()),
    )
    yield gauge(
        f"{prefix}_partitionswithlatetransactionscount",
        "Partitions that this broker leads with a transaction that is open for longer than any timeout.",
        replicas.late_transaction_count,
    )
    yield counter(
        f"{prefix}_isrshrinks_total",
        "How often the ISR of a partition that this broker leads lost a member.",
        replicas.isr_metrics.shrinks,
    )
    yield counter(
        f"{prefix}_isrexpands_total",
        "How often the ISR of a partition that this broker leads gained a member.",
        replicas.isr_metrics.expands,
    )
    yield gauge(
        "moldau_follower_lag_seconds",
        "For how long a follower has lacked records of this broker, in its worst partition.",
        [Sample(lag_ms / 1000, format_labels({"replica": each})) for each, lag_ms in sorted(totals.lag_ms.items())],
    )
    yield from partition_families(slices)
