"""OffsetForLeaderEpoch: where a leader epoch ended, so that whoever followed an old leader knows where to
cut.

Versions 2-4 mean the same; 3 brought the replica id, 4 the flexible encoding. The controller asks, before it elects a
leader out of replicas that are not in sync, as replica -2 for epoch 2^31-1: any replica answers with its newest epoch
and the end of its log.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.partition_lookup import find_partition
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

DEBUGGING_CONSUMER_ID = -2
LATEST_EPOCH = 2**31 - 1


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
async def offset_for_leader_epoch(request: Any, session: Session, broker: Broker) -> Any:
    allows_any_replica = request.get("replica_id", DEBUGGING_CONSUMER_ID) == DEBUGGING_CONSUMER_ID
    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end_response(broker, topic.topic, each, allows_any_replica)
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _epoch_end_response(
    broker: Broker, topic: str, requested: Any, allows_any_replica: bool
) -> dict[str, Any]:
    code, epoch, end_offset = 0, -1, -1
    try:
        partition = find_partition(broker, topic, requested.partition)
        if allows_any_replica and requested.leader_epoch == LATEST_EPOCH:
            epoch, end_offset = partition.latest_epoch_and_end_offset()
        else:
            epoch, end_offset = partition.end_offset_for_epoch(
                requested.leader_epoch, requested.current_leader_epoch
            )
    except MoldauError as error:
        code = error_code(error)
    return {
        "error_code": code,
        "partition": requested.partition,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }
