"""CreateTopics: every topic succeeds or fails on its own; one that is named twice is refused.

- The number of partitions and the replication factor are -1 for the broker's defaults, or where replicas
  are assigned.
- v5 tells the created topic's size and configs, v7 its id. With `validate_only` they are what they would
  be; the id is not kept.
- A caller that gives no time (`timeout` 0 or less) gets REQUEST_TIMED_OUT and nothing is created.
  Otherwise the answer comes when the topics are durable in the metadata and all their replicas have opened
  their logs. Where that takes longer than the caller waits, the topic stays, and REQUEST_TIMED_OUT comes with
  a message that names each replica that is not ready, and why.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.errors import InvalidReplicaAssignmentError, MoldauError, RequestTimedOutError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.replica_readiness import replicas_ready_deadline_ms, wait_replicas_ready
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.CREATE_TOPICS, versions=(2, 7), forwarded=True)
async def create_topics(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    refused = {
        topic.name: _error_response(topic.name, error)
        for topic in request.topics
        if (error := _duplicate_assignment(topic)) is not None
    }
    new_topics = [_new_topic(topic) for topic in request.topics if topic.name not in refused]
    try:
        if request.timeout <= 0:
            raise RequestTimedOutError
        deadline_ms = replicas_ready_deadline_ms(broker, request.timeout)
        created = await broker.controller.create_topics(new_topics, validate_only=request.validate_only)
    except MoldauError as error:
        created = [
            CreateTopicResult(name, error=error) for name in dict.fromkeys(each.name for each in new_topics)
        ]
    else:
        if not request.validate_only:
            names = [outcome.name for outcome in created if outcome.error is None]
            unready = await wait_replicas_ready(broker, names, deadline_ms)
            created = [replace(each, error=unready.get(each.name, each.error)) for each in created]
    results = [_topic_response(outcome) for outcome in created]
    if session.api_version >= 5:
        _add_configs(results, new_topics, broker)
    return {"throttle_time": 0, "topics": [*results, *refused.values()]}


def _duplicate_assignment(topic: Message) -> MoldauError | None:
    assigned = Counter(each.partition_index for each in topic.assignments)
    for partition, times in assigned.items():
        if times > 1:
            return InvalidReplicaAssignmentError(
                f"Found multiple manual partition assignments for partition {partition}"
            )
    return None


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignment={each.partition_index: each.broker_ids for each in topic.assignments},
        configs={each.name: each.value for each in topic.configs},
    )


def _error_response(name: str, error: MoldauError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code(error),
        "error_message": error_message(error),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


def _topic_response(outcome: CreateTopicResult) -> dict[str, Any]:
    if outcome.error is not None:
        return _error_response(outcome.name, outcome.error)
    return {
        "name": outcome.name,
        "topic_id": outcome.topic_id,
        "error_code": error_code(None),
        "error_message": None,
        "num_partitions": outcome.partitions,
        "replication_factor": outcome.replication_factor,
        "configs": [],
    }


def _add_configs(results: list[dict[str, Any]], new_topics: list[NewTopic], broker: Broker) -> None:
    configs = {each.name: each.configs for each in new_topics}
    configs_by_overrides: dict[frozenset[tuple[str, str | None]], list[dict[str, Any]]] = {}
    for result in results:
        if not result["error_code"]:
            own = frozenset(configs[result["name"]].items())
            if own not in configs_by_overrides:
                configs_by_overrides[own] = _configs(result["name"], configs[result["name"]], broker)
            result["configs"] = configs_by_overrides[own]


def _configs(topic: str, configs: Mapping[str, str | None], broker: Broker) -> list[dict[str, Any]]:
    overrides = {name: value for name, value in configs.items() if value is not None}
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "read_only": entry.read_only,
            "config_source": int(entry.source),
            "is_sensitive": entry.is_sensitive,
        }
        for entry in sorted(broker.settings.describe_topic(topic, overrides), key=lambda each: each.name)
    ]
