"""`/v1/topics/{topic}/records` and `/v1/topics/{topic}/partitions/{partition}/records`: produces records, and consumes
them by offset."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED, CompletedFetch
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import NO_LEADER, TopicInfo
from moldau.client.producer.partitioner import partition_of_key
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.client.record import ConsumerRecord, TopicPartition, decode_records
from moldau.error_statuses import UNAVAILABLE
from moldau.errors import CorruptRecordError
from moldau.http.body import json_body
from moldau.http.errors import RETRY_HEADERS
from moldau.http.v1.client import REQUEST_TIMEOUT_MS
from moldau.http.v1.errors import BODY_ERRORS, MULTI_STATUS, ErrorView, status_of, view_error
from moldau.http.v1.fields import (
    Body,
    Format,
    IsolationLevel,
    OffsetText,
    PartitionIndex,
    PartitionPath,
    TopicPath,
    View,
    WaitMs,
    request_body,
)
from moldau.http.v1.payloads import HeaderBody, Payload, RecordView, payload_bytes, record_size, write_records
from moldau.http.v1.state import State, missing_leader, missing_partition
from moldau.records.record import TIMESTAMP_MAX

PRODUCED_RECORDS_MAX = 10_000
SENDS_PER_ITERATION = 50
"""How many records a request gives to the producer before the node does other work."""
PRODUCE_TIMEOUT_MS = 30_000
"""How long a request may take after the producer was started. Records without a result may have been written."""
STOP_GRACE_S = 2.0
"""How long a stopping node waits for the acknowledgements of records that were sent before."""
RECORDS_MAX = 5_000
BYTES_MAX = 8 * 1024 * 1024
FETCH_WAIT_MS_MAX = 500
"""How long one fetch waits at the leader. A long poll is several of them."""

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1}

router = APIRouter(tags=["records"])


class ProducedRecordBody(Body):
    key: Payload | None = None
    value: Payload | None = None
    """The value; null is a tombstone."""
    headers: list[HeaderBody] = Field([], max_length=1_000, fail_fast=True)
    partition: PartitionIndex | None = None
    """The partition. By default the hash of the key selects it, as in Kafka's producers."""
    timestamp: Annotated[int, Field(ge=0, le=TIMESTAMP_MAX)] | None = None
    """Milliseconds since 1970; by default the current time."""


class ProduceRecordsBody(Body):
    records: list[ProducedRecordBody] = Field(min_length=1, max_length=PRODUCED_RECORDS_MAX)
    acks: Literal["all", -1, 0, 1] = "all"
    """Which replicas acknowledge a record: `all` in-sync replicas, only the leader (1), or none (0)."""


class ProducedRecordView(View):
    partition: int | None = None
    offset: int | None = None
    """The offset; null with acks 0."""
    timestamp: int | None = None
    error: ErrorView | None = None
    """Why the record was not written. The other fields are missing then."""


class ProducedRecords(View):
    records: list[ProducedRecordView]
    """One result for each record of the request, in the same order."""


class ConsumedRecords(View):
    records: list[RecordView]
    next_offset: int
    """The offset of the next request."""
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@router.post(
    "/topics/{topic}/records",
    summary="Produce records",
    response_model=ProducedRecords,
    response_model_exclude_unset=True,
    responses={
        MULTI_STATUS: {"model": ProducedRecords, "description": "Some records were written. The others have an error."},
        **BODY_ERRORS,
    },
    openapi_extra=request_body(
        ProduceRecordsBody,
        {
            "records": [
                {
                    "key": {"text": "customer-7"},
                    "value": {"json": {"total": 42}},
                    "headers": [{"name": "trace", "value": {"base64": "AAE="}}],
                },
                {"value": {"text": "hello"}, "partition": 0},
            ]
        },
    ),
)
async def produce(
    state: State,
    topic: TopicPath,
    body: Annotated[ProduceRecordsBody, Depends(json_body(ProduceRecordsBody, "records"))],
) -> Response:
    """Writes records. The status is 200 if all records were written, 207 if some were, and an error if none was."""
    info = await state.find_topic(topic)
    producer = await state.client.producer(_ACKS[body.acks])
    results = await state.until_stopping(_send_all(producer, info, body.records), STOP_GRACE_S)
    run = state.context.broker.cpu_budget.run
    views = ",".join([await run(partial(_write_result, each)) for each in results])
    errors = [each for each in results if isinstance(each, KafkaError)]
    if len(errors) < len(results):
        return _json_response(f'{{"records":[{views}]}}', MULTI_STATUS if errors else 200)
    return _json_response(f'{{"error":{json.dumps(view_error(errors[0]))},"records":[{views}]}}', status_of(errors[0]))


