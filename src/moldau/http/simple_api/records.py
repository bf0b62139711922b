"""`/data/v1`: produces one record and consumes records of one partition, on the leader of the partition."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from moldau.client.consumer.completed_fetch import READ_COMMITTED, parse_batches
from moldau.client.record import TopicPartition
from moldau.controller.messages import error_from_code
from moldau.errors import (
    CorruptRecordError,
    MoldauError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from moldau.handlers.a00_produce import ACKS_ALL, ACKS_NONE
from moldau.http.body import Context, RequestBody, body_schema, json_body
from moldau.http.context import HttpContext
from moldau.http.kafka_requests import execute
from moldau.http.simple_api.fields import Count, LastOffset, NodeId, Text
from moldau.http.simple_api.leadership import require_partition_leader, require_ready
from moldau.http.simple_api.topics import ERRORS
from moldau.logs.store import LogName
from moldau.network.connection import CloseConnectionError
from moldau.observe.logging import get_logger
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from moldau.server.fetch_session import FINAL_EPOCH, INVALID_SESSION_ID
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

PRODUCE_VERSION, FETCH_VERSION = 12, 12
PRODUCE_TIMEOUT_MS = 30_000
FETCH_BYTES_MAX = 1024 * 1024
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
"""A response has no further record after this many bytes of records, whatever `max_batch_size` is."""
RECORD_OVERHEAD_BYTES = 100
"""What a record counts besides its key and payload, because many small records also take memory and time."""
RECORDS_PER_ITERATION = 500
PARTITION_LENGTH_MAX = 10

log = get_logger("http")

router = APIRouter(prefix="/data/v1", tags=["simple"], dependencies=[Depends(require_ready)])


def _acks_text(value: Any) -> Any:
    """Accepts the numbers 0 and 1 besides the strings."""
    return str(value) if type(value) is int else value


class ProduceBody(RequestBody):
    topic_partition: Text
    payload: Text
    key: Text | None = None
    acks: Annotated[
        Literal["all", "1", "0"],
        BeforeValidator(_acks_text),
        WithJsonSchema({"anyOf": [{"enum": ["all", "1", "0"]}, {"enum": [1, 0]}]}),
    ] = "all"


class ConsumeBody(RequestBody):
    topic_partition: Text
    last_offset: LastOffset
    max_batch_size: Count
    follower_broker_id: NodeId | None = None
    """Accepted and ignored: brokers replicate with Kafka's Fetch requests."""


class RecordView(BaseModel):
    offset: int
    key: str | None
    payload: str | None


class ConsumedRecords(BaseModel):
    last_offset: int
    records: list[RecordView]


BODY_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON."},
    404: {"description": "The topic or the partition does not exist."},
    413: {"description": "The body or the record is too large."},
    422: {"description": "A field is unknown, missing or has a wrong type."},
    507: {"description": "The disk of the broker failed or is full."},
    **ERRORS,
}


@router.post(
    "/produce",
    status_code=204,
    responses=BODY_ERRORS,
    openapi_extra=body_schema(
        ProduceBody, {"topic_partition": "testtopic-1", "key": "msg1", "payload": "this is my message", "acks": "all"}
    ),
)
async def produce(context: Context, body: Annotated[ProduceBody, Depends(json_body(ProduceBody))]) -> Response:
    partition = parse_topic_partition(body.topic_partition)
    require_partition_leader(context, *partition)
    record = Record(
        timestamp=context.broker.platform.clock.wall_ms(),
        key=None if body.key is None else body.key.encode(),
        value=body.payload.encode(),
    )
    await _produce(context, partition, record, acks=ACKS_ALL if body.acks == "all" else int(body.acks))
    return Response(status_code=204)


@router.post(
    "/consume",
    response_model=ConsumedRecords,
    responses=BODY_ERRORS,
    openapi_extra=body_schema(
        ConsumeBody, {"topic_partition": "testtopic-1", "last_offset": -1, "max_batch_size": 100}
    ),
)
async def consume(context: Context, body: Annotated[ConsumeBody, Depends(json_body(ConsumeBody))]) -> Response:
    partition = parse_topic_partition(body.topic_partition)
    require_partition_leader(context, *partition)
    collector = RecordCollector(body.max_batch_size)
    next_offset = await _read(context, partition, body.last_offset + 1, collector)
    last_offset = collector.records[-1].offset if collector.records else body.last_offset
    if collector.is_full and not collector.records:
        # So many batches have no committed records that the next request must continue after them.
        last_offset = next_offset - 1
    parts = []
    for start in range(0, len(collector.records), RECORDS_PER_ITERATION):
        part = collector.records[start : start + RECORDS_PER_ITERATION]
        parts.append(await context.broker.cpu_budget.run(partial(_write_records, part)))
    content = f'{{"last_offset":{last_offset},"records":[{",".join(parts)}]}}'
    return Response(content, media_type="application/json")


