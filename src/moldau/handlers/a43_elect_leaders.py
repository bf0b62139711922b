"""ElectLeaders: gives partitions back to their preferred leaders, or any live one where none is in sync.

Every partition succeeds or fails on its own: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION. Without a list all partitions are meant, and those
that need no election are not mentioned. v0 knows preferred leaders only, and no error for the whole request;
v1 and v2 say the same.
"""

from typing import Any

from moldau.controller.requests import ElectionType, PartitionResult
from moldau.errors import InvalidRequestError, MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), forwarded=True)
async def elect_leaders(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    partitions = None
    if request.topic_partitions is not None:
        partitions = [(each.topic, index) for each in request.topic_partitions for index in each.partitions]
    failed: MoldauError | None = None
    try:
        election = ElectionType.PREFERRED if session.api_version == 0 else _election(request.election_type)
        results = await broker.controller.elect_leaders(election, partitions)
    except MoldauError as error:
        failed = error
        results = [PartitionResult(*each, error) for each in dict.fromkeys(partitions or ())]
    by_topic: dict[str, list[PartitionResult]] = {}
    for result in results:
        by_topic.setdefault(result.topic, []).append(result)
    return {
        "throttle_time": 0,
        "error_code": error_code(failed),
        "replica_election_results": [
            {"topic": topic, "partition_result": [_result(each) for each in of_topic]}
            for topic, of_topic in by_topic.items()
        ],
    }


def _election(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        raise InvalidRequestError(f"Unknown election type {number}") from None


def _result(result: PartitionResult) -> dict[str, Any]:
    return {
        "partition_id": result.partition,
        "error_code": error_code(result.error),
        "error_message": error_message(result.error),
    }
