"""Produce: appends record batches and responds as `acks` requires. Each partition succeeds or fails independently.

- acks 0: there is no response. An error closes the connection, because it cannot be reported otherwise.
- acks 1: responds after the append.
- acks -1 (all): responds when the high watermark has passed the records. Then every in-sync replica has flushed them.

The API is pipelined: when the records of a request are in the log, the next Produce request of its connection starts.
So requests append in the order of arrival, and many requests can share one fsync.

Versions 0-2 are advertised but not served. They are advertised because old releases of librdkafka compress only if the
broker advertises these versions. 7 added zstd, 8 errors of single records, 9 the flexible encoding, 10 the current
leader and its address, 11 the error TRANSACTION_ABORTABLE, 12 partitions that are added to the transaction by this
request (TV2), 13 topic ids instead of names.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from moldau.controller.topic_names import is_internal
from moldau.error_codes import error_code, error_message
from moldau.errors import (
    CorruptRecordError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    MoldauError,
    NotLeaderOrFollowerError,
    RecordError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageError,
    TransactionalIdAuthorizationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionError,
)
from moldau.logs.producer_state import TransactionOwner
from moldau.metadata.image import MetadataImage
from moldau.network.connection import CloseConnectionError
from moldau.partitions.partition import LogAppendInfo, Partition
from moldau.records.batch import NO_TIMESTAMP, Batch, is_transactional
from moldau.records.batch_builder import with_append_time
from moldau.records.validator import RECORD_ERRORS_MAX, check_header, must_decode, parse_batch, validate_records
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import current_leader, find_partition, node_endpoints, topic_name
from moldau.server.transaction_verification import BatchVerification, TransactionalBatch
from moldau.transactions.transaction_metadata import TopicPartition
from moldau.wire.messages import (
    ProduceRequest,
    ProduceRequestTopicData,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

ACKS_ALL, ACKS_NONE = -1, 0
ERRORS_WITHOUT_LOG_START = (
    CorruptRecordError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    StorageError,
    UnsupportedCompressionError,
)
"""The errors of an append after which Kafka does not return the log start offset."""
ADMIN_CLIENT_ID = "__admin_client"
"""The client id of Kafka's own tools, which may write to internal topics."""


ERRORS_NOT_COUNTED = (
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
    RecordTooLargeError,
    CorruptRecordError,
    StorageError,
)
"""Errors that are no failed requests in the metrics, as in Kafka: clients cause them, or expect them."""


@dataclass(slots=True, eq=False)
class _PartitionResult:
    """The outcome for one partition of the request."""

    index: int
    partition: Partition | None = None
    appended: LogAppendInfo | None = None
    log_start_offset: int = -1
    """The start of the log; -1 if the request did not reach the log, or after an error of ERRORS_WITHOUT_LOG_START."""
    error: MoldauError | None = None

    def fail(self, error: MoldauError) -> None:
        # Remove the traceback, because it would keep the request frame in memory while other partitions are pending.
        self.error = error.with_traceback(None)
        if self.appended is None and isinstance(error, ERRORS_WITHOUT_LOG_START):
            self.log_start_offset = -1

    @property
    def record_errors(self) -> Sequence[RecordError]:
        return self.error.record_errors if isinstance(self.error, InvalidRecordError) else ()