def parse_topic_partition(text: str) -> LogName:
    """Parses the name of a topic, a dash and a partition that counts from 1. Returns Kafka's partition, from 0 on.

    The name ends at the last dash, because topics of Kafka clients may have dashes. Raises
    UnknownTopicOrPartitionError.
    """
    topic, dash, number = text.rpartition("-")
    is_number = number.isascii() and number.isdecimal() and len(number) <= PARTITION_LENGTH_MAX
    if not (dash and is_number) or int(number) < 1:
        raise UnknownTopicOrPartitionError(
            f"there is no partition {text[:300]}: use the name of the topic, a dash and a number from 1 on"
        )
    return LogName(topic, int(number) - 1)


async def _produce(context: HttpContext, partition: LogName, record: Record, *, acks: int) -> None:
    data = {"index": partition.partition, "records": build_batch([record])}
    tree = {
        "transactional_id": None,
        "acks": acks,
        "timeout": PRODUCE_TIMEOUT_MS,
        "topic_data": [{"name": partition.topic, "partition_data": [data]}],
    }
    try:
        response = await execute(context, ApiKey.PRODUCE, PRODUCE_VERSION, tree)
    except CloseConnectionError as error:
        # A producer with acks=0 does not want to know whether the record was stored.
        log.debug("a record was not stored", reason=str(error))
        return
    if acks != ACKS_NONE:
        [topic] = response["responses"]
        [result] = topic["partition_responses"]
        failure = result_error(result)
        if failure is not None:
            raise failure


def result_error(result: Any) -> MoldauError | None:
    """Returns the error of one partition in the response of a handler. It names the leader if the response does."""
    error = error_from_code(result.get("error_code", 0), result.get("error_message"))
    if isinstance(error, NotLeaderOrFollowerError) and result.get("current_leader"):
        error.leader_id = result["current_leader"]["leader_id"]
    return error


class RecordCollector:
    """Collects the records of a response until there are enough of them."""

    def __init__(self, count_max: int, bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._count_max = count_max
        self._bytes_left = bytes_max
        self.records: list[Record] = []

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._count_max or self._bytes_left <= 0

    def add(self, batch: Batch, offset: int) -> None:
        """Adds the records of a batch from `offset` on."""
        for record in iterate_records(batch):
            if self.is_full:
                return
            if record.offset >= offset:
                self.records.append(record)
                self._bytes_left -= RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")

    def skip(self, size: int) -> None:
        """Counts bytes of the log that have no committed records."""
        self._bytes_left -= size


async def _read(context: HttpContext, partition: LogName, offset: int, collector: RecordCollector) -> int:
    """Collects committed records from `offset` on. After a deletion of records, starts at the start of the log.

    Returns the offset after the batches that were read.
    """
    while not collector.is_full:
        response = await _fetch(context, partition, offset)
        error = result_error(response)
        if isinstance(error, OffsetOutOfRangeError):
            log_start_offset = response.get("log_start_offset", -1)
            if offset >= log_start_offset:
                break
            offset = log_start_offset
            continue
        if error is not None:
            raise error
        data = response["records"].read()
        next_offset = await _decode(context, partition, response, data, offset, collector)
        if next_offset == offset:
            break
        offset = next_offset
        if not collector.records:
            collector.skip(len(data))
    return offset


async def _decode(
    context: HttpContext, partition: LogName, response: Any, data: bytes, offset: int, collector: RecordCollector
) -> int:
    """Adds the records of a Fetch response to the collector. Returns the offset of the next fetch."""
    aborted = [Message(**each) for each in response.get("aborted_transactions") or ()]
    fetched = Message(records=memoryview(data), aborted_transactions=aborted)
    parsed = parse_batches(TopicPartition(*partition), fetched, offset, READ_COMMITTED)
    if parsed.error is not None:
        raise CorruptRecordError(str(parsed.error))
    for batch in parsed.batches:
        if collector.is_full:
            break
        # Decompression takes long, so it shares the event loop with other requests.
        await context.broker.cpu_budget.run(partial(collector.add, batch, offset))
    return parsed.next_offset


async def _fetch(context: HttpContext, partition: LogName, offset: int) -> Any:
    data = {"partition": partition.partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES_MAX}
    tree = {
        "replica_id": -1,
        "session_id": INVALID_SESSION_ID,
        "session_epoch": FINAL_EPOCH,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": FETCH_BYTES_MAX,
        "isolation_level": READ_COMMITTED,
        "topics": [{"topic": partition.topic, "partitions": [data]}],
        "forgotten_topics_data": [],
    }
    response = await execute(context, ApiKey.FETCH, FETCH_VERSION, tree)
    [topic] = response["responses"]
    [result] = topic["partitions"]
    return result


def _write_records(records: Sequence[Record]) -> str:
    """Returns the records as JSON objects with commas between them."""
    return ",".join(
        f'{{"offset":{each.offset},"key":{_write_text(each.key)},"payload":{_write_text(each.value)}}}'
        for each in records
    )


def _write_text(data: bytes | None) -> str:
    """Returns a key or payload as JSON. Bytes that are not UTF-8 become replacement characters."""
    return "null" if data is None else json.dumps(data.decode(errors="replace"), ensure_ascii=False)
