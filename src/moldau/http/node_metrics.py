"""The metrics of a node, read from its components when they are requested.

Dashboards add up the values of all nodes, so each series comes from exactly one node: series of a partition from its
leader, series of the whole cluster from the active controller. As in Kafka, the size and end of a log are those of each
replica, and names without a topic or partition are per node.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from moldau.broker_lifecycle.state import BrokerState
from moldau.logs.store import LogName
from moldau.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration
from moldau.metrics.exposition import MetricFamily, Sample, counter, format_labels, gauge, write_families
from moldau.partitions.leader_state import PartitionLeaderState
from moldau.partitions.partition import Partition
from moldau.server.api import Broker

METRICS_PATH = "/metrics"
SLICE_US = 2_000
"""How long metrics are written before the node does other work."""


async def render_metrics(broker: Broker) -> list[bytes]:
    """Returns the metrics as blocks of text. Other work of the node runs in between."""
    clock = broker.platform.clock
    blocks = []
    slice_start_us = clock.monotonic_us()
    for block in write_families(node_families(broker)):
        blocks.append(block.encode())
        if clock.monotonic_us() - slice_start_us >= SLICE_US:
            await asyncio.sleep(0)
            slice_start_us = clock.monotonic_us()
    return blocks


def node_families(broker: Broker) -> Iterator[MetricFamily]:
    """Yields all metrics. Each value is read when its sample is written."""
    image = broker.metadata.image
    broker.topic_metrics.keep_only(image.topics)
    broker.request_metrics.roll_windows(broker.platform.clock.monotonic_ms())
    yield from _broker_families(broker)
    yield from _partition_families(broker)
    if broker.controller.is_active:
        yield from _cluster_families(image)
    yield from _quorum_families(broker)
    yield from broker.topic_metrics.families()
    yield from broker.request_metrics.families()


def _broker_families(broker: Broker) -> Iterator[MetricFamily]:
    replicas = broker.replica_manager
    led = [each.leader.state for each in replicas if each.leader.state is not None]
    yield gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.", len(led))
    yield gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker.", len(replicas))
    yield gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions that this broker leads and that lack in-sync replicas.",
        sum(map(_is_under_replicated, led)),
    )
    yield gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions that this broker leads with fewer in-sync replicas than min.insync.replicas.",
        sum(len(each.isr) < each.min_isr for each in led),
    )
    yield gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Replicas on this broker that cannot be read or written.",
        len(replicas.offline_replicas()),
    )
    lifecycle = broker.lifecycle
    yield gauge("moldau_broker_active", "Whether the broker is registered and not fenced.", int(lifecycle.is_active))
    yield gauge("moldau_broker_lease_valid", "Whether the broker has a valid lease.", int(lifecycle.lease.is_valid()))
    yield gauge(
        "moldau_broker_shutting_down",
        "Whether the broker is shutting down.",
        int(lifecycle.phase in (BrokerState.CONTROLLED_SHUTDOWN, BrokerState.STOPPED)),
    )
    yield counter(
        "moldau_client_requests_total",
        "Requests of Kafka clients, without those of nodes.",
        broker.client_request_count,
    )


def _is_under_replicated(state: PartitionLeaderState) -> bool:
    return len(state.isr) < len(state.image.replicas) - len(state.image.adding_replicas)


# Partitions


def _partition_families(broker: Broker) -> Iterator[MetricFamily]:
    partitions = list(broker.replica_manager)
    labels: dict[LogName, str] = {}

    def labels_of(partition: Partition) -> str:
        # Many labels would take too long at once.
        text = labels.get(partition.name)
        if text is None:
            text = labels[partition.name] = _partition_labels(partition)
        return text

    def led(value: Callable[[Partition, PartitionLeaderState], float]) -> Iterator[Sample]:
        """Yields the value of each partition that this node leads at the time."""
        for partition in partitions:
            state = partition.leader.state
            if state is not None:
                yield Sample(value(partition, state), labels_of(partition))

    def stored(value: Callable[[Partition], float]) -> Iterator[Sample]:
        for partition in partitions:
            yield Sample(value(partition), labels_of(partition))

    prefix = "kafka_topic_partition"
    yield gauge(f"{prefix}_current_offset", "High watermark.", led(lambda each, state: state.high_watermark))
    yield gauge(f"{prefix}_oldest_offset", "Log start offset.", led(lambda each, state: each.log.start_offset))
    yield gauge(
        "moldau_partition_last_stable_offset", "Last stable offset.", led(lambda each, state: each.last_stable_offset)
    )
    yield gauge(f"{prefix}_leader", "Broker id of the leader.", led(lambda each, state: state.replica_id))
    yield gauge(f"{prefix}_replicas", "Number of replicas.", led(lambda each, state: len(state.image.replicas)))
    yield gauge(f"{prefix}_in_sync_replica", "Number of in-sync replicas.", led(lambda each, state: len(state.isr)))
    yield gauge(
        f"{prefix}_leader_is_preferred",
        "Whether the leader is the preferred one.",
        led(lambda each, state: state.image.replicas[0] == state.replica_id),
    )
    yield gauge(
        f"{prefix}_under_replicated_partition",
        "Whether the partition lacks in-sync replicas.",
        led(lambda each, state: _is_under_replicated(state)),
    )
    yield gauge(
        "kafka_cluster_partition_underminisr",
        "Whether the partition has fewer in-sync replicas than min.insync.replicas.",
        led(lambda each, state: len(state.isr) < state.min_isr),
    )
    yield gauge(
        "kafka_cluster_partition_atminisr",
        "Whether the partition has exactly min.insync.replicas in-sync replicas.",
        led(lambda each, state: len(state.isr) == state.min_isr),
    )
    yield gauge("moldau_replica_lag_records", "Records that a follower lacks.", _replica_lag(partitions))
    yield gauge("kafka_log_log_size", "Bytes of the replica's log on this broker.", stored(lambda each: each.log.size))
    yield gauge("kafka_log_log_logendoffset", "End of the replica's log.", stored(lambda each: each.log.end_offset))


def _partition_labels(partition: Partition, **more: object) -> str:
    return format_labels({"topic": partition.name.topic, "partition": partition.name.partition, **more})


def _replica_lag(partitions: Iterable[Partition]) -> Iterator[Sample]:
    for partition in partitions:
        state = partition.leader.state
        if state is None:
            continue
        for broker_id, end_offset in state.log_end_offsets().items():
            if broker_id != state.replica_id and end_offset >= 0:
                yield Sample(max(0, state.end_offset - end_offset), _partition_labels(partition, replica=broker_id))


# The cluster


def _cluster_families(image: MetadataImage) -> Iterator[MetricFamily]:
    active = [each for each in image.brokers.values() if each.is_active]
    yield gauge("kafka_brokers", "Brokers that are registered and not fenced.", len(active))
    yield gauge(
        "kafka_broker_info",
        "Address of a broker.",
        (
            Sample(1, format_labels({"id": each.broker_id, "address": f"{endpoint.host}:{endpoint.port}"}))
            for each in active
            for endpoint in each.endpoints[:1]
        ),
    )
    yield gauge(
        "kafka_topic_partitions",
        "Number of partitions of a topic.",
        (Sample(len(each.partitions), format_labels({"topic": each.name})) for each in image.topics.values()),
    )
    prefix = "kafka_controller_kafkacontroller"
    yield gauge(f"{prefix}_activebrokercount", "Brokers that are registered and not fenced.", len(active))
    yield gauge(f"{prefix}_fencedbrokercount", "Brokers that are fenced.", len(image.brokers) - len(active))
    yield gauge(f"{prefix}_globaltopiccount", "Topics of the cluster.", len(image.topics))
    partitions = [each for topic in image.topics.values() for each in topic.partitions]
    yield gauge(f"{prefix}_globalpartitioncount", "Partitions of the cluster.", len(partitions))
    yield gauge(
        f"{prefix}_offlinepartitionscount", "Partitions without a leader.", sum(map(_has_no_leader, partitions))
    )
    yield gauge(
        f"{prefix}_preferredreplicaimbalancecount",
        "Partitions whose leader is not the preferred one.",
        sum(each.leader != each.replicas[0] for each in partitions),
    )
    yield gauge(
        "moldau_partition_without_leader",
        "A partition that has no leader.",
        (
            Sample(1, format_labels({"topic": topic.name, "partition": each.index}))
            for topic in image.topics.values()
            for each in topic.partitions
            if _has_no_leader(each)
        ),
    )


def _has_no_leader(partition: PartitionRegistration) -> bool:
    return partition.leader == NO_LEADER


def _quorum_families(broker: Broker) -> Iterator[MetricFamily]:
    quorum = broker.quorum
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "Whether this node is the active controller.",
        int(broker.controller.is_active),
    )
    prefix = "kafka_server_raftmetrics"
    yield gauge(
        f"{prefix}_current_state",
        "State in the metadata quorum.",
        [Sample(1, format_labels({"current_state": quorum.role}))],
    )
    yield gauge(f"{prefix}_current_leader", "Leader of the quorum; -1 if unknown.", quorum.leader_id)
    yield gauge(f"{prefix}_current_epoch", "Epoch of the quorum.", quorum.epoch)
    yield gauge(f"{prefix}_high_watermark", "High watermark of the metadata log.", quorum.high_watermark)
    yield gauge(f"{prefix}_log_end_offset", "End of the metadata log on this node.", quorum.log_end_offset)
    yield gauge(
        "moldau_metadata_image_lag_records",
        "Committed metadata records that this node has not applied.",
        max(0, quorum.high_watermark - 1 - broker.metadata.image.offset),
    )
