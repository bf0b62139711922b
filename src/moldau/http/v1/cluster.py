"""`/v1/cluster`, `/v1/quorum`, `/v1/brokers` and the state of partitions."""

import asyncio
from collections.abc import Iterable, Mapping

from fastapi import APIRouter

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import QuorumReplica
from moldau.client.consumer.completed_fetch import READ_COMMITTED
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import NO_LEADER, TopicInfo
from moldau.client.record import TopicPartition
from moldau.http.v1.client import REQUEST_TIMEOUT_MS
from moldau.http.v1.errors import ErrorView, view_error
from moldau.http.v1.fields import TopicPath, View
from moldau.http.v1.state import State
from moldau.wire.api_keys import ApiKey

router = APIRouter(tags=["cluster"])


class BrokerView(View):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    """Whether the broker is registered but not live."""
    is_controller: bool


class BrokerList(View):
    brokers: list[BrokerView]


class ClusterView(View):
    cluster_id: str
    node_id: int
    """The node that responded."""
    controller_id: int | None
    brokers: list[BrokerView]


class QuorumReplicaView(View):
    node_id: int
    directory_id: str | None
    log_end_offset: int
    lag: int
    """How many records of the metadata log the replica is behind the leader."""
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None


class QuorumView(View):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplicaView]
    observers: list[QuorumReplicaView]


class ReplicaView(View):
    broker_id: int
    log_end_offset: int | None
    """The log end of the replica as the leader knows it from the replica's latest fetch; null if the leader is unknown
    or the replica has not fetched since its election."""
    is_leader: bool
    is_in_sync: bool


class PartitionStateView(View):
    partition: int
    leader: int | None
    leader_epoch: int
    isr: list[int]
    log_start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    replicas: list[ReplicaView]
    error: ErrorView | None = None
    """Why the leader did not return the offsets."""


class PartitionStates(View):
    topic: str
    partitions: list[PartitionStateView]


@router.get("/cluster", summary="Describe the cluster")
async def describe_cluster(state: State) -> ClusterView:
    admin = await state.client.admin()
    description = await admin.describe_cluster(fenced_too=True)
    controller_id = state.context.broker.quorum.leader_id
    return ClusterView(
        cluster_id=description.cluster_id,
        node_id=state.context.broker.broker_id,
        controller_id=None if controller_id < 0 else controller_id,
        brokers=await _brokers(admin, controller_id),
    )


@router.get("/brokers", summary="List brokers")
async def list_brokers(state: State) -> BrokerList:
    admin = await state.client.admin()
    return BrokerList(brokers=await _brokers(admin, state.context.broker.quorum.leader_id))


@router.get("/quorum", summary="Describe the metadata quorum")
async def describe_quorum(state: State) -> QuorumView:
    """Returns the voters and observers and their progress, as the leader of the quorum knows it."""
    quorum = await (await state.client.admin()).describe_quorum()
    end_offset = max((each.end_offset for each in quorum.voters if each.node_id == quorum.leader_id), default=0)
    return QuorumView(
        leader_id=quorum.leader_id,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        voters=[_quorum_replica(each, end_offset) for each in quorum.voters],
        observers=[_quorum_replica(each, end_offset) for each in quorum.observers],
    )


@router.get("/topics/{topic}/partitions", summary="Describe the partitions of a topic, with their offsets")
async def describe_partitions(state: State, topic: TopicPath) -> PartitionStates:
    """Returns leader, ISR and offsets of each partition. The offsets come from its leader, as well as the log end of
    each replica."""
    found = await state.find_topic(topic)
    admin = await state.client.admin()
    led = [TopicPartition(topic, each.index) for each in found.partitions if each.leader != NO_LEADER]
    offsets, log_ends = await asyncio.gather(_leader_offsets(admin, led), _log_ends(admin.cluster, found))
    partitions = []
    for each in found.partitions:
        known = offsets.get(TopicPartition(topic, each.index))
        start, high_watermark, stable = known if isinstance(known, tuple) else (None, None, None)
        partitions.append(
            PartitionStateView(
                partition=each.index,
                leader=None if each.leader == NO_LEADER else each.leader,
                leader_epoch=each.leader_epoch,
                isr=list(each.in_sync),
                log_start_offset=start,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                replicas=[
                    ReplicaView(
                        broker_id=replica,
                        log_end_offset=log_ends.get((replica, each.index)),
                        is_leader=replica == each.leader,
                        is_in_sync=replica in each.in_sync,
                    )
                    for replica in each.replicas
                ],
                error=ErrorView.model_validate(view_error(known)) if isinstance(known, KafkaError) else None,
            )
        )
    return PartitionStates(topic=topic, partitions=partitions)


async def _brokers(admin: Admin, controller_id: int) -> list[BrokerView]:
    description = await admin.describe_cluster(fenced_too=True)
    found = [(each, False) for each in description.brokers] + [(each, True) for each in description.fenced]
    return [
        BrokerView(
            broker_id=each.node_id,
            host=each.host,
            port=each.port,
            rack=each.rack,
            is_fenced=is_fenced,
            is_controller=each.node_id == controller_id,
        )
        for each, is_fenced in sorted(found)
    ]


def _quorum_replica(replica: QuorumReplica, leader_end_offset: int) -> QuorumReplicaView:
    return QuorumReplicaView(
        node_id=replica.node_id,
        directory_id=None if replica.directory_id is None else str(replica.directory_id),
        log_end_offset=replica.end_offset,
        lag=max(0, leader_end_offset - max(0, replica.end_offset)),
        last_fetch_timestamp=replica.last_fetch_ms if replica.last_fetch_ms >= 0 else None,
        last_caught_up_timestamp=replica.last_caught_up_ms if replica.last_caught_up_ms >= 0 else None,
    )


async def _leader_offsets(
    admin: Admin, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, int, int] | KafkaError]:
    """Returns log start offset, high watermark and last stable offset of each partition, or why they are unknown."""
    partitions = list(partitions)
    if not partitions:
        return {}
    try:
        start = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        stable = await admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED)
        end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
    return {each: (start[each].offset, end[each].offset, stable[each].offset) for each in partitions}


async def _log_ends(cluster: Cluster, topic: TopicInfo) -> dict[tuple[int, int], int]:
    """Returns the log end by broker and partition, from the leader of each partition. What no leader knows is left
    out."""
    by_leader: dict[int, list[int]] = {}
    for partition in topic.partitions:
        if partition.leader in cluster.brokers:
            by_leader.setdefault(partition.leader, []).append(partition.index)

    async def query(leader: int, indexes: list[int]) -> dict[tuple[int, int], int]:
        tree = {"topics": [{"name": topic.name, "partition_indexes": indexes}]}
        try:
            response = await cluster.call(
                leader, ApiKey.DESCRIBE_REPLICA_PROGRESS, tree, timeout_ms=REQUEST_TIMEOUT_MS // 2
            )
        except KafkaError:
            return {}
        return {
            (replica.broker_id, each.partition_index): replica.log_end_offset
            for found in response.topics
            for each in found.partitions
            for replica in each.replicas
            if replica.log_end_offset >= 0
        }

    found: dict[tuple[int, int], int] = {}
    for ends in await asyncio.gather(*(query(leader, indexes) for leader, indexes in by_leader.items())):
        found |= ends
    return found
