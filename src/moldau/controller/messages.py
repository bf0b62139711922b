"""Conversion of the controller's requests and results to and from Kafka's messages, and of error codes to errors."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

from moldau.controller.features import SUPPORTED_FEATURES
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    CreateTopicResult,
    IsrChange,
    IsrChangeResult,
    NewTopic,
)
from moldau.error_codes import ERROR_CODES
from moldau.errors import MoldauError
from moldau.wire.decoder_runtime import Message
from moldau.wire.kio import ErrorCode

_ERRORS: Mapping[int, type[MoldauError]] = MappingProxyType({code: kind for kind, code in ERROR_CODES.items()})


def error_from_code(code: int, message: str | None = None) -> MoldauError | None:
    """Returns the error for an error code, or None if the code is `none`."""
    if code == ErrorCode.none:
        return None
    kind = _ERRORS.get(code, MoldauError)
    return kind(message or f"the controller responded with {_code_name(code)}")


def raise_for_code(code: int, message: str | None = None) -> None:
    error = error_from_code(code, message)
    if error is not None:
        raise error


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


# Brokers


def registration_request(broker: BrokerRegistrationRequest) -> dict[str, Any]:
    features = SUPPORTED_FEATURES if broker.features is None else broker.features
    return {
        "broker_id": broker.broker_id,
        "cluster_id": broker.cluster_id,
        "incarnation_id": broker.incarnation_id,
        "listeners": [
            {"name": each.listener, "host": each.host, "port": each.port, "security_protocol": each.security_protocol}
            for each in broker.endpoints
        ],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in sorted(features.items())
        ],
        "rack": broker.rack,
        "previous_broker_epoch": broker.previous_epoch,
        "former_incarnation_ids": list(broker.previous_incarnations),
    }


def heartbeat_request(heartbeat: BrokerHeartbeat) -> dict[str, Any]:
    return {
        "broker_id": heartbeat.broker_id,
        "broker_epoch": heartbeat.broker_epoch,
        "current_metadata_offset": heartbeat.metadata_offset,
        "want_fence": heartbeat.want_fence,
        "want_shut_down": heartbeat.want_shut_down,
        "not_ready": [
            {"topic_id": each.topic_id, "partition_index": each.partition, "reason": each.reason}
            for each in heartbeat.not_ready
            if not each.is_transient
        ],
        "not_writable": [
            {"topic_id": each.topic_id, "partition_index": each.partition, "reason": each.reason}
            for each in heartbeat.not_ready
            if each.is_transient
        ],
    }


def heartbeat_reply(response: Message) -> BrokerHeartbeatReply:
    return BrokerHeartbeatReply(
        response.is_caught_up, response.is_fenced, response.should_shut_down, confirmed_age_ms=response.confirmed_age_ms
    )


# ISR changes


def alter_partition_request(broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]) -> dict[str, Any]:
    by_topic: dict[UUID, list[IsrChange]] = {}
    for change in changes:
        by_topic.setdefault(change.topic_id, []).append(change)
    return {
        "broker_id": broker_id,
        "broker_epoch": broker_epoch,
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "leader_epoch": each.leader_epoch,
                        "new_isr_with_epochs": [
                            {"broker_id": member, "broker_epoch": epoch} for member, epoch in each.isr
                        ],
                        "leader_recovery_state": int(each.is_recovering),
                        "partition_epoch": each.partition_epoch,
                    }
                    for each in topic_changes
                ],
            }
            for topic_id, topic_changes in by_topic.items()
        ],
    }


def alter_partition_results(response: Message, changes: Sequence[IsrChange]) -> list[IsrChangeResult]:
    """Returns one result per change, in the order of `changes`."""
    results = {
        (topic.topic_id, each.partition_index): IsrChangeResult(
            topic.topic_id,
            each.partition_index,
            leader=each.leader_id,
            leader_epoch=each.leader_epoch,
            isr=tuple(each.isr),
            is_recovering=bool(each.leader_recovery_state),
            partition_epoch=each.partition_epoch,
            error=error_from_code(each.error_code),
        )
        for topic in response.topics
        for each in topic.partitions
    }
    return [
        results.get((change.topic_id, change.partition))
        or IsrChangeResult(change.topic_id, change.partition, error=_missing_result())
        for change in changes
    ]


# Topics


def create_topics_request(topics: Sequence[NewTopic], timeout_ms: int) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [
                    {"partition_index": index, "broker_ids": list(replicas)}
                    for index, replicas in topic.assignment.items()
                ],
                "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
            }
            for topic in topics
        ],
        "timeout": timeout_ms,
        "validate_only": False,
    }


def create_topics_results(response: Message, topics: Sequence[NewTopic]) -> list[CreateTopicResult]:
    results = {
        each.name: CreateTopicResult(
            each.name,
            each.topic_id,
            each.num_partitions,
            each.replication_factor,
            error_from_code(each.error_code, each.error_message),
        )
        for each in response.topics
    }
    return [results.get(topic.name) or CreateTopicResult(topic.name, error=_missing_result()) for topic in topics]


def _missing_result() -> MoldauError:
    return MoldauError("the controller's response lacks this item")
