"""Produce: appends record batches and responds as `acks` requires. Each partition succeeds or fails independently.

- acks 0: there is no response. An error closes the connection, because it cannot be reported otherwise.
- acks 1: responds after the append.
- acks -1 (all): responds when the high watermark has passed the records. Then every in-sync replica has flushed them.

Versions 0-2 are advertised but not served. They are advertised because old releases of librdkafka compress only if the
broker advertises these versions. 7 added zstd, 8 errors of single records, 9 the flexible encoding, 10 the current
leader and its address, 13 topic ids instead of names.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.controller.topic_names import is_internal
from moldau.error_codes import error_code, error_message
from moldau.errors import (
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    InvalidTransactionStateError,
    MoldauError,
    RequestTimedOutError,
    TransactionalIdAuthorizationError,
    UnknownTopicIdError,
)
from moldau.network.connection import CloseConnectionError
from moldau.partitions.partition import LogAppendInfo, Partition
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.validator import may_recompress, validate
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import current_leader, find_partition, node_endpoints, topic_name
from moldau.wire.messages import (
    ProduceRequest,
    ProduceRequestPartitionData,
    ProduceRequestTopicData,
    ProduceResponse,
    ProduceResponseBatchIndexAndErrorMessage,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

ACKS_ALL, ACKS_NONE = -1, 0
ADMIN_CLIENT_ID = "__admin_client"
"""The client id of Kafka's own tools, which may write to internal topics."""


@dataclass(slots=True, eq=False)
class _PartitionResult:
    """The outcome for one partition of the request."""

    index: int
    partition: Partition | None = None
    appended: LogAppendInfo | None = None
    log_start_offset: int = -1
    error: MoldauError | None = None

    def fail(self, error: MoldauError) -> None:
        # Remove the traceback, because it would keep the request frame in memory while other partitions are pending.
        self.error = error.with_traceback(None)


class _TopicResult(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[_PartitionResult]


@handles(versions=(3, 13), advertised_min_version=0)
async def produce(request: ProduceRequest, session: RequestContext, broker: Broker) -> ProduceResponse | None:
    acks, timeout_ms = request.acks, request.timeout
    topics, appended = await _append(request, session, broker)
    # Release the frame before waiting for followers, because their fetch requests need memory from the same pool.
    del request
    session.release()
    if acks == ACKS_NONE:
        _close_on_error(topics)
        return None
    if acks == ACKS_ALL and appended:
        await _wait_until_committed(appended, timeout_ms)
    _check_leases(appended)
    return _response(topics, session, broker)


async def _append(
    request: ProduceRequest, session: RequestContext, broker: Broker
) -> tuple[list[_TopicResult], list[_PartitionResult]]:
    """Appends the batches. Returns the results of all partitions, and those of the partitions without an error."""
    topics: list[_TopicResult] = []
    succeeded: list[_PartitionResult] = []
    # Requests of one connection append one after the other, because a producer relies on the order of its batches.
    async with session.connection.append_lock:
        duplicates = _duplicate_partitions(request.topic_data)
        for topic in request.topic_data:
            name, topic_id = topic.name, topic.topic_id
            results: list[_PartitionResult] = []
            topics.append(_TopicResult(name, topic_id, results))
            for data in topic.partition_data:
                result = _PartitionResult(data.index)
                results.append(result)
                try:
                    if duplicates and (name or topic_id, data.index) in duplicates:
                        raise InvalidRequestError("the request has the partition more than once")
                    partition = _find_writable_partition(broker, session, name, topic_id, data.index)
                    batches, append_time = await _validate_batches(
                        broker, partition, request, data, session.api_version
                    )
                    appended = await partition.append(batches, append_time, acks_all=request.acks == ACKS_ALL)
                except MoldauError as error:
                    result.fail(error)
                else:
                    result.partition, result.appended = partition, appended
                    result.log_start_offset = partition.log.start_offset
                    succeeded.append(result)
    return topics, succeeded


def _duplicate_partitions(topics: list[ProduceRequestTopicData]) -> set[tuple[str | UUID | None, int]]:
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return set()
    counts = Counter((topic.name or topic.topic_id, data.index) for topic in topics for data in topic.partition_data)
    return {key for key, count in counts.items() if count > 1}


def _find_writable_partition(
    broker: Broker, session: RequestContext, name: str | None, topic_id: UUID | None, index: int
) -> Partition:
    name = topic_name(broker, name, topic_id)
    if name is None:
        raise UnknownTopicIdError(f"no topic has the id {topic_id}")
    if is_internal(name) and session.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"{name} is internal: clients must not write to it")
    return find_partition(broker, name, index, topic_id)


