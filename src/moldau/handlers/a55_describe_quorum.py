"""DescribeQuorum: returns the leader of the metadata quorum, and the progress of voters and observers.

The request is forwarded to the leader. Version 1 added the times of the last fetches, 2 the directory ids and endpoints
of voters and the error messages.
"""

from collections.abc import Sequence

from moldau.error_codes import ErrorCode
from moldau.errors import NotControllerError
from moldau.raft.messages import QuorumDescription, ReplicaProgress
from moldau.raft.raft_client import METADATA_LOG
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseReplicaState,
)


@handles(versions=(0, 2), forwarded=True)
async def describe_quorum(
    request: DescribeQuorumRequest, session: RequestContext, broker: Broker
) -> DescribeQuorumResponse:
    if not broker.quorum.is_leader:
        raise NotControllerError("this node does not lead the metadata quorum")
    quorum = broker.quorum.describe()
    # Describe each partition only once, so that a small request cannot cause a huge response.
    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        requested.setdefault(topic.topic_name, {}).update((each.partition_index, None) for each in topic.partitions)
    return {
        "topics": [
            {"topic_name": name, "partitions": [_partition(name, index, quorum) for index in indexes]}
            for name, indexes in requested.items()
        ],
        "nodes": [
            {
                "node_id": voter.node_id,
                "listeners": [
                    {"name": each.listener, "host": each.host, "port": each.port} for each in voter.endpoints
                ],
            }
            for voter in quorum.endpoints
        ],
    }


def _partition(topic: str, index: int, quorum: QuorumDescription) -> DescribeQuorumResponsePartitionData:
    if (topic, index) != METADATA_LOG:
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"the quorum has only the log {METADATA_LOG}",
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
        }
    return {
        "partition_index": index,
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "current_voters": _replica_states(quorum.voters),
        "observers": _replica_states(quorum.observers),
    }


def _replica_states(replicas: Sequence[ReplicaProgress]) -> list[DescribeQuorumResponseReplicaState]:
    return [
        {
            "replica_id": each.key.node_id,
            "replica_directory_id": each.key.directory_id,
            "log_end_offset": each.end_offset,
            "last_fetch_timestamp": each.last_fetch_ms,
            "last_caught_up_timestamp": each.last_caught_up_ms,
        }
        for each in replicas
    ]
