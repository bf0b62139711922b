"""CreatePartitions: adds partitions to topics. The controller or the request assigns the replicas.

Every topic succeeds or fails independently. A topic that is in the request twice is rejected. With a `timeout` of 0 or
less, nothing is added and the error is REQUEST_TIMED_OUT. The response waits for the replicas of the new partitions as
in CreateTopics. Versions 0-3 have the same fields.
"""

from collections.abc import Iterable

from moldau.controller.requests import PartitionIncrease, TopicResult
from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError, RequestTimedOutError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.replica_readiness import replicas_ready_deadline_ms, wait_replicas_ready
from moldau.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse


def error_response(request: CreatePartitionsRequest, version: int, error: MoldauError) -> CreatePartitionsResponse:
    return _response(TopicResult(topic.name, error=error) for topic in request.topics)


@handles(versions=(0, 3), error_response=error_response, forwarded=True)
async def create_partitions(
    request: CreatePartitionsRequest, session: RequestContext, broker: Broker
) -> CreatePartitionsResponse:
    if request.timeout <= 0:
        raise RequestTimedOutError
    increases = [
        PartitionIncrease(
            topic=topic.name,
            count=topic.count,
            assignments=None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
        )
        for topic in request.topics
    ]
    deadline_ms = replicas_ready_deadline_ms(broker, request.timeout)
    topics = broker.metadata.image.topics
    counts = {each.topic: len(topics[each.topic].partitions) for each in increases if each.topic in topics}
    results = await broker.controller.create_partitions(increases, validate_only=request.validate_only)
    if not request.validate_only:
        names = [result.name for result in results if result.error is None and result.name is not None]
        unready = await wait_replicas_ready(broker, names, deadline_ms, first_partition=counts)
        results = [
            result if result.name not in unready else result._replace(error=unready[result.name]) for result in results
        ]
    return _response(results)


def _response(results: Iterable[TopicResult]) -> CreatePartitionsResponse:
    # Return only one result for a topic that is in the request twice.
    distinct = {result.name or "": result for result in results}
    return {
        "results": [
            {"name": name, "error_code": error_code(result.error), "error_message": error_message(result.error)}
            for name, result in distinct.items()
        ]
    }