class _TopicResult(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[_PartitionResult]


@handles(versions=(3, 13), advertised_min_version=0, pipelined=True)
async def produce(request: ProduceRequest, session: RequestContext, broker: Broker) -> ProduceResponse | None:
    acks, timeout_ms = request.acks, request.timeout
    topics, appended = await _append(request, session, broker)
    if acks == ACKS_NONE:
        # Close the connection before the release of the frame, because the release lets the next request start.
        _close_on_error(topics)
    # Release the frame before waiting for followers, because their fetch requests need memory from the same pool.
    del request
    session.release()
    if acks == ACKS_ALL and appended:
        await _wait_until_committed(appended, timeout_ms)
    else:
        _note_unflushed(appended, session)
    if acks == ACKS_NONE:
        return None
    if broker.lifecycle.is_handing_over and _has_errors(topics):
        # The response may name new leaders, which may not know yet that they lead.
        await broker.lifecycle.wait_for_handover()
    # Check the leases last, because they may expire during each of the waits above.
    _check_leases(appended)
    return _response(topics, session, broker)


async def _append(
    request: ProduceRequest, session: RequestContext, broker: Broker
) -> tuple[list[_TopicResult], list[_PartitionResult]]:
    """Appends the batches. Returns the results of all partitions, and those of the partitions without an error."""
    if broker.availability.suspected:
        # A client may know the next leader, which is this broker, a moment before this broker knows it.
        await broker.availability.wait_for_successors(partial(_leaders, request.topic_data))
    if not _has_transactional_batch(request.topic_data):
        return await _append_batches(request, session, broker)
    if request.transactional_id is None:
        error = TransactionalIdAuthorizationError("a transactional batch needs a transactional id")
        return _fail_all(request.topic_data, error), []
    owner = TransactionOwner(request.transactional_id, session.client_id or "", session.client_host)
    verification = BatchVerification(_transactional_batches(request, session, broker), owner)
    try:
        await verification.run(broker.transaction_verifier, broker.platform.clock, session.api_version)
        return await _append_batches(request, session, broker, verification)
    except InvalidProducerIdMappingError as error:
        return _fail_all(request.topic_data, error), []
    finally:
        verification.end()


async def _append_batches(
    request: ProduceRequest, session: RequestContext, broker: Broker, verification: BatchVerification | None = None
) -> tuple[list[_TopicResult], list[_PartitionResult]]:
    topics: list[_TopicResult] = []
    succeeded: list[_PartitionResult] = []
    record_errors_left = RECORD_ERRORS_MAX
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
                if request.acks not in (-1, 0, 1):
                    raise InvalidRequiredAcksError(f"acks must be -1, 0 or 1, not {request.acks}")
                batch = parse_batch(data.records or b"")
                # Check this before the content of the batch, as in Kafka, so that the client learns of the leader.
                try:
                    partition.require_leader()
                except NotLeaderOrFollowerError as error:
                    partition.note_rejected(batch, error)
                    raise
                guard = None
                if verification is not None and batch.is_transactional:
                    guard = verification.guard(partition)
                result.log_start_offset = partition.log.start_offset
                batch, append_time = await _validate_batch(
                    broker, partition, batch, session.api_version, record_errors_left
                )
                appended = await partition.append(
                    [batch], append_time, acks_all=request.acks == ACKS_ALL, verification=guard
                )
            except MoldauError as error:
                result.fail(error)
                record_errors_left -= len(result.record_errors)
                _count_failed(broker, name, topic_id, error)
            else:
                result.partition, result.appended = partition, appended
                succeeded.append(result)
                metrics = broker.topic_metrics.of(partition.name.topic)
                metrics.totalproducerequests += 1
                metrics.messagesin += appended.next_offset - appended.base_offset
                metrics.bytesin += batch.size
    return topics, succeeded


def _count_failed(broker: Broker, name: str | None, topic_id: UUID | None, error: MoldauError) -> None:
    topic = topic_name(broker, name, topic_id)
    # Topics that do not exist are not counted, because clients can invent any number of names.
    if topic is not None and topic in broker.metadata.image.topics:
        metrics = broker.topic_metrics.of(topic)
        metrics.totalproducerequests += 1
        metrics.failedproducerequests += not isinstance(error, ERRORS_NOT_COUNTED)


def _has_transactional_batch(topics: Sequence[ProduceRequestTopicData]) -> bool:
    for topic in topics:
        for data in topic.partition_data:
            if data.records is not None and is_transactional(data.records):
                return True
    return False


def _transactional_batches(
    request: ProduceRequest, session: RequestContext, broker: Broker
) -> dict[TopicPartition, TransactionalBatch]:
    """Returns the transactional batches, without those that cannot be appended anyway."""
    batches: dict[TopicPartition, TransactionalBatch] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                partition = _find_writable_partition(broker, session, topic.name, topic.topic_id, data.index)
                batch = parse_batch(data.records or b"")
            except MoldauError:
                # `_append_batches` reports this error.
                continue
            if batch.is_transactional and batch.producer_id >= 0:
                batches[partition.name] = TransactionalBatch(partition, batch)
    return batches


def _fail_all(topics: Sequence[ProduceRequestTopicData], error: MoldauError) -> list[_TopicResult]:
    failed = []
    for topic in topics:
        results = [_PartitionResult(data.index) for data in topic.partition_data]
        for result in results:
            result.fail(error)
        failed.append(_TopicResult(topic.name, topic.topic_id, results))
    return failed


def _note_unflushed(appended: Sequence[_PartitionResult], session: RequestContext) -> None:
    """Makes the next request of the connection that is not a Produce wait until these records are flushed."""
    for result in appended:
        assert result.partition is not None
        session.connection.unflushed[result.partition.name] = None


def _leaders(topics: Sequence[ProduceRequestTopicData], image: MetadataImage) -> set[int]:
    """Returns the leaders of the partitions in the request."""
    leaders = set()
    for topic in topics:
        found = image.topics.get(topic.name or "") if topic.topic_id is None else image.topic_by_id(topic.topic_id)
        if found is not None:
            indexes = {data.index for data in topic.partition_data}
            leaders |= {partition.leader for partition in found.partitions if partition.index in indexes}
    return leaders


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


async def _validate_batch(
    broker: Broker, partition: Partition, batch: Batch, api_version: int, record_errors_max: int
) -> tuple[Batch, int]:
    """Returns the validated batch and its append time. NO_TIMESTAMP means to keep the producer's timestamps."""
    settings = partition.log.settings
    check_header(batch, settings, api_version=api_version)
    now_ms = broker.platform.clock.wall_ms()
    if must_decode(batch, settings, now_ms):

        def validate_now() -> tuple[Batch, int]:
            now_ms = broker.platform.clock.wall_ms()
            return validate_records(
                batch, settings, partition.name, now_ms=now_ms, record_errors_max=record_errors_max
            ), now_ms

        batch, now_ms = await broker.cpu_budget.run(validate_now)
    if settings.message_timestamp_type == "LogAppendTime":
        return with_append_time(batch, now_ms), now_ms
    return batch, NO_TIMESTAMP


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
    appended = result.appended
    if result.error is None:
        assert appended is not None
        return {
            "index": result.index,
            "base_offset": appended.base_offset,
            "log_append_time": appended.append_time_ms,
            "log_start_offset": result.log_start_offset,
        }
    return {
        "index": result.index,
        "error_code": error_code(result.error),
        # As in Kafka, records that were appended but not committed have offsets.
        "base_offset": -1 if appended is None else appended.base_offset,
        "log_append_time": NO_TIMESTAMP if appended is None else appended.append_time_ms,
        "log_start_offset": result.log_start_offset,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": message} for index, message in result.record_errors
        ],
        "error_message": error_message(result.error),
    }


def _has_errors(topics: list[_TopicResult]) -> bool:
    return any(result.error is not None for topic in topics for result in topic.partitions)


def _close_on_error(topics: list[_TopicResult]) -> None:
    for topic in topics:
        for result in topic.partitions:
            if result.error is not None:
                raise CloseConnectionError(
                    f"produce with acks=0 to {topic.name}-{result.index} failed with error {error_code(result.error)}"
                )
