"""DeleteTopics: deletes topics, which the request identifies by name, and since v6 by name or id.

A topic that is in the request twice is rejected, also if the request has it once by name and once by id. Before v3,
Kafka had no error code for delete.topic.enable=false, so older clients get INVALID_REQUEST. With a `timeout` of 0 or
less, nothing is deleted and the error is REQUEST_TIMED_OUT.
"""

from collections.abc import Iterable

from moldau.controller.requests import TopicRef, TopicResult
from moldau.error_codes import error_code, error_message
from moldau.errors import InvalidRequestError, MoldauError, RequestTimedOutError, TopicDeletionDisabledError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

DELETION_DISABLED_VERSION = 3
TOPIC_ID_VERSION = 6


def error_response(request: DeleteTopicsRequest, version: int, error: MoldauError) -> DeleteTopicsResponse:
    if isinstance(error, TopicDeletionDisabledError) and version < DELETION_DISABLED_VERSION:
        error = InvalidRequestError(str(error))
    return _response(TopicResult(ref.name, ref.topic_id, error) for ref in _topic_refs(request, version))


@handles(versions=(1, 6), error_response=error_response, forwarded=True)
async def delete_topics(request: DeleteTopicsRequest, session: RequestContext, broker: Broker) -> DeleteTopicsResponse:
    if request.timeout <= 0:
        raise RequestTimedOutError
    return _response(await broker.controller.delete_topics(_topic_refs(request, session.api_version)))


def _response(results: Iterable[TopicResult]) -> DeleteTopicsResponse:
    # Return only one result for a topic that is in the request twice.
    distinct = {(result.name, result.topic_id): result for result in results}
    return {
        "responses": [
            {
                "name": result.name,
                "topic_id": result.topic_id,
                "error_code": error_code(result.error),
                "error_message": error_message(result.error),
            }
            for result in distinct.values()
        ]
    }


def _topic_refs(request: DeleteTopicsRequest, version: int) -> list[TopicRef]:
    if version < TOPIC_ID_VERSION:
        return [TopicRef(name=name) for name in request.topic_names]
    return [TopicRef(name=topic.name, topic_id=topic.topic_id) for topic in request.topics or ()]
