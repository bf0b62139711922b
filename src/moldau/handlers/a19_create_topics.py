"""CreateTopics: creates topics. Every topic succeeds or fails independently.

- A topic that is in the request twice is rejected.
- If the broker's defaults apply or replicas are assigned, the request has -1 as partition count and replication factor.
- Since v5, the response contains the number of partitions, the replication factor and the configs; since v7 the topic
  id. With `validate_only` the response has the same fields, but no topic is created and the id is not used later.
- With a `timeout` of 0 or less, nothing is created and the error is REQUEST_TIMED_OUT.
- The response is sent when the topics are committed and all live brokers have opened the logs of their replicas, or
  after a second. Fenced brokers are not waited for. If no live broker could open the log of a partition, the error is
  KAFKA_STORAGE_ERROR with the reasons; the topic exists.
"""

from collections import Counter

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.error_codes import error_code, error_message
from moldau.errors import InvalidReplicaAssignmentError, MoldauError, RequestTimedOutError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.replica_readiness import replicas_ready_deadline_ms, wait_replicas_ready
from moldau.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicConfigs,
    CreateTopicsResponseCreatableTopicResult,
)


def error_response(request: CreateTopicsRequest, version: int, error: MoldauError) -> CreateTopicsResponse:
    rejected = _rejected_topics(request)
    topics = {topic.name: rejected.get(topic.name) or _topic_error(topic.name, error) for topic in request.topics}
    return {"topics": [*topics.values()]}


@handles(versions=(2, 7), error_response=error_response, forwarded=True)
async def create_topics(request: CreateTopicsRequest, session: RequestContext, broker: Broker) -> CreateTopicsResponse:
    if request.timeout <= 0:
        raise RequestTimedOutError
    rejected = _rejected_topics(request)
    new_topics = [
        NewTopic(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignment={each.partition_index: each.broker_ids for each in topic.assignments},
            configs={each.name: each.value for each in topic.configs},
        )
        for topic in request.topics
        if topic.name not in rejected
    ]
    deadline_ms = replicas_ready_deadline_ms(broker, request.timeout)
    created = await broker.controller.create_topics(new_topics, validate_only=request.validate_only)
    if not request.validate_only:
        names = [result.name for result in created if result.error is None]
        unready = await wait_replicas_ready(broker, names, deadline_ms)
        created = [each._replace(error=unready.get(each.name, each.error)) for each in created]
    responses = [_topic_response(result) for result in created]
    if session.api_version >= 5:
        _add_configs(responses, new_topics, broker)
    return {"topics": [*responses, *rejected.values()]}


def _rejected_topics(request: CreateTopicsRequest) -> dict[str, CreateTopicsResponseCreatableTopicResult]:
    """Returns the error responses of topics that assign the replicas of a partition twice."""
    rejected = {}
    for topic in request.topics:
        counts = Counter(each.partition_index for each in topic.assignments)
        duplicate = next((index for index, count in counts.items() if count > 1), None)
        if duplicate is not None:
            message = f"Found multiple manual partition assignments for partition {duplicate}"
            rejected[topic.name] = _topic_error(topic.name, InvalidReplicaAssignmentError(message))
    return rejected


def _topic_error(name: str, error: MoldauError) -> CreateTopicsResponseCreatableTopicResult:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code(error),
        "error_message": error_message(error),
        "configs": [],
    }


def _topic_response(result: CreateTopicResult) -> CreateTopicsResponseCreatableTopicResult:
    if result.error is not None:
        return _topic_error(result.name, result.error)
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": 0,
        "num_partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "configs": [],
    }


def _add_configs(
    responses: list[CreateTopicsResponseCreatableTopicResult], new_topics: list[NewTopic], broker: Broker
) -> None:
    """Adds the effective configs to the responses. Topics with the same overrides share one computation."""
    configs_by_topic = {each.name: each.configs for each in new_topics}
    configs_by_overrides: dict[frozenset[tuple[str, str]], list[CreateTopicsResponseCreatableTopicConfigs]] = {}
    for response in responses:
        if response["error_code"]:
            continue
        configs = configs_by_topic[response["name"]]
        overrides = {name: value for name, value in configs.items() if value is not None}
        key = frozenset(overrides.items())
        if key not in configs_by_overrides:
            configs_by_overrides[key] = [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "read_only": entry.read_only,
                    "config_source": entry.source,
                    "is_sensitive": False,
                }
                for entry in sorted(broker.settings.layers().describe_topic(overrides), key=lambda each: each.name)
            ]
        response["configs"] = configs_by_overrides[key]
