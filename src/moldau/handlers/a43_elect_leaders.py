"""ElectLeaders: elects the preferred leaders of partitions, or unclean leaders if no in-sync replica is available.

Every partition succeeds or fails independently. The errors of a partition are ELECTION_NOT_NEEDED,
PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE and UNKNOWN_TOPIC_OR_PARTITION. If the request has no
list of partitions, all partitions are tried, and the response omits partitions that need no election. With a `timeout`
of 0 or less, no leader is elected and the error is REQUEST_TIMED_OUT. v0 supports only preferred elections and has no
top-level error. v2 has the same fields as v1.
"""

from collections.abc import Sequence

from moldau.controller.requests import ElectionType, PartitionResult
from moldau.error_codes import error_code, error_message
from moldau.errors import InvalidRequestError, MoldauError, RequestTimedOutError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import ElectLeadersRequest, ElectLeadersResponse, ElectLeadersResponsePartitionResult


def error_response(request: ElectLeadersRequest, version: int, error: MoldauError) -> ElectLeadersResponse:
    partitions = dict.fromkeys(_requested_partitions(request) or ())
    return _response([PartitionResult(*each, error) for each in partitions], error)


@handles(versions=(0, 2), error_response=error_response, forwarded=True)
async def elect_leaders(request: ElectLeadersRequest, session: RequestContext, broker: Broker) -> ElectLeadersResponse:
    if request.timeout <= 0:
        raise RequestTimedOutError
    election, partitions = _election_type(request), _requested_partitions(request)
    return _response(await broker.controller.elect_leaders(election, partitions))


def _requested_partitions(request: ElectLeadersRequest) -> list[tuple[str, int]] | None:
    if request.topic_partitions is None:
        return None
    return [(each.topic, index) for each in request.topic_partitions for index in each.partitions]


def _response(results: Sequence[PartitionResult], top_level_error: MoldauError | None = None) -> ElectLeadersResponse:
    by_topic: dict[str, list[ElectLeadersResponsePartitionResult]] = {}
    for result in results:
        by_topic.setdefault(result.topic, []).append(
            {
                "partition_id": result.partition,
                "error_code": error_code(result.error),
                "error_message": error_message(result.error),
            }
        )
    return {
        "error_code": error_code(top_level_error),
        "replica_election_results": [
            {"topic": topic, "partition_result": responses} for topic, responses in by_topic.items()
        ],
    }


def _election_type(request: ElectLeadersRequest) -> ElectionType:
    if request.election_type is None:
        return ElectionType.PREFERRED
    try:
        return ElectionType(request.election_type)
    except ValueError:
        raise InvalidRequestError(f"Unknown election type {request.election_type}") from None
