"""AlterPartitionReassignments: moves replicas to other brokers, or cancels a reassignment if the replicas are null.

Responds when the reassignments have started. ListPartitionReassignments lists the reassignments in progress. Every
partition succeeds or fails independently. With a `timeout` of 0 or less, nothing is changed and the error is
REQUEST_TIMED_OUT. v1 can forbid a change of the replication factor.
"""

from collections.abc import Iterable

from moldau.controller.requests import PartitionResult, Reassignment
from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError, RequestTimedOutError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponseReassignablePartition,
)


def error_response(
    request: AlterPartitionReassignmentsRequest, version: int, error: MoldauError
) -> AlterPartitionReassignmentsResponse:
    partitions = dict.fromkeys(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    return _response(request, [PartitionResult(*each, error) for each in partitions], error)


@handles(versions=(0, 1), error_response=error_response, forwarded=True)
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, session: RequestContext, broker: Broker
) -> AlterPartitionReassignmentsResponse:
    if request.timeout <= 0:
        raise RequestTimedOutError
    reassignments = [
        Reassignment(topic.name, each.partition_index, each.replicas)
        for topic in request.topics
        for each in topic.partitions
    ]
    results = await broker.controller.alter_partition_reassignments(
        reassignments, allow_rf_change=request.allow_replication_factor_change
    )
    return _response(request, results)


def _response(
    request: AlterPartitionReassignmentsRequest,
    results: Iterable[PartitionResult],
    top_level_error: MoldauError | None = None,
) -> AlterPartitionReassignmentsResponse:
    by_topic: dict[str, list[AlterPartitionReassignmentsResponseReassignablePartition]] = {}
    for result in results:
        by_topic.setdefault(result.topic, []).append(
            {
                "partition_index": result.partition,
                "error_code": error_code(result.error),
                "error_message": error_message(result.error),
            }
        )
    return {
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "error_code": error_code(top_level_error),
        "error_message": error_message(top_level_error),
        "responses": [{"name": topic, "partitions": responses} for topic, responses in by_topic.items()],
    }
