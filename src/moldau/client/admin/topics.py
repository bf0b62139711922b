"""Admin requests for topics and partitions; `Admin` documents them."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from moldau.client.admin.requester import AdminRequester, Results, to_error
from moldau.client.consumer import offset_lookup
from moldau.client.consumer.offset_lookup import OffsetAndTimestamp
from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.net.cluster import Cluster, Retry
from moldau.client.net.metadata import TopicInfo
from moldau.client.record import TopicPartition, group_by_topic
from moldau.wire.api_keys import ApiKey

BROKER_DEFAULT = -1
"""A partition count or replication factor that the broker chooses."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The replicas of each partition, to override the brokers' choice."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    """Elects the first replica, if it is in sync."""
    UNCLEAN = 1
    """Elects any live replica if none is in sync; records may be lost."""


class OngoingReassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def create_topics(
    admin: AdminRequester, topics: Iterable[NewTopic], validate_only: bool
) -> Results[str, CreatedTopic]:
    new_topics = {topic.name: topic for topic in topics}

    async def request(names: list[str], retry: Retry) -> Results[str, CreatedTopic]:
        tree = {
            "topics": [_creatable_topic(new_topics[name]) for name in names],
            "timeout": admin.attempt_timeout_ms(retry),
            "validate_only": validate_only,
        }
        response = await admin.cluster.call(None, ApiKey.CREATE_TOPICS, tree)
        return {
            each.name: to_error(each.error_code, each.error_message)
            or CreatedTopic(
                each.name,
                each.get("topic_id"),
                each.num_partitions,
                each.replication_factor,
                {config.name: config.value for config in each.configs or ()},
            )
            for each in response.topics
        }

    return await admin.for_each(new_topics, request)


async def delete_topics(admin: AdminRequester, names: Iterable[str]) -> Results[str, None]:
    possibly_deleted: set[str] = set()

    async def request(remaining: list[str], retry: Retry) -> Results[str, None]:
        topics = [{"name": name, "topic_id": None} for name in remaining]
        tree = {"topics": topics, "timeout": admin.attempt_timeout_ms(retry)}
        try:
            response = await admin.cluster.call(None, ApiKey.DELETE_TOPICS, tree)
        except KafkaError:
            # The broker may have deleted the topics, so a retry that does not find them is a success.
            possibly_deleted.update(remaining)
            raise
        results: Results[str, None] = {}
        for each in response.responses:
            error = to_error(each.error_code, each.error_message)
            is_deleted = each.name in possibly_deleted and _is_unknown_topic(error)
            results[each.name] = None if is_deleted else error
            if error is not None and error.code is ErrorCode.request_timed_out:
                possibly_deleted.add(each.name)
        return results

    return await admin.for_each(names, request)


async def create_partitions(
    admin: AdminRequester, counts: Mapping[str, int], validate_only: bool
) -> Results[str, None]:
    async def request(remaining: list[str], retry: Retry) -> Results[str, None]:
        topics = [{"name": name, "count": counts[name], "assignments": None} for name in remaining]
        tree = {"topics": topics, "timeout": admin.attempt_timeout_ms(retry), "validate_only": validate_only}
        response = await admin.cluster.call(None, ApiKey.CREATE_PARTITIONS, tree)
        return {each.name: to_error(each.error_code, each.error_message) for each in response.results}

    return await admin.for_each(counts, request)


async def list_topics(admin: AdminRequester, internal: bool) -> list[TopicInfo]:
    async def attempt(retry: Retry) -> None:
        await admin.cluster.refresh(all_topics=True)

    await admin.with_retries(attempt)
    topics = sorted(admin.cluster.topics.values(), key=lambda topic: topic.name)
    return [topic for topic in topics if internal or not topic.is_internal]


async def describe_topics(admin: AdminRequester, names: Iterable[str]) -> Results[str, TopicInfo]:
    cluster = admin.cluster

    async def request(remaining: list[str], retry: Retry) -> Results[str, TopicInfo]:
        await cluster.refresh(remaining)
        return {name: cluster.topics.get(name) or _missing_topic_error(cluster, name) for name in remaining}

    return await admin.for_each(names, request)