async def _validate_batches(
    broker: Broker, partition: Partition, request: ProduceRequest, data: ProduceRequestPartitionData, api_version: int
) -> tuple[list[Batch], int]:
    """Returns the validated batches and their append time. NO_TIMESTAMP means to keep the producer's timestamps."""
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcksError(f"acks must be -1, 0 or 1, not {request.acks}")
    settings = partition.log.settings

    def validate_now() -> tuple[list[Batch], int]:
        now_ms = broker.platform.clock.wall_ms()
        return validate(data.records or b"", settings, now_ms=now_ms, api_version=api_version), now_ms

    batches, now_ms = await broker.cpu_budget.run(validate_now) if may_recompress(settings) else validate_now()
    if batches[0].is_transactional:
        # Every transactional batch is rejected, because there is no transaction coordinator.
        if request.transactional_id is None:
            raise TransactionalIdAuthorizationError("a transactional batch needs a transactional id")
        raise InvalidTransactionStateError("no transaction is open: transactions are not supported")
    return batches, now_ms if settings.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP


async def _wait_until_committed(results: Sequence[_PartitionResult], timeout_ms: int) -> None:
    """Waits until all records are committed. Partitions that are not committed at the deadline fail."""
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
        for result in results:
            partition, appended = result.partition, result.appended
            assert partition is not None
            assert appended is not None
            try:
                current = partition.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
                if current is not None:
                    if timer is None:
                        timer = loop.call_later(max(timeout_ms, 0) / 1000, fail_on_timeout)
                    if is_timed_out:
                        fail_on_timeout()
                    await current
            except MoldauError as error:
                result.fail(error)
    finally:
        if timer is not None:
            timer.cancel()


def _check_leases(results: Sequence[_PartitionResult]) -> None:
    """Fails the partitions whose lease expired while the request waited for other partitions."""
    for result in results:
        if result.error is None and result.partition is not None:
            try:
                result.partition.check_lease()
            except MoldauError as error:
                result.fail(error)


def _response(topics: list[_TopicResult], session: RequestContext, broker: Broker) -> ProduceResponse:
    responses: list[ProduceResponseTopic] = []
    leaders = []
    for topic in topics:
        partitions = []
        for result in topic.partitions:
            partition = _partition_response(result)
            partitions.append(partition)
            if result.error is not None:
                name = topic_name(broker, topic.name, topic.topic_id)
                leader = current_leader(broker, name, result.index, result.error)
                partition["current_leader"] = leader
                leaders.append(leader)
        responses.append({"name": topic.name, "topic_id": topic.topic_id, "partition_responses": partitions})
    return {"responses": responses, "node_endpoints": node_endpoints(broker, session.connection.listener, leaders)}


def _partition_response(result: _PartitionResult) -> ProduceResponsePartition:
    if result.error is not None:
        record_errors: list[ProduceResponseBatchIndexAndErrorMessage] = []
        if isinstance(result.error, InvalidRecordError) and result.error.record_index is not None:
            message = error_message(result.error)
            record_errors = [{"batch_index": result.error.record_index, "batch_index_error_message": message}]
        return {
            "index": result.index,
            "error_code": error_code(result.error),
            "base_offset": -1,
            "record_errors": record_errors,
            "error_message": error_message(result.error),
        }
    assert result.appended is not None
    return {
        "index": result.index,
        "base_offset": result.appended.base_offset,
        "log_append_time": result.appended.append_time_ms,
        "log_start_offset": result.log_start_offset,
    }


def _close_on_error(topics: list[_TopicResult]) -> None:
    for topic in topics:
        for result in topic.partitions:
            if result.error is not None:
                raise CloseConnectionError(
                    f"produce with acks=0 to {topic.name}-{result.index} failed with error {error_code(result.error)}"
                )
