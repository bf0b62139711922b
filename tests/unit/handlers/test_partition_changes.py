"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and AlterPartition in every version."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.controller.requests import (
    ElectionType,
    IsrChange,
    IsrChangeResult,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
)
from moldau.error_codes import ErrorCode
from moldau.errors import (
    ElectionNotNeededError,
    InvalidUpdateVersionError,
    MoldauError,
    NoReassignmentInProgressError,
    NotControllerError,
    StaleBrokerEpochError,
)
from moldau.handlers import REGISTRY
from moldau.server.api import Broker, ClientConnection, RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.admin_broker import handle

TOPIC_ID = UUID(int=42)


class ScriptedController:
    """Returns scripted results and records its calls."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.calls: tuple[Any, ...] = ()

    def _answer(self, *calls: Any) -> Any:
        self.calls = calls
        if isinstance(self._reply, MoldauError):
            raise self._reply
        return self._reply

    async def elect_leaders(self, election: ElectionType, partitions: Sequence[tuple[str, int]] | None) -> Any:
        return self._answer(election, partitions)

    async def alter_partition_reassignments(self, wanted: Sequence[Reassignment], *, allow_rf_change: bool) -> Any:
        return self._answer(wanted, allow_rf_change)

    def list_partition_reassignments(self, partitions: Sequence[tuple[str, int]] | None) -> Any:
        return self._answer(partitions)

    async def alter_partition(self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]) -> Any:
        return self._answer(broker_id, broker_epoch, changes)


def send(api: ApiKey, version: int, tree: dict[str, Any], reply: Any) -> tuple[Message, tuple[Any, ...]]:
    """Returns the decoded response, and the arguments of the controller's call."""
    controller = ScriptedController(reply)
    session = RequestContext(ClientConnection("127.0.0.1:1", "PLAINTEXT"), version, None)
    broker = cast(Broker, SimpleNamespace(controller=controller))
    request = _through(api, version, "request", tree)
    response = asyncio.run(handle(api, request, session, broker))
    return _through(api, version, "response", response), controller.calls


def _through(api: ApiKey, version: int, kind: Any, tree: dict[str, Any]) -> Message:
    out = bytearray()
    encoder(api, version, kind)(out, tree)
    return decoder(api, version, kind)(memoryview(bytes(out)))


def test_controller_apis_are_forwarded_and_alter_partition_is_inter_broker() -> None:
    for api in (ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS):
        assert REGISTRY[api].forwarded
        assert not REGISTRY[api].inter_broker
    assert REGISTRY[ApiKey.ALTER_PARTITION].inter_broker
    assert not REGISTRY[ApiKey.ALTER_PARTITION].forwarded


# ElectLeaders


@pytest.mark.parametrize("version", [0, 1, 2])
def test_election_results_are_grouped_by_topic(version: int) -> None:
    tree = {
        "election_type": 1,
        "topic_partitions": [{"topic": "a", "partitions": [0, 1]}, {"topic": "b", "partitions": [2]}],
        "timeout": 1000,
    }
    reply = [
        PartitionResult("a", 0),
        PartitionResult("a", 1, ElectionNotNeededError("is led")),
        PartitionResult("b", 2),
    ]
    response, calls = send(ApiKey.ELECT_LEADERS, version, tree, reply)
    wanted = ElectionType.UNCLEAN if version else ElectionType.PREFERRED
    assert calls == (wanted, [("a", 0), ("a", 1), ("b", 2)])
    result = [
        (topic.topic, each.partition_id, each.error_code, each.error_message)
        for topic in response.replica_election_results
        for each in topic.partition_result
    ]
    assert result == [("a", 0, 0, None), ("a", 1, ErrorCode.election_not_needed, "is led"), ("b", 2, 0, None)]


def test_null_partitions_elect_for_all_partitions() -> None:
    tree = {"election_type": 0, "topic_partitions": None, "timeout": 1000}
    response, calls = send(ApiKey.ELECT_LEADERS, 2, tree, [])
    assert calls == (ElectionType.PREFERRED, None)
    assert (response.error_code, response.replica_election_results) == (0, [])


def test_an_unknown_election_type_is_rejected() -> None:
    tree = {"election_type": 7, "topic_partitions": [{"topic": "a", "partitions": [0]}], "timeout": 1000}
    response, calls = send(ApiKey.ELECT_LEADERS, 2, tree, [])
    assert (calls, response.error_code) == ((), ErrorCode.invalid_request)


