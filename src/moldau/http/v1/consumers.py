"""`/v1/groups/{group}/consumers`: consumes topics as a member of a group, with commits.

A consumer lives on the node that created it. All its requests must go to that node.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import IllegalStateError
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.concurrency.tasks import cancel_and_wait
from moldau.http.body import json_body
from moldau.http.errors import HttpError
from moldau.http.v1.consumer_registry import ConsumerInstance
from moldau.http.v1.errors import BODY_ERRORS, CONFLICT
from moldau.http.v1.fields import (
    Body,
    Format,
    GroupPath,
    IsolationLevel,
    OffsetNumber,
    PartitionIndex,
    TopicName,
    View,
    WaitMs,
    request_body,
)
from moldau.http.v1.payloads import RecordView, write_records
from moldau.http.v1.state import State, V1State, wait_for_disconnect

POLL_RECORDS_MAX = 1_000

router = APIRouter(prefix="/groups/{group}/consumers", tags=["groups"])

ConsumerPath = Annotated[str, Path(min_length=1, max_length=64, examples=["5d5b9cf8-0e5b-4d0c-9a5e-3f8b2c1d0e9f"])]


class CreateConsumerBody(Body):
    topics: list[TopicName] = Field(min_length=1, max_length=100)
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where to start in partitions without a committed offset."""
    isolation_level: IsolationLevel = "read_uncommitted"
    idle_timeout_ms: Annotated[int, Field(ge=1_000, le=3_600_000)] = 300_000
    """The consumer is deleted after this time without a request."""


class CommittedOffsetBody(Body):
    topic: TopicName
    partition: PartitionIndex
    offset: OffsetNumber
    """The offset of the next record to consume."""


class CommitBody(Body):
    offsets: list[CommittedOffsetBody] | None = Field(None, min_length=1, max_length=10_000, fail_fast=True)
    """The offsets to commit; by default those after all records that polls have returned."""


class AssignedPartitionView(View):
    topic: str
    partition: int


class ConsumerView(View):
    consumer_id: str
    group: str
    node_id: int
    """The node on which the consumer lives."""
    topics: list[str]
    idle_timeout_ms: int
    assignment: list[AssignedPartitionView]


class PolledRecords(View):
    records: list[RecordView]


class CommittedOffsetView(View):
    topic: str
    partition: int
    offset: int


class CommittedOffsets(View):
    offsets: list[CommittedOffsetView]


@router.post(
    "",
    status_code=201,
    summary="Create a consumer",
    responses=BODY_ERRORS,
    openapi_extra=request_body(CreateConsumerBody, {"topics": ["orders"], "auto_offset_reset": "earliest"}),
)
async def create_consumer(
    state: State, group: GroupPath, body: Annotated[CreateConsumerBody, Depends(json_body(CreateConsumerBody))]
) -> ConsumerView:
    """Creates a consumer. It joins the group at its first poll."""
    for topic in dict.fromkeys(body.topics):
        await state.find_topic(topic)
    instance = await state.consumers.create(
        group,
        body.topics,
        auto_offset_reset=body.auto_offset_reset,
        isolation_level=body.isolation_level,
        idle_timeout_ms=body.idle_timeout_ms,
    )
    return _view(state, instance)


@router.get("/{consumer_id}", summary="Describe a consumer")
async def describe_consumer(state: State, group: GroupPath, consumer_id: ConsumerPath) -> ConsumerView:
    return _view(state, state.consumers.find(group, consumer_id))


