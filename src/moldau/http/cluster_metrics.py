"""Metrics of the cluster, which only the active controller shows, and of the controller and the quorum on each node."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from moldau.controller.quorum_controller import QuorumController
from moldau.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration, TopicImage
from moldau.metrics.exposition import (
    PAUSE,
    MetricFamily,
    MetricType,
    Sample,
    SampleBlock,
    counter,
    format_labels,
    gauge,
)
from moldau.server.api import Broker

ITEMS_PER_SLICE = 500

T = TypeVar("T")


def _slices(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while part := list(islice(remaining, ITEMS_PER_SLICE)):
        yield part


def cluster_families(image: MetadataImage) -> Iterator[MetricFamily | None]:
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
    yield gauge("kafka_topic_partitions", "Number of partitions of a topic.", _partition_counts(image))
    prefix = "kafka_controller_kafkacontroller"
    yield gauge(f"{prefix}_activebrokercount", "Brokers that are registered and not fenced.", len(active))
    yield gauge(f"{prefix}_fencedbrokercount", "Brokers that are fenced.", len(image.brokers) - len(active))
    yield gauge(f"{prefix}_globaltopiccount", "Topics of the cluster.", len(image.topics))
    partition_count = not_preferred = 0
    without_leader: list[tuple[TopicImage, PartitionRegistration]] = []
    for part in _slices((topic, each) for topic in image.topics.values() for each in topic.partitions):
        partition_count += len(part)
        not_preferred += sum(each.leader != each.replicas[0] for _, each in part)
        without_leader += [(topic, each) for topic, each in part if each.leader == NO_LEADER]
        yield PAUSE
    yield gauge(f"{prefix}_globalpartitioncount", "Partitions of the cluster.", partition_count)
    yield gauge(f"{prefix}_offlinepartitionscount", "Partitions without a leader.", len(without_leader))
    yield gauge(
        f"{prefix}_preferredreplicaimbalancecount", "Partitions whose leader is not the preferred one.", not_preferred
    )
    yield gauge(
        "moldau_partition_without_leader",
        "A partition that has no leader.",
        (Sample(1, format_labels({"topic": topic.name, "partition": each.index})) for topic, each in without_leader),
    )


def _partition_counts(image: MetadataImage) -> Iterator[SampleBlock]:
    for part in _slices(image.topics.values()):
        yield SampleBlock(
            [format_labels({"topic": each.name}) for each in part], [len(each.partitions) for each in part]
        )


def controller_families(controller: QuorumController) -> Iterator[MetricFamily]:
    metrics, prefix = controller.metrics, "kafka_controller_kafkacontroller"
    yield gauge(
        f"{prefix}_activecontrollercount", "Whether this node is the active controller.", int(controller.is_active)
    )
    yield gauge(
        f"{prefix}_timedoutbrokerheartbeatcount",
        "Sessions of brokers that expired while this node was the active controller.",
        metrics.timed_out_heartbeats,
    )
    yield counter(
        "moldau_controller_leader_elections_total",
        "Partitions to which this node, as the active controller, gave another leader.",
        metrics.leader_elections,
    )
    yield counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "Unclean elections by this node as the active controller. Each may have lost committed records.",
        metrics.unclean_leader_elections,
    )
    yield gauge(
        "moldau_controller_broker_heartbeat_age_seconds",
        "Time since the last heartbeat of a registered broker.",
        [
            Sample(age_ms / 1000, format_labels({"broker": broker_id}))
            for broker_id, age_ms in sorted(controller.heartbeat_ages_ms().items())
        ],
    )


def quorum_families(broker: Broker) -> Iterator[MetricFamily]:
    quorum = broker.quorum
    prefix = "kafka_server_raftmetrics"
    yield gauge(
        f"{prefix}_current_state",
        "State in the metadata quorum.",
        [Sample(1, format_labels({"current_state": quorum.role}))],
    )
    yield gauge(f"{prefix}_current_leader", "Leader of the quorum; -1 if unknown.", quorum.leader_id)
    yield gauge(f"{prefix}_current_epoch", "Epoch of the quorum.", quorum.epoch)
    yield gauge(f"{prefix}_current_vote", "Node that this node voted for in this epoch; -1 if none.", quorum.voted_id)
    yield gauge(f"{prefix}_high_watermark", "High watermark of the metadata log.", quorum.high_watermark)
    yield gauge(f"{prefix}_log_end_offset", "End of the metadata log on this node.", quorum.log_end_offset)
    yield gauge(f"{prefix}_number_of_voters", "Voters of the quorum.", len(quorum.voters))
    yield gauge(
        f"{prefix}_number_of_observers", "Observers that fetch from this node as the leader.", quorum.observer_count
    )
    broker.metadata_records.update(broker.platform.clock.monotonic_us(), quorum.log_end_offset)
    appended = max(0.0, broker.metadata_records.per_second)
    yield gauge(
        f"{prefix}_append_records_rate",
        "Metadata records per second that this node appends as the leader.",
        appended if quorum.is_leader else 0,
    )
    yield gauge(
        f"{prefix}_fetch_records_rate",
        "Metadata records per second that this node fetches from the leader.",
        0 if quorum.is_leader else appended,
    )
    commit_durations = quorum.metrics.commit_durations
    yield gauge(
        f"{prefix}_commit_latency_avg",
        "Average time in milliseconds until records that this node appended as the leader are committed.",
        commit_durations.average_ms,
    )
    yield MetricFamily(
        "moldau_quorum_commit_duration_seconds",
        MetricType.HISTOGRAM,
        "Time until records that this node appended as the leader are committed.",
        commit_durations.samples({}),
    )
    yield counter(
        "moldau_quorum_elections_started_total",
        "How often this node became a candidate in the metadata quorum.",
        quorum.elections_started,
    )
    yield counter(
        "moldau_quorum_elections_won_total",
        "How often this node became the leader of the metadata quorum.",
        quorum.metrics.elections_won,
    )
    yield gauge(
        "moldau_metadata_image_lag_records",
        "Committed metadata records that this node has not applied.",
        max(0, quorum.high_watermark - 1 - broker.metadata.image.offset),
    )
