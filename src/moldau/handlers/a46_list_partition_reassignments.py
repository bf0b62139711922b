"""ListPartitionReassignments: the reassignments that are under way, of all partitions or of those named.

A partition that is not being reassigned, or does not exist, is left out of the answer.
"""

from typing import Any

from moldau.controller.requests import OngoingReassignment
from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), forwarded=True)
async def list_partition_reassignments(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    partitions = None
    if request.topics is not None:
        partitions = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    failed: MoldauError | None = None
    ongoing: list[OngoingReassignment] = []
    try:
        ongoing = broker.controller.list_partition_reassignments(partitions)
    except MoldauError as error:
        failed = error
    by_topic: dict[str, list[OngoingReassignment]] = {}
    for each in ongoing:
        by_topic.setdefault(each.topic, []).append(each)
    return {
        "throttle_time": 0,
        "error_code": error_code(failed),
        "error_message": error_message(failed),
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "replicas": each.replicas,
                        "adding_replicas": each.adding_replicas,
                        "removing_replicas": each.removing_replicas,
                    }
                    for each in of_topic
                ],
            }
            for topic, of_topic in by_topic.items()
        ],
    }
