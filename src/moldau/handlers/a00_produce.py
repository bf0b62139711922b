"""Produce: appends record batches and answers when they are as safe as the producer asked for.

acks 0: no answer; an error closes the connection, since that is the only way to tell. acks 1: answered when
appended. acks -1 (all): answered when the high watermark has passed the records, that is when they are on
disk on every in-sync replica. Each partition succeeds or fails on its own.

Versions: 0-2 are advertised, because old librdkafka compresses only where it sees them, and refused. 7
brought zstd, 8 messages for single errors, 9 the flexible encoding, 10 the leader to go to and its address, 13
topic ids in place of names.
"""

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from moldau.controller.topic_names import is_internal
from moldau.errors import (
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    InvalidTransactionStateError,
    MoldauError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TransactionalIdAuthorizationError,
)
from moldau.network.connection import CloseConnectionError
from moldau.partitions.partition import LogAppendInfo, Partition
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.validator import may_recompress, validate
from moldau.server.broker import Broker
from moldau.server.current_leader import current_leader, node_endpoints
from moldau.server.errors import error_code, error_message
from moldau.server.partition_lookup import find_partition, topic_name_for_id
from moldau.server.registry import NO_RESPONSE, handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

ACKS_ALL, ACKS_NONE = -1, 0
ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's own tools may write to internal topics; they say so by this client id."""


@handles(ApiKey.PRODUCE, versions=(3, 13), advertised_min_version=0)
async def produce(request: Any, session: Session, broker: Broker) -> Any:
    acks, timeout_ms = request.acks, request.timeout
    topics, pending = await _append(request, session, broker)
    # Whoever waits for followers must not take up the room that is needed to read what the followers ask.
    del request
    session.release()
    if acks == ACKS_NONE:
        _close_on_error(topics)
        return NO_RESPONSE
    if acks == ACKS_ALL and pending:
        await _wait_until_committed(pending, timeout_ms)
    _check_leases(pending)
    return {
        "responses": topics,
        "throttle_time": 0,
        "node_endpoints": _add_current_leaders(broker, session, topics),
    }


async def _append(
    request: Any, session: Session, broker: Broker
) -> "tuple[list[dict[str, Any]], list[_PendingAck]]":
    """The answers so far, by topic, and what was appended."""
    acks = request.acks
    topics: list[dict[str, Any]] = []
    pending: list[_PendingAck] = []
    # Requests of one connection append one after the other, whatever each has to wait for: a producer
    # counts on its batches keeping their order.
    async with session.connection.append_lock:
        duplicates = _duplicate_partitions(request.topic_data)
        for topic in request.topic_data:
            name, topic_id = topic.get("name"), topic.get("topic_id")
            responses: list[dict[str, Any]] = []
            topics.append({"name": name, "topic_id": topic_id, "partition_responses": responses})
            for data in topic.partition_data:
                try:
                    if duplicates and (name or topic_id, data.index) in duplicates:
                        raise InvalidRequestError("the partition is in the request twice")
                    partition = _find_writable_partition(broker, session, name, topic_id, data.index)
                    batches, append_time = await _validate_batches(
                        broker, partition, request, data, session.api_version
                    )
                    appended = await partition.append(batches, append_time, acks_all=acks == ACKS_ALL)
                except MoldauError as error:
                    responses.append(_error_response(data.index, error))
                else:
                    response = _success_response(data.index, partition, appended)
                    responses.append(response)
                    pending.append(_PendingAck(partition, appended, response))
    return topics, pending


