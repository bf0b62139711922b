"""Single requests to a group's coordinator, sent without the client library's consumer."""

from collections.abc import Mapping, Sequence
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_groups import FinalGroupState, RequestIdentity
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, Subscription, decode_assignment, encode_subscription


async def _call_coordinator(cluster: RecordingCluster, group: str, api: ApiKey, tree: Mapping[str, Any]) -> Message:
    return await cluster.call(await cluster.coordinator_of(group), api, tree)


async def fetch_offsets(cluster: RecordingCluster, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Returns the committed offsets of the partitions that have one. Forgets the coordinator if it returns an error."""
    topics = [{"name": topic, "partition_indexes": [index]} for topic, index in partitions]
    tree = {"groups": [{"group_id": group, "topics": topics}]}
    found = (await _call_coordinator(cluster, group, ApiKey.OFFSET_FETCH, tree)).groups[0]
    if found.error_code != ErrorCode.none:
        cluster.forget_coordinator(group)
        raise KafkaError(found.error_code)
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in found.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


async def fetch_all_offsets(cluster: RecordingCluster, partitions: Sequence[Partition]) -> None:
    """Fetches the offsets of all groups with commits. The cluster records the offsets in its history."""
    for group in sorted({commit.identity.group for commit in cluster.history.commits}):
        await fetch_offsets(cluster, group, partitions)


async def commit(cluster: RecordingCluster, identity: RequestIdentity, offsets: Mapping[Partition, int]) -> ErrorCode:
    tree = {
        "group_id": identity.group,
        "generation_id_or_member_epoch": identity.generation,
        "member_id": identity.member,
        "group_instance_id": identity.instance_id,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
            for (topic, index), offset in offsets.items()
        ],
    }
    response = await _call_coordinator(cluster, identity.group, ApiKey.OFFSET_COMMIT, tree)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def delete_offsets(cluster: RecordingCluster, group: str, partitions: Sequence[Partition]) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": index}]} for topic, index in partitions]
    await _call_coordinator(cluster, group, ApiKey.OFFSET_DELETE, {"group_id": group, "topics": topics})


async def delete_group(cluster: RecordingCluster, group: str) -> None:
    await _call_coordinator(cluster, group, ApiKey.DELETE_GROUPS, {"groups_names": [group]})


async def join(
    cluster: RecordingCluster, group: str, topics: Sequence[str], assignors: Sequence[str], timeout_ms: int
) -> None:
    """Joins the group and does nothing else."""
    metadata = encode_subscription(Subscription(tuple(topics)))
    tree = {
        "group_id": group,
        "session_timeout": timeout_ms,
        "rebalance_timeout": timeout_ms,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": name, "metadata": metadata} for name in assignors],
        "reason": None,
    }
    response = await _call_coordinator(cluster, group, ApiKey.JOIN_GROUP, tree)
    if response.error_code == ErrorCode.member_id_required:
        await _call_coordinator(cluster, group, ApiKey.JOIN_GROUP, {**tree, "member_id": response.member_id})


async def heartbeat(cluster: RecordingCluster, identity: RequestIdentity) -> None:
    tree = {
        "group_id": identity.group,
        "generation_id": identity.generation,
        "member_id": identity.member,
        "group_instance_id": identity.instance_id,
    }
    await _call_coordinator(cluster, identity.group, ApiKey.HEARTBEAT, tree)


async def create_partitions(cluster: RecordingCluster, topic: str, partitions: int) -> ErrorCode:
    tree = {
        "topics": [{"name": topic, "count": partitions, "assignments": None}],
        "timeout": cluster.request_timeout_ms,
        "validate_only": False,
    }
    response = await cluster.call(None, ApiKey.CREATE_PARTITIONS, tree)
    return ErrorCode(response.results[0].error_code)


async def describe_group(cluster: RecordingCluster, group: str) -> FinalGroupState:
    """Returns the group as its coordinator describes it. The state is `Dead` if the group does not exist."""
    tree = {"groups": [group], "include_authorized_operations": False}
    found = (await _call_coordinator(cluster, group, ApiKey.DESCRIBE_GROUPS, tree)).groups[0]
    if found.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
        raise KafkaError(found.error_code)
    return FinalGroupState(
        found.group_state,
        {each.member_id: decode_assignment(each.member_assignment).partitions for each in found.members},
    )