@pytest.mark.parametrize("version", [0, 2])
def test_an_election_that_fails_as_a_whole_fails_for_every_partition(version: int) -> None:
    tree = {"election_type": 0, "topic_partitions": [{"topic": "a", "partitions": [0, 0]}], "timeout": 1000}
    response, _ = send(ApiKey.ELECT_LEADERS, version, tree, NotControllerError("moved"))
    [topic] = response.replica_election_results
    assert [each.error_code for each in topic.partition_result] == [ErrorCode.not_controller]
    if version:
        assert response.error_code == ErrorCode.not_controller


# Reassignments


@pytest.mark.parametrize(("version", "allowed"), [(0, True), (1, True), (1, False)])
def test_each_reassignment_has_its_own_result(version: int, allowed: bool) -> None:
    tree = {
        "timeout": 1000,
        "allow_replication_factor_change": allowed,
        "topics": [
            {
                "name": "a",
                "partitions": [{"partition_index": 0, "replicas": [2, 3]}, {"partition_index": 1, "replicas": None}],
            }
        ],
    }
    reply = [PartitionResult("a", 0), PartitionResult("a", 1, NoReassignmentInProgressError("none"))]
    response, (wanted, allow_rf_change) = send(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, tree, reply)
    assert wanted == [Reassignment("a", 0, [2, 3]), Reassignment("a", 1, None)]
    assert allow_rf_change is allowed
    [topic] = response.responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (0, 0),
        (1, ErrorCode.no_reassignment_in_progress),
    ]


@pytest.mark.parametrize("api", [ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS])
def test_not_controller_is_a_top_level_error(api: ApiKey) -> None:
    response, _ = send(api, 0, {"timeout": 1000, "topics": []}, NotControllerError("moved"))
    assert (response.error_code, response.error_message) == (ErrorCode.not_controller, "moved")


def test_listed_reassignments_are_grouped_by_topic() -> None:
    tree = {"timeout": 1000, "topics": [{"name": "a", "partition_indexes": [0, 1]}]}
    reply = [OngoingReassignment("a", 1, (3, 2, 1), (3,), (1,))]
    response, calls = send(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, tree, reply)
    assert calls == ([("a", 0), ("a", 1)],)
    [topic] = response.topics
    [each] = topic.partitions
    result = (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
    assert result == (1, [3, 2, 1], [3], [1])
    _, calls = send(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1000, "topics": None}, [])
    assert calls == (None,)


# AlterPartition

ALTER = {
    "broker_id": 1,
    "broker_epoch": 7,
    "topics": [
        {
            "topic_id": TOPIC_ID,
            "partitions": [
                {
                    "partition_index": 4,
                    "leader_epoch": 5,
                    "new_isr_with_epochs": [{"broker_id": 1, "broker_epoch": 7}, {"broker_id": 2, "broker_epoch": 9}],
                    "leader_recovery_state": 0,
                    "partition_epoch": 6,
                }
            ],
        }
    ],
}


def test_alter_partition_returns_the_new_isr() -> None:
    reply = [IsrChangeResult(TOPIC_ID, 4, 1, 5, (1, 2), False, 7)]
    response, calls = send(ApiKey.ALTER_PARTITION, 3, ALTER, reply)
    assert calls == (1, 7, [IsrChange(TOPIC_ID, 4, 5, 6, ((1, 7), (2, 9)))])
    [topic] = response.topics
    [each] = topic.partitions
    assert (topic.topic_id, each.partition_index, each.error_code) == (TOPIC_ID, 4, 0)
    assert (each.leader_id, each.leader_epoch, each.isr, each.partition_epoch) == (1, 5, [1, 2], 7)


def test_a_rejected_isr_change_has_an_error_code() -> None:
    reply = [IsrChangeResult(TOPIC_ID, 4, error=InvalidUpdateVersionError("stale"))]
    response, _ = send(ApiKey.ALTER_PARTITION, 3, ALTER, reply)
    [topic] = response.topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.invalid_update_version]
    response, _ = send(ApiKey.ALTER_PARTITION, 3, ALTER, StaleBrokerEpochError("former life"))
    assert (response.error_code, response.topics) == (ErrorCode.stale_broker_epoch, [])
