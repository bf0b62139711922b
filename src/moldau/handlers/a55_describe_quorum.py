"""DescribeQuorum: who leads the metadata quorum, and how far its voters and observers are. The leader answers.

Versions: 1 brought the times of the last fetches, 2 the voters' disks and addresses, and messages.
"""

from collections.abc import Sequence
from typing import Any

from moldau.errors import MoldauError, NotControllerError
from moldau.raft.driver import METADATA_LOG
from moldau.raft.kafka_network_channel import endpoints_to_message
from moldau.raft.messages import QuorumDescription, ReplicaProgress
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2), forwarded=True)
async def describe_quorum(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        if not broker.quorum.is_leader:
            raise NotControllerError("this node does not lead the metadata quorum")
        found = broker.quorum.describe()
    except MoldauError as error:
        return {
            "error_code": error_code(error),
            "error_message": error_message(error),
            "topics": [],
            "nodes": [],
        }
    # Each once, or a small request could ask for a huge answer.
    named: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        named.setdefault(topic.topic_name, {}).update(
            (each.partition_index, None) for each in topic.partitions
        )
    return {
        "error_code": int(ErrorCode.none),
        "error_message": None,
        "topics": [
            {"topic_name": name, "partitions": [_partition(name, index, found) for index in indexes]}
            for name, indexes in named.items()
        ],
        "nodes": [
            {"node_id": voter.node_id, "listeners": endpoints_to_message(voter.endpoints)}
            for voter in found.endpoints
        ],
    }


def _partition(topic: str, index: int, found: QuorumDescription) -> dict[str, Any]:
    if (topic, index) != METADATA_LOG:
        return {
            "partition_index": index,
            "error_code": int(ErrorCode.unknown_topic_or_partition),
            "error_message": f"the quorum has one log, {METADATA_LOG}",
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
            "current_voters": [],
            "observers": [],
        }
    return {
        "partition_index": index,
        "error_code": int(ErrorCode.none),
        "error_message": None,
        "leader_id": found.leader_id,
        "leader_epoch": found.epoch,
        "high_watermark": found.high_watermark,
        "current_voters": _progress(found.voters),
        "observers": _progress(found.observers),
    }


def _progress(replicas: Sequence[ReplicaProgress]) -> list[dict[str, Any]]:
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
