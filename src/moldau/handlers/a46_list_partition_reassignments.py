"""ListPartitionReassignments: returns the reassignments in progress, of all partitions or of the requested partitions.

The response omits partitions that are not being reassigned or do not exist.
"""

from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponseOngoingPartitionReassignment,
)


@handles(versions=(0, 0), forwarded=True)
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, session: RequestContext, broker: Broker
) -> ListPartitionReassignmentsResponse:
    partitions = None
    if request.topics is not None:
        partitions = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    by_topic: dict[str, list[ListPartitionReassignmentsResponseOngoingPartitionReassignment]] = {}
    for each in broker.controller.list_partition_reassignments(partitions):
        by_topic.setdefault(each.topic, []).append(
            {
                "partition_index": each.partition,
                "replicas": each.replicas,
                "adding_replicas": each.adding_replicas,
                "removing_replicas": each.removing_replicas,
            }
        )
    return {"topics": [{"name": topic, "partitions": responses} for topic, responses in by_topic.items()]}
