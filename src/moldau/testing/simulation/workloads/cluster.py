"""What clients do to a cluster besides producing and sharing topics in groups: they read partitions without a group,
create and delete topics, move replicas and elect leaders. And what the network does to requests between nodes.

They go on through everything until told to stop, and all they learn goes into the history.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moldau.client.admin.admin import Admin
from moldau.client.consumer.fetcher import CompletedFetch, Fetcher, LogTruncationError
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.connection import Connection
from moldau.client.record import TopicPartition, decode_records
from moldau.testing.simulation.checkers.history import Partition, PollOperation, TopicChange, UnexpectedError
from moldau.testing.simulation.checkers.history_cluster import ClusterHistory
from moldau.testing.simulation.checkers.hooks import TO_CONTROLLER, RecordedRequests
from moldau.testing.simulation.workloads.groups import ClusterFactory, ClusterWorkload
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.wire.api_keys import ApiKey

REQUEST_TIMEOUT_MS = 5_000
PREFERRED = 0
REPLAYED_TOGETHER_MAX = 6
"""Late requests that come together."""


class PartitionReader(ClusterWorkload):
    """Reads its partitions from their beginning, without a group, each record once."""

    MUST_PROGRESS = False

    def __init__(
        self,
        name: str,
        open_cluster: ClusterFactory,
        randomness: random.Random,
        partitions: Sequence[Partition],
        history: ClusterHistory,
    ) -> None:
        super().__init__(name, open_cluster, randomness)
        self.positions: dict[Partition, int] = dict.fromkeys(partitions, 0)
        self._history = history

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self._random
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
        self._history.operations += 1
        records = [
            (record.offset, record.value or b"")
            for batch in fetched.batches
            for record in decode_records(fetched.partition, batch, fetched.position)
        ]
        if records:
            position = self.positions[partition]
            self._history.polls.append(
                PollOperation(self.name, partition, position, fetched.high_watermark, records)
            )
            self.positions[partition] = records[-1][0] + 1
            self.progress += len(records)
        if fetched.error is not None:
            self._reset_position(fetched.error, fetched.partition, partition, fetcher)

    def _reset_position(
        self, error: KafkaError, fetched: TopicPartition, partition: Partition, fetcher: Fetcher
    ) -> None:
        if error.code is not ErrorCode.offset_out_of_range:
            raise error
        # What was read is gone: only some topics may do that, and the checker knows which.
        what = "log was cut" if isinstance(error, LogTruncationError) else "refused: offset_out_of_range"
        self._history.unexpected_errors.append(UnexpectedError(self.name, partition, what))
        self.positions[partition] = error.offset if isinstance(error, LogTruncationError) else 0
        fetcher.seek(fetched, self.positions[partition])


class ClusterTopicChurn(ClusterWorkload):
    """Creates topics and deletes some of them again."""

    def __init__(
        self,
        name: str,
        open_cluster: ClusterFactory,
        randomness: random.Random,
        replication: int,
        history: ClusterHistory,
    ) -> None:
        super().__init__(name, open_cluster, randomness)
        self._replication = replication
        self._history = history
        self._created = 0
        self._topics: list[str] = []

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self._random
        is_creation = not self._topics or draw.random() < 0.6
        if is_creation:
            self._created += 1
            topic = f"side-{self._created}"
        else:
            topic = self._topics.pop(draw.randrange(len(self._topics)))
        change = TopicChange(topic, is_creation)
        self._history.topic_changes.append(change)
        self._history.operations += 1
        if is_creation:
            await create_topic_once(cluster, topic, self._replication)
            self._topics.append(topic)
        else:
            await Admin(cluster).delete_topic(topic)
        change.is_acknowledged = True
        self.progress += 1
        await self._pause(1.5)


class ReplicaMover(ClusterWorkload):
    """Moves replicas between nodes, or puts them in another order, and has preferred leaders elected."""

    def __init__(
        self,
        name: str,
        open_cluster: ClusterFactory,
        randomness: random.Random,
        partitions: Sequence[Partition],
        nodes: int,
        history: ClusterHistory,
    ) -> None:
        super().__init__(name, open_cluster, randomness)
        self._partitions = partitions
        self._nodes = nodes
        self._history = history

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self._random
        self._history.operations += 1
        if draw.random() < 0.4:
            replicas = draw.sample(range(1, self._nodes + 1), min(3, self._nodes))
            await reassign(cluster, {draw.choice(self._partitions): replicas})
        else:
            await elect_preferred_leaders(cluster, [draw.choice(self._partitions)])
        self.progress += 1
        await self._pause(3)


class RequestReplayer(ClusterWorkload):
    """Delivers what nodes have asked of each other once more, late: as a network does that held it back while the
    sender gave up, and asked again or asked for something else."""

    MUST_PROGRESS = False

    def __init__(
        self,
        name: str,
        open_cluster: ClusterFactory,
        randomness: random.Random,
        recorded_requests: RecordedRequests,
        addresses: Mapping[int, tuple[str, int]],
        controller: Callable[[], int],
    ) -> None:
        super().__init__(name, open_cluster, randomness)
        self._recorded_requests = recorded_requests
        self._addresses = addresses
        self._controller = controller

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(0.3)
        draw = self._random
        kept = self._recorded_requests[draw.choice([ApiKey.ALTER_PARTITION, *self._recorded_requests])]
        chosen = draw.sample(list(kept), min(len(kept), REPLAYED_TOGETHER_MAX))
        if not chosen:
            return
        node_id = chosen[0].node_id
        address = self._addresses.get(self._controller() if node_id == TO_CONTROLLER else node_id)
        if address is None:
            return
        connection = await Connection.open(*address, client_id=self.name, timeout_ms=REQUEST_TIMEOUT_MS)
        try:
            for packet in chosen:
                if packet.node_id == node_id:
                    await connection.call(
                        packet.api, packet.tree, timeout_ms=REQUEST_TIMEOUT_MS, version=packet.version
                    )
                    self.progress += 1
        finally:
            connection.close()


async def reassign(cluster: RecordingCluster, wanted: Mapping[Partition, Sequence[int]]) -> None:
    """Asks for replicas elsewhere; returns when that is begun."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), replicas in wanted.items():
        topics.setdefault(topic, []).append({"partition_index": index, "replicas": list(replicas)})
    tree = {
        "timeout": REQUEST_TIMEOUT_MS,
        "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
    }
    answer = await cluster.call(None, ApiKey.ALTER_PARTITION_REASSIGNMENTS, tree)
    _check(answer.error_code)
    for topic in answer.responses:
        for each in topic.partitions:
            _check(each.error_code)


async def create_topic_once(cluster: RecordingCluster, topic: str, replication: int) -> None:
    """Tried a single time: an attempt that was given up for another may still arrive when the topic is deleted again,
    and nobody could tell it from a new wish."""
    wanted = {
        "name": topic,
        "num_partitions": 1,
        "replication_factor": replication,
        "assignments": [],
        "configs": [],
    }
    tree = {"topics": [wanted], "timeout": REQUEST_TIMEOUT_MS, "validate_only": False}
    answer = await cluster.call(None, ApiKey.CREATE_TOPICS, tree)
    _check(answer.topics[0].error_code)


async def elect_preferred_leaders(cluster: RecordingCluster, partitions: Sequence[Partition]) -> None:
    topics = [{"topic": topic, "partitions": [index]} for topic, index in partitions]
    tree = {"election_type": PREFERRED, "topic_partitions": topics, "timeout": REQUEST_TIMEOUT_MS}
    answer = await cluster.call(None, ApiKey.ELECT_LEADERS, tree)
    _check(answer.error_code)
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            _check(each.error_code)


def _check(code: int) -> None:
    harmless = (
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.no_reassignment_in_progress,
    )
    if code not in harmless:
        raise KafkaError(code)
