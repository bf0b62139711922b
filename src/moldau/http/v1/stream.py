"""`/v1/topics/{topic}/stream`: the records of a topic as server-sent events.

The id of an event has the last offset of each partition of the stream, first that of the event itself, for example
`0:17` or `0:17,1:4`. A client that sends it as Last-Event-ID continues after these offsets.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.concurrency.tasks import cancel_and_wait
from moldau.http.errors import HttpError
from moldau.http.v1.client import REQUEST_TIMEOUT_MS
from moldau.http.v1.errors import view_error
from moldau.http.v1.fields import Format, IsolationLevel, OffsetText, TopicPath
from moldau.http.v1.payloads import PayloadFormat, write_record
from moldau.http.v1.records import LogOffsets, decode_fetch, resolve_offset
from moldau.http.v1.state import STREAMS_MAX, State, V1State, missing_leader, missing_partition, wait_for_disconnect
from moldau.settings.registry import INT_MAX, LONG_MAX

KEEP_ALIVE_MS = 5_000
"""A comment is sent after this time without records, so that proxies do not close the connection."""
PARTITIONS_MAX = 64
"""The maximum number of partitions of one stream, because each event has the offsets of all of them."""
EVENTS_PER_CHUNK = 100
FETCH_BYTES_MAX = 1024 * 1024
DURATION_MS_MAX = 24 * 60 * 60 * 1000
EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "examples": ["0:17"]},
        "event": {"type": "string", "enum": ["message", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_EVENT_ID = re.compile(r"[0-9]{1,10}:-?[0-9]{1,19}(?:,[0-9]{1,10}:-?[0-9]{1,19})*", re.ASCII)
_LINE_END = re.compile("\r\n|\r|\n")

router = APIRouter(tags=["stream"])

Positions = dict[TopicPartition, int]
"""The next offset of each partition."""


class EventStream(StreamingResponse):
    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette would cancel the stream when the client disconnects, and with it the close of the fetcher. The
        # stream notices a disconnected client itself.
        await self.stream_response(send)


@router.get(
    "/topics/{topic}/stream",
    summary="Stream records as server-sent events",
    # A response class without a media type, because errors are JSON.
    response_class=Response,
    responses={
        200: {
            "description": "One event for each record, with the record as JSON in `data`. An event of the type `error` "
            "ends the stream.",
            "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
        }
    },
)
async def stream(
    request: Request,
    state: State,
    topic: TopicPath,
    partition: Annotated[int | None, Query(ge=0, le=INT_MAX, description="By default all partitions.")] = None,
    offset: OffsetText = "latest",
    isolation_level: IsolationLevel = "read_uncommitted",
    format: Format = "json",
    limit: Annotated[int | None, Query(ge=1, le=LONG_MAX, description="End after this many records.")] = None,
    timeout_ms: Annotated[
        int | None, Query(ge=0, le=DURATION_MS_MAX, description="End after this time, in milliseconds.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=4_000, description="Continue after this event.")] = None,
) -> Response:
    """Streams records until the client disconnects, the node stops, or `limit` or `timeout_ms` is reached."""
    if offset.isdecimal() and partition is None:
        raise _invalid("query", "offset", "an offset needs a partition")
    resumed = {} if not last_event_id else _parse_event_id(last_event_id)
    found = await state.find_topic(topic)
    indexes = [each.index for each in found.partitions] if partition is None else [partition]
    if len(indexes) > PARTITIONS_MAX:
        raise _invalid("query", "partition", f"the topic has more than {PARTITIONS_MAX} partitions: select one")
    for index in indexes:
        info = found.partition(index)
        if info is None:
            raise missing_partition(topic, index)
        if info.leader < 0:
            raise missing_leader(topic, index)
    if state.stream_count >= STREAMS_MAX:
        raise HttpError(503, f"this node already has {STREAMS_MAX} streams: close one, or use another node")
    cluster = await state.client.cluster()
    isolation = READ_COMMITTED if isolation_level == "read_committed" else READ_UNCOMMITTED
    partitions = [TopicPartition(topic, index) for index in indexes]
    positions = await state.until_stopping(_start_positions(cluster, partitions, offset, resumed, isolation))
    source = _EventSource(state, cluster, found.topic_id, positions, isolation, format, limit, timeout_ms)
    return EventStream(source.events(request), headers={"cache-control": "no-store"})


class _EventSource:
    def __init__(
        self,
        state: V1State,
        cluster: Cluster,
        topic_id: UUID | None,
        positions: Positions,
        isolation: int,
        form: PayloadFormat,
        limit: int | None,
        timeout_ms: int | None,
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._topic_id = topic_id
        self._positions = positions
        self._isolation = isolation
        self._form: PayloadFormat = form
        self._limit = limit
        self._timeout_ms = timeout_ms

    async def events(self, request: Request) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        ended = [loop.create_task(self._state.context.stopping.wait()), loop.create_task(wait_for_disconnect(request))]
        self._state.stream_count += 1
        fetcher = Fetcher(
            self._cluster,
            max_bytes=FETCH_BYTES_MAX,
            partition_max_bytes=FETCH_BYTES_MAX,
            isolation_level=self._isolation,
        )
        try:
            fetcher.assign(self._positions)
            yield ": connected\n\n"
            deadline = None if self._timeout_ms is None else loop.time() + self._timeout_ms / 1000
            while True:
                wait_ms = KEEP_ALIVE_MS
                if deadline is not None:
                    wait_ms = max(0, min(wait_ms, round((deadline - loop.time()) * 1000)))
                records = await self._fetch(fetcher, wait_ms, ended)
                if records is None:
                    return
                for start in range(0, len(records), EVENTS_PER_CHUNK):
                    yield "".join(self._event(each) for each in records[start : start + EVENTS_PER_CHUNK])
                if not records:
                    self._check_topic()
                    yield ": keep-alive\n\n"
                if self._limit == 0 or (deadline is not None and loop.time() >= deadline):
                    return
        except KafkaError as error:
            yield f"event: error\ndata: {json.dumps({'error': view_error(error)})}\n\n"
        finally:
            self._state.stream_count -= 1
            await cancel_and_wait(*ended)
            await fetcher.close()

    async def _fetch(
        self, fetcher: Fetcher, wait_ms: int, ended: "list[asyncio.Task[bool]]"
    ) -> list[ConsumerRecord] | None:
        """Returns the next records, [] after the time, and None if the stream has ended."""
        fetch = asyncio.get_running_loop().create_task(fetcher.next(wait_ms))
        try:
            await asyncio.wait([fetch, *ended], return_when=asyncio.FIRST_COMPLETED)
            if any(each.done() for each in ended):
                return None
            fetched = fetch.result()
        finally:
            await cancel_and_wait(fetch)
        records: list[ConsumerRecord] = []
        for each in fetched:
            if each.error is not None and each.error.code is ErrorCode.offset_out_of_range:
                # Retention has deleted the next records. The stream continues at the start of the log.
                found = await list_offsets(self._cluster, {each.partition: EARLIEST}, timeout_ms=REQUEST_TIMEOUT_MS)
                fetcher.seek(each.partition, found[each.partition].offset)
            elif each.error is not None:
                raise each.error
            records += decode_fetch(each)
        if self._limit is not None:
            records = records[: self._limit]
            self._limit -= len(records)
        return records

    def _check_topic(self) -> None:
        """Raises KafkaError if the topic was deleted. A consumer waits for a topic that may be created again."""
        name = next(iter(self._positions)).topic
        topic = self._state.context.broker.metadata.image.topics.get(name)
        if topic is None or topic.topic_id != self._topic_id:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {name} was deleted")

    def _event(self, record: ConsumerRecord) -> str:
        own = TopicPartition(record.topic, record.partition)
        self._positions[own] = record.offset + 1
        others = [each for each in self._positions if each != own]
        event_id = ",".join(f"{each.partition}:{self._positions[each] - 1}" for each in (own, *others))
        # JSON that was produced with line ends has them in its data.
        lines = _LINE_END.split(write_record(record, self._form))
        return f"id: {event_id}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


async def _start_positions(
    cluster: Cluster, partitions: list[TopicPartition], offset: str, resumed: Mapping[int, int], isolation: int
) -> Positions:
    """Returns where the stream starts. Raises KafkaError if an offset is not in the log."""
    start, end = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_ms=REQUEST_TIMEOUT_MS),
        list_offsets(
            cluster, dict.fromkeys(partitions, LATEST), isolation_level=isolation, timeout_ms=REQUEST_TIMEOUT_MS
        ),
    )
    positions: Positions = {}
    for each in partitions:
        log = LogOffsets(start[each].offset, end[each].offset, end[each].offset)
        if each.partition in resumed:
            # Records that were deleted in the meantime are skipped.
            positions[each] = min(max(resumed[each.partition], log.log_start_offset), log.high_watermark)
        else:
            positions[each] = resolve_offset(offset, log, log.high_watermark, each)
    return positions


def _parse_event_id(text: str) -> dict[int, int]:
    """Returns the next offset of each partition in the id of an event."""
    if _EVENT_ID.fullmatch(text) is None:
        raise _invalid("header", "Last-Event-ID", "the id of an event is partition:offset, with commas between several")
    pairs = (each.split(":") for each in text.split(","))
    return {int(partition): int(offset) + 1 for partition, offset in pairs}


def _invalid(place: str, field: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": (place, field), "msg": message}])
