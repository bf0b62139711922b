"""DeleteTopics: by name, and from v6 on by name or by id.

A topic that is given twice, be it by name, by id or once by each, is refused and not deleted. Before v3
there was no code for a broker that lets nobody delete, so older callers get INVALID_REQUEST. A caller
that gives no time (`timeout` 0 or less) gets REQUEST_TIMED_OUT and nothing is deleted.
"""

from typing import Any

from moldau.controller.requests import TopicRef, TopicResult
from moldau.errors import InvalidRequestError, MoldauError, RequestTimedOutError, TopicDeletionDisabledError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6), forwarded=True)
async def delete_topics(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    refs = _topic_refs(request)
    try:
        if request.timeout <= 0:
            raise RequestTimedOutError
        results = await broker.controller.delete_topics(refs)
    except MoldauError as error:
        refusal = _error_for_version(error, session.api_version)
        results = [TopicResult(ref.name, ref.topic_id, refusal) for ref in refs]
    # What was given twice is answered once.
    distinct = {(result.name, result.topic_id): result for result in results}
    return {"throttle_time": 0, "responses": [_response(result) for result in distinct.values()]}


def _topic_refs(request: Message) -> list[TopicRef]:
    names = request.get("topic_names")
    if names is not None:
        return [TopicRef(name=name) for name in names]
    return [TopicRef(name=topic.name, topic_id=topic.topic_id) for topic in request.topics]


def _error_for_version(error: MoldauError, version: int) -> MoldauError:
    if isinstance(error, TopicDeletionDisabledError) and version < 3:
        return InvalidRequestError(str(error))
    return error


def _response(result: TopicResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": error_code(result.error),
        "error_message": error_message(result.error),
    }
