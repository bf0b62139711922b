"""AlterPartition: a leader tells the controller what its in-sync set is to be. Between nodes only.

Only v3 is served: before it a leader could not say in which life of a broker a replica caught up. The answer
comes when the change is committed. A stale partition epoch gets INVALID_UPDATE_VERSION, a stale leader epoch
FENCED_LEADER_EPOCH, a member that may not join INELIGIBLE_REPLICA; NEW_LEADER_ELECTED says that the change was
made, ended a reassignment, and by that the caller's leadership.
"""

from typing import Any
from uuid import UUID

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

_NO_ID = UUID(int=0)


@handles(ApiKey.ALTER_PARTITION, versions=(3, 3), inter_broker=True)
async def alter_partition(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    changes = [_isr_change(topic, each) for topic in request.topics for each in topic.partitions]
    failed: MoldauError | None = None
    results: list[IsrChangeResult] = []
    try:
        results = await broker.controller.alter_partition(request.broker_id, request.broker_epoch, changes)
    except MoldauError as error:
        failed = error
    by_topic: dict[UUID, list[IsrChangeResult]] = {}
    for result in results:
        by_topic.setdefault(result.topic_id, []).append(result)
    return {
        "throttle_time": 0,
        "error_code": error_code(failed),
        "topics": [
            {"topic_id": topic_id, "partitions": [_result(each) for each in of_topic]}
            for topic_id, of_topic in by_topic.items()
        ],
    }


def _isr_change(topic: Message, requested: Message) -> IsrChange:
    return IsrChange(
        topic.topic_id or _NO_ID,
        requested.partition_index,
        requested.leader_epoch,
        requested.partition_epoch,
        tuple((member.broker_id, member.broker_epoch) for member in requested.new_isr_with_epochs),
        bool(requested.leader_recovery_state),
    )


def _result(result: IsrChangeResult) -> dict[str, Any]:
    return {
        "partition_index": result.partition,
        "error_code": error_code(result.error),
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": int(result.is_recovering),
        "partition_epoch": result.partition_epoch,
    }
