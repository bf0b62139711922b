"""DescribeReplicaProgress: returns the log end of every replica, as the leader knows it (an API of Moldau).

The log end of a follower is from its latest fetch. It is -1 if the follower has not fetched since the leader was
elected. So an operator sees how far behind a broker is that does not respond any more.
"""

from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition, unique_partitions
from moldau.wire.messages import (
    DescribeReplicaProgressRequest,
    DescribeReplicaProgressResponse,
    DescribeReplicaProgressResponsePartition,
)


@handles(versions=(0, 0))
async def describe_replica_progress(
    request: DescribeReplicaProgressRequest, session: RequestContext, broker: Broker
) -> DescribeReplicaProgressResponse:
    return {
        "topics": [
            {"name": name, "partitions": [_partition_response(broker, name, index) for index in indexes]}
            for name, indexes in unique_partitions(request.topics).items()
        ]
    }


def _partition_response(broker: Broker, topic: str, index: int) -> DescribeReplicaProgressResponsePartition:
    try:
        leader = find_partition(broker, topic, index).require_leader()
    except MoldauError as error:
        return {"partition_index": index, "error_code": error_code(error), "error_message": error_message(error)}
    return {
        "partition_index": index,
        "replicas": [
            {"broker_id": broker_id, "log_end_offset": offset} for broker_id, offset in leader.log_end_offsets().items()
        ],
    }