def _add_current_leaders(
    broker: Broker, session: Session, topics: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Tells who came to the wrong node whom to go to; gives the addresses."""
    leaders = []
    for topic in topics:
        for response in topic["partition_responses"]:
            error = response.pop("error", None)
            if error is not None:
                name = topic["name"] or broker.metadata.image.topic_names.get(topic["topic_id"])
                response["current_leader"] = current_leader(broker, name, response["index"], error)
                leaders.append(response["current_leader"])
    return node_endpoints(broker, session.connection.listener, leaders) if leaders else []


class _PendingAck(NamedTuple):
    partition: Partition
    appended: LogAppendInfo
    response: dict[str, Any]


def _duplicate_partitions(topics: list[Any]) -> set[tuple[Any, int]]:
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return set()
    named = Counter(
        (topic.get("name") or topic.get("topic_id"), data.index)
        for topic in topics
        for data in topic.partition_data
    )
    return {each for each, count in named.items() if count > 1}


def _find_writable_partition(
    broker: Broker, session: Session, name: str | None, topic_id: Any, index: int
) -> Partition:
    if name is None:
        name = topic_name_for_id(broker, topic_id)
    if is_internal(name) and session.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"{name} is internal: clients do not write to it")
    return find_partition(broker, name, index, topic_id)


async def _validate_batches(
    broker: Broker, partition: Partition, request: Any, data: Any, api_version: int
) -> tuple[list[Batch], int]:
    """The batches to append, and the time they are given (NO_TIMESTAMP where they keep their producer's)."""
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcksError(f"acks must be -1, 0 or 1, not {request.acks}")
    settings = partition.log.settings

    def validate_now() -> tuple[list[Batch], int]:
        now_ms = broker.platform.clock.wall_ms()
        return validate(data.records or b"", settings, now_ms=now_ms, api_version=api_version), now_ms

    batches, now_ms = (
        await broker.cpu_budget.run(validate_now) if may_recompress(settings) else validate_now()
    )
    if batches[0].is_transactional:
        # No transaction can be open: there is no coordinator that could have begun one.
        if request.transactional_id is None:
            raise TransactionalIdAuthorizationError("a transactional batch needs a transactional id")
        raise InvalidTransactionStateError("no transaction is open: transactions are not served")
    return batches, now_ms if settings.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP


async def _wait_until_committed(pending: list[_PendingAck], timeout_ms: int) -> None:
    """Waits for every partition's records, all against one deadline; who misses it gets an error, not an
    offset."""
    loop = asyncio.get_running_loop()
    is_timed_out = False
    current: asyncio.Future[None] | None = None

    def fail_on_timeout() -> None:
        nonlocal is_timed_out
        is_timed_out = True
        if current is not None and not current.done():
            current.set_exception(RequestTimedOutError("the records are not yet on every in-sync replica"))

    timer: asyncio.TimerHandle | None = None
    try:
        for partition, appended, response in pending:
            try:
                current = partition.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
                if current is not None:
                    if timer is None:
                        timer = loop.call_later(max(timeout_ms, 0) / 1000, fail_on_timeout)
                    if is_timed_out:
                        fail_on_timeout()
                    await current
            except MoldauError as error:
                response.update(_error_response(response["index"], error))
    finally:
        if timer is not None:
            timer.cancel()


def _check_leases(pending: list[_PendingAck]) -> None:
    """All of them at the very end: while one was appended or waited for, the lease for another may have run out."""
    for partition, _, response in pending:
        if response["error_code"] == 0:
            try:
                partition.check_lease()
            except MoldauError as error:
                response.update(_error_response(response["index"], error))


def _success_response(index: int, partition: Partition, appended: LogAppendInfo) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": 0,
        "base_offset": appended.base_offset,
        "log_append_time": appended.append_time_ms,
        "log_start_offset": partition.log.start_offset,
        "record_errors": (),
        "error_message": None,
    }


def _error_response(index: int, error: MoldauError) -> dict[str, Any]:
    response = {
        "index": index,
        "error_code": error_code(error),
        "base_offset": -1,
        "log_append_time": NO_TIMESTAMP,
        "log_start_offset": -1,
        "record_errors": _record_errors(error),
        "error_message": error_message(error),
    }
    if isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
        # Without the way it came, which would keep the request for as long as other partitions are waited for.
        response["error"] = error.with_traceback(None)
    return response


def _record_errors(error: MoldauError) -> list[dict[str, Any]]:
    if not isinstance(error, InvalidRecordError) or error.record_index is None:
        return []
    return [{"batch_index": error.record_index, "batch_index_error_message": error_message(error)}]


def _close_on_error(topics: list[dict[str, Any]]) -> None:
    for topic in topics:
        for response in topic["partition_responses"]:
            if response["error_code"]:
                raise CloseConnectionError(
                    f"acks=0 and error {response['error_code']} for {topic['name']}-{response['index']}"
                )