async def delete_records(admin: AdminRequester, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
    async def request_leader(
        node: int | None, partitions: list[TopicPartition], retry: Retry
    ) -> Results[TopicPartition, int]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition in partitions:
            each = {"partition_index": partition.partition, "offset": offsets[partition]}
            topics.setdefault(partition.topic, []).append(each)
        tree = {
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
            "timeout": admin.attempt_timeout_ms(retry),
        }
        response = await admin.cluster.call(node, ApiKey.DELETE_RECORDS, tree)
        return {
            TopicPartition(topic.name, each.partition_index): to_error(each.error_code) or int(each.low_watermark)
            for topic in response.topics
            for each in topic.partitions
        }

    async def request(remaining: list[TopicPartition], retry: Retry) -> Results[TopicPartition, int]:
        leaders, results = await _find_leaders(admin.cluster, remaining)
        return {**results, **await admin.by_node(leaders, request_leader, retry)}

    return await admin.for_each(offsets, request)


async def list_offsets(
    admin: AdminRequester, times: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, OffsetAndTimestamp]:
    _, failures = await _find_leaders(admin.cluster, list(times))
    for failure in failures.values():
        if failure.code == ErrorCode.unknown_topic_or_partition:
            raise failure
    return await offset_lookup.list_offsets(
        admin.cluster, times, isolation_level=isolation_level, timeout_ms=admin.timeout_ms
    )


async def elect_leaders(
    admin: AdminRequester, kind: ElectionType, partitions: Iterable[TopicPartition] | None
) -> Results[TopicPartition, None]:
    async def request(remaining: list[TopicPartition] | None, retry: Retry) -> Results[TopicPartition, None]:
        topics = None
        if remaining is not None:
            topics = [{"topic": topic, "partitions": indexes} for topic, indexes in group_by_topic(remaining).items()]
        tree = {"election_type": int(kind), "topic_partitions": topics, "timeout": admin.attempt_timeout_ms(retry)}
        response = await admin.cluster.call(None, ApiKey.ELECT_LEADERS, tree)
        raise_for_code(response.error_code)
        return {
            TopicPartition(topic.topic, each.partition_id): to_error(each.error_code, each.error_message)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }

    if partitions is None:
        return await admin.with_retries(lambda retry: request(None, retry))
    return await admin.for_each(partitions, request)


async def alter_reassignments(
    admin: AdminRequester, assignments: Mapping[TopicPartition, Sequence[int] | None]
) -> Results[TopicPartition, None]:
    async def request(remaining: list[TopicPartition], retry: Retry) -> Results[TopicPartition, None]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for each in remaining:
            replicas = assignments[each]
            topics.setdefault(each.topic, []).append(
                {"partition_index": each.partition, "replicas": None if replicas is None else list(replicas)}
            )
        tree = {
            "timeout": admin.attempt_timeout_ms(retry),
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        response = await admin.cluster.call(None, ApiKey.ALTER_PARTITION_REASSIGNMENTS, tree)
        raise_for_code(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): to_error(each.error_code, each.error_message)
            for topic in response.responses
            for each in topic.partitions
        }

    return await admin.for_each(assignments, request)


async def list_reassignments(
    admin: AdminRequester, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, OngoingReassignment]:
    by_topic = None if partitions is None else group_by_topic(partitions)

    async def attempt(retry: Retry) -> dict[TopicPartition, OngoingReassignment]:
        topics = None
        if by_topic is not None:
            topics = [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic.items()]
        tree = {"timeout": admin.attempt_timeout_ms(retry), "topics": topics}
        response = await admin.cluster.call(None, ApiKey.LIST_PARTITION_REASSIGNMENTS, tree)
        raise_for_code(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): OngoingReassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in response.topics
            for each in topic.partitions
        }

    return await admin.with_retries(attempt)


async def _find_leaders(
    cluster: Cluster, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, KafkaError]]:
    """Returns the current leaders, and the errors of partitions without a leader."""
    await cluster.refresh(dict.fromkeys(partition.topic for partition in partitions))
    leaders: dict[TopicPartition, int | None] = {}
    failures: dict[TopicPartition, KafkaError] = {}
    for partition in partitions:
        known = cluster.partition_info(partition)
        if partition.topic not in cluster.topics:
            failures[partition] = _missing_topic_error(cluster, partition.topic)
        elif known is None:
            failures[partition] = KafkaError(
                ErrorCode.unknown_topic_or_partition, f"partition {partition} does not exist"
            )
        elif known.leader < 0:
            failures[partition] = KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader now")
        else:
            leaders[partition] = known.leader
    return leaders, failures


def _missing_topic_error(cluster: Cluster, name: str) -> KafkaError:
    code = cluster.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
    return KafkaError(code, f"the topic {name!r}")


def _is_unknown_topic(error: KafkaError | None) -> bool:
    return error is not None and error.code is ErrorCode.unknown_topic_or_partition


def _creatable_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        # Brokers require that count and replication factor are unset if the replicas are given.
        "num_partitions": BROKER_DEFAULT if topic.assignments else topic.partitions,
        "replication_factor": BROKER_DEFAULT if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)} for index, brokers in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }
