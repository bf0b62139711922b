"""AlterPartitionReassignments: moves replicas to other brokers, or cancels a move (replicas are null).

The answer says that the reassignments have begun; ListPartitionReassignments tells which are still under way.
Every partition succeeds or fails on its own. v1 lets the caller forbid that the number of replicas changes.
"""

from typing import Any

from moldau.controller.requests import PartitionResult, Reassignment
from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), forwarded=True)
async def alter_partition_reassignments(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    allow_rf_change = session.api_version == 0 or request.allow_replication_factor_change
    reassignments = [
        Reassignment(topic.name, each.partition_index, each.replicas)
        for topic in request.topics
        for each in topic.partitions
    ]
    failed: MoldauError | None = None
    results: list[PartitionResult] = []
    try:
        results = await broker.controller.alter_partition_reassignments(
            reassignments, allow_rf_change=allow_rf_change
        )
    except MoldauError as error:
        failed = error
    by_topic: dict[str, list[PartitionResult]] = {}
    for result in results:
        by_topic.setdefault(result.topic, []).append(result)
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": allow_rf_change,
        "error_code": error_code(failed),
        "error_message": error_message(failed),
        "responses": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": error_code(each.error),
                        "error_message": error_message(each.error),
                    }
                    for each in of_topic
                ],
            }
            for topic, of_topic in by_topic.items()
        ],
    }