async def _send_all(
    producer: Producer, topic: TopicInfo, records: list[ProducedRecordBody]
) -> list[RecordMetadata | KafkaError]:
    """Returns the result of each record, after PRODUCE_TIMEOUT_MS at the latest."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    sent: list[asyncio.Future[RecordMetadata] | KafkaError] = []
    try:
        # Every record may wait for a full buffer.
        async with asyncio.timeout_at(started_s + REQUEST_TIMEOUT_MS / 1000):
            for record in records:
                try:
                    sent.append(await _send(producer, topic, record))
                except KafkaError as error:
                    sent.append(error)
                if len(sent) % SENDS_PER_ITERATION == 0:
                    await asyncio.sleep(0)
    except TimeoutError:
        late = RequestTimedOutError(f"{topic.name} did not accept all records in {REQUEST_TIMEOUT_MS} ms")
        sent += [late] * (len(records) - len(sent))
    pending = [each for each in sent if not isinstance(each, KafkaError)]
    if pending:
        await asyncio.wait(pending, timeout=started_s + PRODUCE_TIMEOUT_MS / 1000 - loop.time())
    return [each if isinstance(each, KafkaError) else _future_result(each) for each in sent]


async def _send(producer: Producer, topic: TopicInfo, record: ProducedRecordBody) -> "asyncio.Future[RecordMetadata]":
    key, index = payload_bytes(record.key), record.partition
    if index is None and key is not None:
        index = partition_of_key(key, len(topic.partitions))
    if index is not None:
        partition = topic.partition(index)
        if partition is None:
            raise missing_partition(topic.name, index)
        if partition.leader == NO_LEADER:
            # Otherwise the producer waits for a leader until its delivery timeout.
            raise missing_leader(topic.name, index)
    headers = [(each.name, payload_bytes(each.value)) for each in record.headers]
    return await producer.send(
        topic.name,
        payload_bytes(record.value),
        key=key,
        partition=index,
        timestamp_ms=record.timestamp,
        headers=headers,
    )


def _future_result(future: "asyncio.Future[RecordMetadata]") -> RecordMetadata | KafkaError:
    if not future.done():
        return RequestTimedOutError(f"no acknowledgement in {PRODUCE_TIMEOUT_MS} ms: the record may have been written")
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KafkaError):
        return error
    raise error


def _write_result(result: RecordMetadata | KafkaError) -> str:
    """Returns a ProducedRecordView as JSON."""
    if isinstance(result, KafkaError):
        return json.dumps({"error": view_error(result)})
    offset = result.offset if result.offset >= 0 else "null"
    return f'{{"partition":{result.partition},"offset":{offset},"timestamp":{result.timestamp}}}'


def _json_response(content: str, status: int) -> Response:
    headers = RETRY_HEADERS if status == UNAVAILABLE else None
    return Response(content, status, headers, media_type="application/json")


@router.get(
    "/topics/{topic}/partitions/{partition}/records",
    summary="Consume records by offset",
    response_model=ConsumedRecords,
)
async def consume(
    state: State,
    topic: TopicPath,
    partition: PartitionPath,
    offset: OffsetText = "earliest",
    max_records: Annotated[int, Query(ge=1, le=RECORDS_MAX)] = 500,
    max_bytes: Annotated[
        int, Query(ge=1, le=BYTES_MAX, description="The size of keys, values and headers. One record may be larger.")
    ] = 1024 * 1024,
    wait_ms: WaitMs = 500,
    isolation_level: IsolationLevel = "read_uncommitted",
    format: Format = "json",
) -> Response:
    """Returns records as soon as there is one, or none after `wait_ms`. The next request continues at `next_offset`."""
    source = await state.find_leader(topic, partition)
    cluster = await state.client.cluster()
    isolation = READ_COMMITTED if isolation_level == "read_committed" else READ_UNCOMMITTED
    reader = _PartitionReader(cluster, source, isolation, max_records, max_bytes)
    found = await state.until_stopping(reader.read(offset, wait_ms))
    written = await write_records(state.context.broker.cpu_budget, reader.records, format)
    content = (
        f'{{"records":{written},"next_offset":{reader.next_offset},'
        f'"log_start_offset":{found.log_start_offset},"high_watermark":{found.high_watermark},'
        f'"last_stable_offset":{found.last_stable_offset}}}'
    )
    return Response(content, media_type="application/json")


class LogOffsets(NamedTuple):
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


async def find_log_offsets(cluster: Cluster, source: TopicPartition) -> LogOffsets:
    """Returns the offsets of a partition, as its leader knows them."""
    start, stable, end = await asyncio.gather(
        list_offsets(cluster, {source: EARLIEST}, timeout_ms=REQUEST_TIMEOUT_MS),
        list_offsets(cluster, {source: LATEST}, isolation_level=READ_COMMITTED, timeout_ms=REQUEST_TIMEOUT_MS),
        list_offsets(cluster, {source: LATEST}, timeout_ms=REQUEST_TIMEOUT_MS),
    )
    return LogOffsets(start[source].offset, end[source].offset, stable[source].offset)


def resolve_offset(offset: str, log: LogOffsets, end: int, source: TopicPartition) -> int:
    """Returns the number of an offset. Raises KafkaError if it is not in the log."""
    if offset == "earliest":
        return log.log_start_offset
    if offset == "latest":
        return end
    number = int(offset)
    if not log.log_start_offset <= number <= log.high_watermark:
        raise KafkaError(
            ErrorCode.offset_out_of_range,
            f"offset {number} is not in {source}, which has offsets {log.log_start_offset} to {log.high_watermark}",
        )
    return number


class _PartitionReader:
    """Reads one partition until there is a record, or the time is over."""

    def __init__(
        self, cluster: Cluster, source: TopicPartition, isolation: int, records_max: int, bytes_max: int
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._isolation = isolation
        self._records_max = records_max
        self._bytes_max = bytes_max
        self.records: list[ConsumerRecord] = []
        self.next_offset = 0

    async def read(self, offset: str, wait_ms: int) -> LogOffsets:
        """Fills `records`, and returns the offsets of the partition."""
        log = await find_log_offsets(self._cluster, self._source)
        end = log.last_stable_offset if self._isolation == READ_COMMITTED else log.high_watermark
        self.next_offset = resolve_offset(offset, log, end, self._source)
        has_records = self.next_offset < end
        if not has_records and not wait_ms:
            return log
        # Records that exist are returned whatever `wait_ms` is.
        timeout_ms = max(wait_ms, REQUEST_TIMEOUT_MS) if has_records else wait_ms
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        async with Fetcher(
            self._cluster,
            max_wait_ms=min(FETCH_WAIT_MS_MAX, max(1, wait_ms)),
            max_bytes=self._bytes_max,
            partition_max_bytes=self._bytes_max,
            isolation_level=self._isolation,
        ) as fetcher:
            fetcher.assign({self._source: self.next_offset})
            while not self.records:
                remaining_ms = round((deadline - asyncio.get_running_loop().time()) * 1000)
                fetched = await fetcher.next(max(0, remaining_ms))
                for each in fetched:
                    log = LogOffsets(each.log_start_offset, each.high_watermark, each.last_stable_offset)
                    self._take(each)
                if not fetched and remaining_ms <= 0:
                    break
                if not self.records and self.next_offset >= end and not wait_ms:
                    # The rest of the log has no records, only markers of transactions.
                    break
        return log

    def _take(self, fetched: CompletedFetch) -> None:
        if fetched.error is not None:
            raise fetched.error
        size = 0
        try:
            for record in decode_fetch(fetched):
                size += record_size(record)
                if self.records and (size > self._bytes_max or len(self.records) >= self._records_max):
                    self.next_offset = record.offset
                    return
                self.records.append(record)
        except KafkaError:
            if not self.records:
                raise
            # The next request starts at the corrupt record and gets the error.
            self.next_offset = self.records[-1].offset + 1
            return
        self.next_offset = fetched.next_offset


def decode_fetch(fetched: CompletedFetch) -> Iterator[ConsumerRecord]:
    """Yields the records of a fetch. Raises KafkaError if one is corrupt."""
    try:
        for batch in fetched.batches:
            yield from decode_records(fetched.partition, batch, fetched.position)
    except CorruptRecordError as error:
        raise KafkaError(ErrorCode.corrupt_message, f"{fetched.partition}: {error}") from error
