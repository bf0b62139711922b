"""CreatePartitions: gives topics more partitions, placed by the controller or as the caller says.

Every topic succeeds or fails on its own; one that is named twice is refused. A caller that gives no time
(`timeout` 0 or less) gets REQUEST_TIMED_OUT and nothing is added. Otherwise the answer comes when all replicas
of the new partitions are ready, or with REQUEST_TIMED_OUT and what is not ready, as with CreateTopics. All
versions (0 to 3) say the same.
"""

from dataclasses import replace
from typing import Any

from moldau.controller.requests import PartitionIncrease, TopicResult
from moldau.errors import MoldauError, RequestTimedOutError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.replica_readiness import replicas_ready_deadline_ms, wait_replicas_ready
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), forwarded=True)
async def create_partitions(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    changes = [_change(topic) for topic in request.topics]
    try:
        if request.timeout <= 0:
            raise RequestTimedOutError
        deadline_ms = replicas_ready_deadline_ms(broker, request.timeout)
        topics = broker.metadata.image.topics
        counts = {each.topic: len(topics[each.topic].partitions) for each in changes if each.topic in topics}
        results = await broker.controller.create_partitions(changes, validate_only=request.validate_only)
    except MoldauError as error:
        results = [TopicResult(change.topic, error=error) for change in changes]
    else:
        if not request.validate_only:
            names = [result.name for result in results if result.error is None and result.name is not None]
            unready = await wait_replicas_ready(broker, names, deadline_ms, first_partition=counts)
            results = [
                result if result.name not in unready else replace(result, error=unready[result.name])
                for result in results
            ]
    # What was named twice is answered once.
    distinct = {result.name: result for result in results}
    return {
        "throttle_time": 0,
        "results": [
            {
                "name": name,
                "error_code": error_code(result.error),
                "error_message": error_message(result.error),
            }
            for name, result in distinct.items()
        ],
    }


def _change(topic: Message) -> PartitionIncrease:
    return PartitionIncrease(
        topic=topic.name,
        count=topic.count,
        assignments=None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
    )
