"""Produce: appends record batches and answers when they are as safe as the producer asked for.

acks 0: no answer; an error closes the connection, since that is the only way to tell. acks 1: answered when
appended. acks -1 (all): answered when the high watermark has passed the records, that is when they are on
disk on every in-sync replica. Each partition succeeds or fails on its own.

Versions: 0-2 are advertised, because old librdkafka compresses only where it sees them, and refused. 7
brought zstd, 8 messages for single errors, 9 the flexible encoding, 13 topic ids in place of names.
"""

import asyncio
from typing import Any, NamedTuple

from moldau.connections.connection import CloseConnectionError
from moldau.errors import MoldauError, RequestTimedOutError
from moldau.partitions.partition import Appended, Partition
from moldau.records.batch import NO_TIMESTAMP
from moldau.records.validate import validate
from moldau.requests.broker import Broker
from moldau.requests.errors import ErrorCode, error_code, error_message
from moldau.requests.lookup import find_partition, topic_name
from moldau.requests.registry import NO_ANSWER, handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey

ALL, NONE = -1, 0


@handles(ApiKey.PRODUCE, versions=(3, 13), advertised_low=0)
async def produce(request: Any, session: Session, broker: Broker) -> Any:
    acks = request.acks
    refused = _refusal(request)
    topics: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], _Written]] = []
    for topic in request.topic_data:
        answers: list[dict[str, Any]] = []
        topics.append(
            {"name": topic.get("name"), "topic_id": topic.get("topic_id"), "partition_responses": answers}
        )
        for data in topic.partition_data:
            if refused is not None:
                answers.append(_answer(data.index, int(refused)))
                continue
            try:
                written = await _write(broker, topic, data, acks, session.api_version)
            except MoldauError as error:
                answers.append(_answer(data.index, error_code(error), error_message(error)))
                continue
            answer = _success(data.index, written)
            answers.append(answer)
            if acks == ALL:
                waiting.append((answer, written))
    if acks == NONE:
        _close_on_error(topics)
        return NO_ANSWER
    if waiting:
        await _wait_committed(waiting, request.timeout)
    return {"responses": topics, "throttle_time": 0}


class _Written(NamedTuple):
    partition: Partition
    appended: Appended


def _refusal(request: Any) -> ErrorCode | None:
    if request.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks
    if request.transactional_id is not None:
        # No transaction can be open: there is no coordinator that could have begun one.
        return ErrorCode.invalid_txn_state
    return None


async def _write(broker: Broker, topic: Any, data: Any, acks: int, api_version: int) -> _Written:
    partition = find_partition(broker, topic_name(broker, topic), data.index)
    settings = partition.log.settings
    now_ms = broker.world.clock.wall_ms()
    batches = validate(data.records or b"", settings, now_ms=now_ms, api_version=api_version)
    append_time = now_ms if settings.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP
    appended = await partition.append(batches, append_time, all_in_sync=acks == ALL)
    return _Written(partition, appended)


async def _wait_committed(waiting: list[tuple[dict[str, Any], _Written]], timeout_ms: int) -> None:
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

    timer = loop.call_later(max(timeout_ms, 0) / 1000, time_is_up)
    try:
        for answer, (partition, appended) in waiting:
            try:
                current = partition.committing(appended.next_offset)
                if current is None:
                    continue
                if late:
                    time_is_up()
                await current
            except MoldauError as error:
                answer.update(_answer(answer["index"], error_code(error), error_message(error)))
    finally:
        timer.cancel()


def _success(index: int, written: _Written) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": 0,
        "base_offset": written.appended.base_offset,
        "log_append_time": written.appended.append_time_ms,
        "log_start_offset": written.partition.log.start_offset,
        "record_errors": (),
        "error_message": None,
    }


def _answer(index: int, code: int, message: str | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": code,
        "base_offset": -1,
        "log_append_time": NO_TIMESTAMP,
        "log_start_offset": -1,
        "record_errors": (),
        "error_message": message,
    }


def _close_on_error(topics: list[dict[str, Any]]) -> None:
    for topic in topics:
        for answer in topic["partition_responses"]:
            if answer["error_code"]:
                raise CloseConnectionError(
                    f"acks=0 and error {answer['error_code']} for {topic['name']}-{answer['index']}"
                )
