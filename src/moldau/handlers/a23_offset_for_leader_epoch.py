"""OffsetForLeaderEpoch: returns the end offset of a leader epoch. Consumers use it to detect log truncation.

Version 3 added the replica id, 4 the flexible encoding. Before an unclean election the controller sends replica id -2
and epoch 2^31-1. To such a request any replica, not only the leader, responds with its latest epoch and log end offset.
"""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition
from moldau.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
)

DEBUGGING_CONSUMER_ID = -2
LATEST_EPOCH = 2**31 - 1


@handles(versions=(2, 4))
async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, session: RequestContext, broker: Broker
) -> OffsetForLeaderEpochResponse:
    allows_any_replica = request.replica_id == DEBUGGING_CONSUMER_ID
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end_response(broker, topic.topic, each, allows_any_replica) for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _epoch_end_response(
    broker: Broker, topic: str, requested: OffsetForLeaderEpochRequestOffsetForLeaderPartition, allows_any_replica: bool
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    code, epoch, end_offset = 0, -1, -1
    try:
        partition = find_partition(broker, topic, requested.partition)
        if allows_any_replica and requested.leader_epoch == LATEST_EPOCH:
            epoch, end_offset = partition.latest_epoch_and_end_offset()
        else:
            epoch, end_offset = partition.end_offset_for_epoch(requested.leader_epoch, requested.current_leader_epoch)
    except MoldauError as error:
        code = error_code(error)
    return {"error_code": code, "partition": requested.partition, "leader_epoch": epoch, "end_offset": end_offset}
