"""Cluster workloads: partition readers, topic and voter changes, replica moves, and replayed requests between nodes.

Workloads continue during faults until they are stopped. They record operations and results in the history.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import NodeEndpoint
from moldau.client.consumer.fetcher import CompletedFetch, Fetcher, LogTruncationError
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.connection import Connection
from moldau.client.record import TopicPartition, decode_records
from moldau.testing.simulation.checkers.history import (
    ClusterHistory,
    Partition,
    PollOperation,
    TopicChange,
    UnexpectedError,
)
from moldau.testing.simulation.checkers.hooks import TO_CONTROLLER, RecordedRequests
from moldau.testing.simulation.workloads.groups import ClusterWorkload
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.wire.api_keys import ApiKey

REQUEST_TIMEOUT_MS = 5_000
PREFERRED = 0
REPLAYED_TOGETHER_MAX = 6
"""The maximum number of requests that are replayed on one connection."""
VOTERS_MIN = 2
LISTENER = "PLAINTEXT"


@dataclass(eq=False)
class PartitionReader(ClusterWorkload):
    """Reads partitions from their start without a group. Reads each record once."""

    MUST_PROGRESS = False

    positions: dict[Partition, int]
    """The next offset to read, by partition."""
    history: ClusterHistory

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        async with Fetcher(
            cluster,
            max_wait_ms=draw.choice((50, 500)),
            max_bytes=draw.choice((2_000, 100_000)),
            partition_max_bytes=draw.choice((500, 50_000)),
        ) as fetcher:
            fetcher.assign({TopicPartition(*each): offset for each, offset in self.positions.items()})
            while not self._stopping:
                for fetched in await fetcher.next(500):
                    self._record_poll(fetched, fetcher)

    def _record_poll(self, fetched: CompletedFetch, fetcher: Fetcher) -> None:
        partition = (fetched.partition.topic, fetched.partition.partition)
        self.history.operations += 1
        records = [
            (record.offset, record.value or b"")
            for batch in fetched.batches
            for record in decode_records(fetched.partition, batch, fetched.position)
        ]
        if records:
            position = self.positions[partition]
            self.history.polls.append(PollOperation(self.name, partition, position, fetched.high_watermark, records))
            self.positions[partition] = records[-1][0] + 1
            self.progress += len(records)
        if fetched.error is not None:
            self._reset_position(fetched.error, partition, fetcher)

    def _reset_position(self, error: KafkaError, partition: Partition, fetcher: Fetcher) -> None:
        if error.code is not ErrorCode.offset_out_of_range:
            raise error
        # Record an unexpected error and continue. The checker ignores the error for lossy topics, because they may lose
        # records that were read.
        what = "log was cut" if isinstance(error, LogTruncationError) else "refused: offset_out_of_range"
        self.history.unexpected_errors.append(UnexpectedError(self.name, partition, what))
        self.positions[partition] = error.offset if isinstance(error, LogTruncationError) else 0
        fetcher.seek(TopicPartition(*partition), self.positions[partition])


@dataclass(eq=False)
class ClusterTopicChurn(ClusterWorkload):
    """Creates topics, and later deletes some of them."""

    replication: int
    history: ClusterHistory
    _created: int = field(default=0, init=False)
    _topics: list[str] = field(default_factory=list, init=False)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        is_creation = not self._topics or draw.random() < 0.6
        if is_creation:
            self._created += 1
            topic = f"side-{self._created}"
        else:
            topic = self._topics.pop(draw.randrange(len(self._topics)))
        change = TopicChange(topic, is_creation)
        self.history.topic_changes.append(change)
        self.history.operations += 1
        if is_creation:
            await create_topic_once(cluster, topic, self.replication)
            self._topics.append(topic)
        else:
            await Admin(cluster).delete_topic(topic)
        change.is_acknowledged = True
        self.progress += 1
        await self._pause(1.5)


@dataclass(eq=False)
class ReplicaMover(ClusterWorkload):
    """Reassigns partitions to other nodes or in another order, and triggers preferred leader elections."""

    partitions: Sequence[Partition]
    nodes: int
    history: ClusterHistory

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        self.history.operations += 1
        if draw.random() < 0.4:
            replicas = draw.sample(range(1, self.nodes + 1), min(3, self.nodes))
            await reassign(cluster, draw.choice(self.partitions), replicas)
        else:
            await elect_preferred_leader(cluster, draw.choice(self.partitions))
        self.progress += 1
        await self._pause(3)


@dataclass(eq=False)
class RequestReplayer(ClusterWorkload):
    """Sends recorded requests between nodes again, like a network that delivers a request long after its timeout."""

    MUST_PROGRESS = False

    recorded_requests: RecordedRequests
    addresses: Mapping[int, tuple[str, int]]
    controller: Callable[[], int]

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(0.3)
        draw = self.randomness
        requests = self.recorded_requests[draw.choice([ApiKey.ALTER_PARTITION, *self.recorded_requests])]
        selected = draw.sample(list(requests), min(len(requests), REPLAYED_TOGETHER_MAX))
        if not selected:
            return
        node_id = selected[0].node_id
        address = self.addresses.get(self.controller() if node_id == TO_CONTROLLER else node_id)
        if address is None:
            return
        connection = await Connection.open(*address, client_id=self.name, timeout_ms=REQUEST_TIMEOUT_MS)
        try:
            for each in selected:
                if each.node_id == node_id:
                    await connection.call(each.api, each.tree, timeout_ms=REQUEST_TIMEOUT_MS, version=each.version)
                    self.progress += 1
        finally:
            connection.close()


@dataclass(eq=False)
class VoterChurn(ClusterWorkload):
    MUST_PROGRESS = False

    addresses: Mapping[int, tuple[str, int]]
    counts: Counter[str]

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(3)
        admin = Admin(cluster)
        quorum = await admin.describe_quorum()
        node_id = self.randomness.choice(sorted(self.addresses))
        replica = quorum.replica(node_id)
        if replica is None:
            return
        if replica not in quorum.voters:
            endpoint = NodeEndpoint(LISTENER, *self.addresses[node_id])
            await admin.add_voter(node_id, replica.directory_id, endpoint)
            self.counts["voters added"] += 1
        elif len(quorum.voters) > VOTERS_MIN:
            await admin.remove_voter(node_id, replica.directory_id)
            self.counts["voters removed"] += 1


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partition_count: int
    is_cached: bool = False
    """Whether records are acknowledged when the ISR has them, before they are on disk."""
    is_unclean: bool = False
    """Whether a replica outside of the ISR may become leader when no ISR member can."""
    follows_controller: bool = False
    """Whether the topic is replicated to all brokers and led by the active controller."""

    @property
    def partitions(self) -> Sequence[Partition]:
        return [(self.name, index) for index in range(self.partition_count)]

    def loss_reason(self, is_one_at_a_time: bool) -> str | None:
        """Returns why the topic may lose acknowledged records, or None if it must not lose any.

        `is_one_at_a_time` says that only one node at a time ends uncleanly.
        """
        if self.is_unclean:
            return "unclean elections"
        if self.is_cached and not is_one_at_a_time:
            return "unclean ends of several nodes"
        return None

    async def create(self, cluster: Cluster, replication: int) -> None:
        configs: dict[str, str | None] = {}
        if self.is_cached:
            configs["write.caching"] = "true"
        if self.is_unclean:
            configs["unclean.leader.election.enable"] = "true"
        if self.follows_controller:
            configs["leader.follows.controller"] = "true"
        await Admin(cluster).create_topic(self.name, self.partition_count, replication, configs)


def draw_topics(draw: random.Random, *, is_cached: bool) -> list[TopicPlan]:
    """Returns the topics of a seed. One or two topics must keep all records, and so must one that the active controller
    leads. Some seeds have another topic with unclean elections or cached writes (acknowledged before a sync).
    `is_cached` always adds a topic with cached writes."""
    topics = [TopicPlan("topic-0", draw.randint(1, 3)), TopicPlan("follows", 1, follows_controller=True)]
    if draw.random() < 0.5:
        topics.append(TopicPlan("topic-1", draw.randint(1, 2)))
    kind = draw.random()
    if kind < 0.15 or is_cached:
        topics.append(TopicPlan("cached", 1, is_cached=True))
    elif kind < 0.3:
        topics.append(TopicPlan("unclean", 1, is_unclean=True))
    return topics


async def reassign(cluster: RecordingCluster, partition: Partition, replicas: Sequence[int]) -> None:
    """Starts a reassignment of replicas."""
    topic, index = partition
    wanted = {"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}
    tree = {"timeout": REQUEST_TIMEOUT_MS, "topics": [wanted]}
    response = await cluster.call(None, ApiKey.ALTER_PARTITION_REASSIGNMENTS, tree)
    _check(response.error_code)
    _check(response.responses[0].partitions[0].error_code)


async def create_topic_once(cluster: RecordingCluster, topic: str, replication: int) -> None:
    """Creates a topic without retries. A delayed retry could create the topic again after it was deleted."""
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": replication, "assignments": [], "configs": []}
    tree = {"topics": [wanted], "timeout": REQUEST_TIMEOUT_MS, "validate_only": False}
    response = await cluster.call(None, ApiKey.CREATE_TOPICS, tree)
    _check(response.topics[0].error_code)


async def elect_preferred_leader(cluster: RecordingCluster, partition: Partition) -> None:
    topic, index = partition
    topics = [{"topic": topic, "partitions": [index]}]
    tree = {"election_type": PREFERRED, "topic_partitions": topics, "timeout": REQUEST_TIMEOUT_MS}
    response = await cluster.call(None, ApiKey.ELECT_LEADERS, tree)
    _check(response.error_code)
    _check(response.replica_election_results[0].partition_result[0].error_code)


def _check(code: int) -> None:
    if code not in (ErrorCode.none, ErrorCode.election_not_needed, ErrorCode.preferred_leader_not_available):
        raise KafkaError(code)