@router.post("/{consumer_id}/poll", summary="Consume records", response_model=PolledRecords, responses=CONFLICT)
async def poll(
    request: Request,
    state: State,
    group: GroupPath,
    consumer_id: ConsumerPath,
    max_records: Annotated[int, Query(ge=1, le=POLL_RECORDS_MAX)] = 100,
    wait_ms: WaitMs = 1_000,
    format: Format = "json",
) -> Response:
    """Returns the next records of the assigned partitions, or none after `wait_ms`, for example while the group
    rebalances. If the client disconnects before, the next poll returns these records."""
    async with _use(state, group, consumer_id) as instance:
        if instance.is_polling:
            raise HttpError(409, f"another request is polling consumer {consumer_id}")
        instance.is_polling = True
        disconnected = asyncio.get_running_loop().create_task(wait_for_disconnect(request))
        try:
            records = await state.until_stopping(_poll(instance.consumer, wait_ms, max_records, disconnected))
            content = await write_records(state.context.broker.cpu_budget, records, format)
            if disconnected.done():
                _return_records(instance.consumer, records)
        finally:
            instance.is_polling = False
            await cancel_and_wait(disconnected)
    return Response(f'{{"records":{content}}}', media_type="application/json")


async def _poll(
    consumer: Consumer, wait_ms: int, records_max: int, disconnected: "asyncio.Future[Any]"
) -> list[ConsumerRecord]:
    """Returns no records if the client disconnects first."""
    poll: asyncio.Task[Any] = asyncio.get_running_loop().create_task(consumer.poll(wait_ms, records_max))
    try:
        await asyncio.wait([poll, disconnected], return_when=asyncio.FIRST_COMPLETED)
        records: list[ConsumerRecord] = poll.result() if poll.done() else []
        return records
    finally:
        await cancel_and_wait(poll)


def _return_records(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    """Lets the next poll return these records again, so that a commit without offsets does not skip them."""
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    for partition in consumer.assignment:
        if partition in first:
            consumer.seek(partition, first[partition])


@router.post(
    "/{consumer_id}/commit",
    summary="Commit offsets",
    responses={**CONFLICT, **BODY_ERRORS},
    openapi_extra=request_body(CommitBody, {"offsets": [{"topic": "orders", "partition": 0, "offset": 42}]}),
)
async def commit(
    state: State,
    group: GroupPath,
    consumer_id: ConsumerPath,
    body: Annotated[CommitBody, Depends(json_body(CommitBody))],
) -> CommittedOffsets:
    """Commits offsets of assigned partitions, and returns them. The status is 409 if the group has rebalanced without
    the consumer."""
    async with _use(state, group, consumer_id) as instance:
        if body.offsets is None:
            offsets = {each: at.offset for each, at in instance.consumer.consumed_offsets().items()}
        else:
            offsets = {TopicPartition(each.topic, each.partition): each.offset for each in body.offsets}
            missing = [str(each) for each in offsets if each not in instance.consumer.assignment]
            if missing:
                raise HttpError(409, f"not assigned to consumer {consumer_id}: {', '.join(missing)}")
        if offsets:
            await instance.consumer.commit(offsets)
    return CommittedOffsets(
        offsets=[
            CommittedOffsetView(topic=each.topic, partition=each.partition, offset=offset)
            for each, offset in offsets.items()
        ]
    )


@router.delete("/{consumer_id}", status_code=204, summary="Delete a consumer")
async def delete_consumer(state: State, group: GroupPath, consumer_id: ConsumerPath) -> Response:
    """Deletes the consumer, which leaves the group. Offsets that were not committed are not committed."""
    await state.consumers.remove(state.consumers.find(group, consumer_id))
    return Response(status_code=204)


@asynccontextmanager
async def _use(state: V1State, group: str, consumer_id: str) -> AsyncIterator[ConsumerInstance]:
    instance = state.consumers.find(group, consumer_id)
    state.consumers.begin_use(instance)
    try:
        yield instance
    except IllegalStateError:
        # The consumer was deleted during this request.
        state.consumers.find(group, consumer_id)
        raise
    finally:
        state.consumers.end_use(instance)


def _view(state: V1State, instance: ConsumerInstance) -> ConsumerView:
    return ConsumerView(
        consumer_id=instance.consumer_id,
        group=instance.group,
        node_id=state.context.broker.broker_id,
        topics=list(instance.topics),
        idle_timeout_ms=instance.idle_timeout_ms,
        assignment=[
            AssignedPartitionView(topic=each.topic, partition=each.partition)
            for each in sorted(instance.consumer.assignment)
        ],
    )
