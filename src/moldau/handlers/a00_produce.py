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

from moldau.controller.names import is_internal
from moldau.errors import (
    FencedLeaderEpochError,
    InvalidAcksError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTransactionStateError,
    MoldauError,
    NotLeaderError,
    RequestTimedOutError,
    TransactionalIdRefusedError,
)
from moldau.network.connection import CloseConnectionError
from moldau.partitions.partition import Appended, Partition
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.validate import may_take_long, validate
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.leaders import current_leader, node_endpoints
from moldau.server.lookup import find_partition, name_of_id
from moldau.server.registry import NO_ANSWER, handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

ALL, NONE = -1, 0
ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's own tools may write to internal topics; they say so by this client id."""


@handles(ApiKey.PRODUCE, versions=(3, 13), advertised_low=0)
async def produce(request: Any, session: Session, broker: Broker) -> Any:
    acks, timeout_ms = request.acks, request.timeout
    topics, written = await _append(request, session, broker)
    # Whoever waits for followers must not take up the room that is needed to read what the followers ask.
    del request
    session.release()
    if acks == NONE:
        _close_on_error(topics)
        return NO_ANSWER
    if acks == ALL and written:
        await _wait_committed(written, timeout_ms)
    _check_leases(written)
    return {
        "responses": topics,
        "throttle_time": 0,
        "node_endpoints": _name_leaders(broker, session, topics),
    }


async def _append(
    request: Any, session: Session, broker: Broker
) -> "tuple[list[dict[str, Any]], list[_Written]]":
    """The answers so far, by topic, and what was appended."""
    acks = request.acks
    topics: list[dict[str, Any]] = []
    written: list[_Written] = []
    # Requests of one connection append one after the other, whatever each has to wait for: a producer
    # counts on its batches keeping their order.
    async with session.connection.appending:
        repeated = _named_twice(request.topic_data)
        for topic in request.topic_data:
            name, topic_id = topic.get("name"), topic.get("topic_id")
            answers: list[dict[str, Any]] = []
            topics.append({"name": name, "topic_id": topic_id, "partition_responses": answers})
            for data in topic.partition_data:
                try:
                    if repeated and (name or topic_id, data.index) in repeated:
                        raise InvalidRequestError("the partition is in the request twice")
                    partition = _find(broker, session, name, topic_id, data.index)
                    batches, append_time = await _validated(
                        broker, partition, request, data, session.api_version
                    )
                    appended = await partition.append(batches, append_time, all_in_sync=acks == ALL)
                except MoldauError as error:
                    answers.append(_refused(data.index, error))
                else:
                    answer = _success(data.index, partition, appended)
                    answers.append(answer)
                    written.append(_Written(partition, appended, answer))
    return topics, written


def _name_leaders(broker: Broker, session: Session, topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tells who came to the wrong node whom to go to; gives the addresses."""
    leaders = []
    for topic in topics:
        for answer in topic["partition_responses"]:
            error = answer.pop("error", None)
            if error is not None:
                name = topic["name"] or broker.metadata.image.topic_names.get(topic["topic_id"])
                answer["current_leader"] = current_leader(broker, name, answer["index"], error)
                leaders.append(answer["current_leader"])
    return node_endpoints(broker, session.connection.listener, leaders) if leaders else []


class _Written(NamedTuple):
    partition: Partition
    appended: Appended
    answer: dict[str, Any]


def _named_twice(topics: list[Any]) -> set[tuple[Any, int]]:
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return set()
    named = Counter(
        (topic.get("name") or topic.get("topic_id"), data.index)
        for topic in topics
        for data in topic.partition_data
    )
    return {each for each, count in named.items() if count > 1}


def _find(broker: Broker, session: Session, name: str | None, topic_id: Any, index: int) -> Partition:
    if name is None:
        name = name_of_id(broker, topic_id)
    if is_internal(name) and session.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"{name} is internal: clients do not write to it")
    return find_partition(broker, name, index, topic_id)


async def _validated(
    broker: Broker, partition: Partition, request: Any, data: Any, api_version: int
) -> tuple[list[Batch], int]:
    """The batches to append, and the time they are given (NO_TIMESTAMP where they keep their producer's)."""
    if request.acks not in (-1, 0, 1):
        raise InvalidAcksError(f"acks must be -1, 0 or 1, not {request.acks}")
    settings = partition.log.settings

    def checked() -> tuple[list[Batch], int]:
        now_ms = broker.platform.clock.wall_ms()
        return validate(data.records or b"", settings, now_ms=now_ms, api_version=api_version), now_ms

    batches, now_ms = await broker.turns.run(checked) if may_take_long(settings) else checked()
    if batches[0].is_transactional:
        # No transaction can be open: there is no coordinator that could have begun one.
        if request.transactional_id is None:
            raise TransactionalIdRefusedError("a transactional batch needs a transactional id")
        raise InvalidTransactionStateError("no transaction is open: transactions are not served")
    return batches, now_ms if settings.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP


async def _wait_committed(written: list[_Written], timeout_ms: int) -> None:
    """Waits for every partition's records, all against one deadline; who misses it gets an error, not an
    offset."""
    loop = asyncio.get_running_loop()
    late = False
    current: asyncio.Future[None] | None = None

    def time_is_up() -> None:
        nonlocal late
        late = True
        if current is not None and not current.done():
            current.set_exception(RequestTimedOutError("the records are not yet on every in-sync replica"))

    timer: asyncio.TimerHandle | None = None
    try:
        for partition, appended, answer in written:
            try:
                current = partition.committing(appended.next_offset, appended.leader_epoch, all_in_sync=True)
                if current is not None:
                    if timer is None:
                        timer = loop.call_later(max(timeout_ms, 0) / 1000, time_is_up)
                    if late:
                        time_is_up()
                    await current
            except MoldauError as error:
                answer.update(_refused(answer["index"], error))
    finally:
        if timer is not None:
            timer.cancel()


def _check_leases(written: list[_Written]) -> None:
    """All of them at the very end: while one was appended or waited for, the lease for another may have run out."""
    for partition, _, answer in written:
        if answer["error_code"] == 0:
            try:
                partition.check_lease()
            except MoldauError as error:
                answer.update(_refused(answer["index"], error))


def _success(index: int, partition: Partition, appended: Appended) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": 0,
        "base_offset": appended.base_offset,
        "log_append_time": appended.append_time_ms,
        "log_start_offset": partition.log.start_offset,
        "record_errors": (),
        "error_message": None,
    }


def _refused(index: int, error: MoldauError) -> dict[str, Any]:
    answer = {
        "index": index,
        "error_code": error_code(error),
        "base_offset": -1,
        "log_append_time": NO_TIMESTAMP,
        "log_start_offset": -1,
        "record_errors": _record_errors(error),
        "error_message": error_message(error),
    }
    if isinstance(error, NotLeaderError | FencedLeaderEpochError):
        # Without the way it came, which would keep the request for as long as other partitions are waited for.
        answer["error"] = error.with_traceback(None)
    return answer


def _record_errors(error: MoldauError) -> list[dict[str, Any]]:
    if not isinstance(error, InvalidRecordError) or error.record_index is None:
        return []
    return [{"batch_index": error.record_index, "batch_index_error_message": error_message(error)}]


def _close_on_error(topics: list[dict[str, Any]]) -> None:
    for topic in topics:
        for answer in topic["partition_responses"]:
            if answer["error_code"]:
                raise CloseConnectionError(
                    f"acks=0 and error {answer['error_code']} for {topic['name']}-{answer['index']}"
                )
