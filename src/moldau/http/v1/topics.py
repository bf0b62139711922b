"""`/v1/topics`: creates, lists, describes and deletes topics, and adds partitions."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from moldau.client.admin.requester import single_result
from moldau.client.admin.types import BROKER_DEFAULT, NewTopic
from moldau.client.net.metadata import TopicInfo
from moldau.controller.topic_names import require_user_topic
from moldau.http.body import json_body
from moldau.http.v1.errors import BODY_ERRORS, CONFLICT
from moldau.http.v1.fields import (
    CONFIGS_MAX,
    Body,
    ConfigCount,
    ConfigName,
    ConfigValue,
    TopicName,
    TopicPath,
    View,
    request_body,
)
from moldau.http.v1.state import State

PARTITIONS_MAX = 10_000
REPLICATION_FACTOR_MAX = 1_000

router = APIRouter(tags=["topics"])


class CreateTopicBody(Body):
    name: TopicName
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)] | None = None
    """The number of partitions; the default is num.partitions of the broker."""
    replication_factor: Annotated[int, Field(ge=1, le=REPLICATION_FACTOR_MAX)] | None = None
    """The number of replicas; the default is default.replication.factor of the broker."""
    configs: Annotated[dict[ConfigName, ConfigValue], ConfigCount] = Field({}, max_length=CONFIGS_MAX)
    validate_only: bool = False
    """Check the request without creating the topic."""


class CreatePartitionsBody(Body):
    count: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)]
    """The new number of partitions."""
    validate_only: bool = False


class CreatedTopicView(View):
    name: str
    topic_id: str | None
    partitions: int
    replication_factor: int
    validate_only: bool


class TopicSummaryView(View):
    name: str
    topic_id: str | None
    partitions: int
    replication_factor: int
    is_internal: bool


class TopicSummaries(View):
    topics: list[TopicSummaryView]


class PartitionLeaderView(View):
    partition: int
    leader: int | None
    """The broker id of the leader; null if there is none."""
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]


class TopicDescriptionView(View):
    name: str
    topic_id: str | None
    is_internal: bool
    partitions: list[PartitionLeaderView]


class PartitionCountView(View):
    name: str
    partitions: int
    validate_only: bool


@router.get("/topics", summary="List topics")
async def list_topics(
    state: State, internal: Annotated[bool, Query(description="Whether to list internal topics too.")] = False
) -> TopicSummaries:
    topics = await (await state.client.admin()).list_topics(internal=internal)
    return TopicSummaries(topics=[_summary(each) for each in topics])


@router.post(
    "/topics",
    status_code=201,
    summary="Create a topic",
    responses={**CONFLICT, **BODY_ERRORS},
    openapi_extra=request_body(
        CreateTopicBody, {"name": "orders", "partitions": 3, "configs": {"retention.ms": "60000"}}
    ),
)
async def create_topic(
    state: State, body: Annotated[CreateTopicBody, Depends(json_body(CreateTopicBody))]
) -> CreatedTopicView:
    require_user_topic(body.name)
    topic = NewTopic(
        body.name,
        BROKER_DEFAULT if body.partitions is None else body.partitions,
        BROKER_DEFAULT if body.replication_factor is None else body.replication_factor,
        body.configs,
    )
    admin = await state.client.admin()
    created = single_result(await admin.create_topics([topic], validate_only=body.validate_only))
    return CreatedTopicView(
        name=created.name,
        topic_id=None if created.topic_id is None else str(created.topic_id),
        partitions=created.partitions,
        replication_factor=created.replication_factor,
        validate_only=body.validate_only,
    )


@router.get("/topics/{topic}", summary="Describe a topic")
async def describe_topic(state: State, topic: TopicPath) -> TopicDescriptionView:
    found = await state.find_topic(topic)
    return TopicDescriptionView(
        name=found.name,
        topic_id=None if found.topic_id is None else str(found.topic_id),
        is_internal=found.is_internal,
        partitions=[
            PartitionLeaderView(
                partition=each.index,
                leader=None if each.leader < 0 else each.leader,
                leader_epoch=each.leader_epoch,
                replicas=list(each.replicas),
                isr=list(each.in_sync),
                offline_replicas=list(each.offline),
            )
            for each in found.partitions
        ],
    )


@router.delete("/topics/{topic}", status_code=204, summary="Delete a topic and its records")
async def delete_topic(state: State, topic: TopicPath) -> Response:
    await (await state.client.admin()).delete_topic(topic)
    return Response(status_code=204)


@router.post(
    "/topics/{topic}/partitions",
    summary="Add partitions",
    responses={**CONFLICT, **BODY_ERRORS},
    openapi_extra=request_body(CreatePartitionsBody, {"count": 6}),
)
async def create_partitions(
    state: State, topic: TopicPath, body: Annotated[CreatePartitionsBody, Depends(json_body(CreatePartitionsBody))]
) -> PartitionCountView:
    admin = await state.client.admin()
    single_result(await admin.create_partitions({topic: body.count}, validate_only=body.validate_only))
    return PartitionCountView(name=topic, partitions=body.count, validate_only=body.validate_only)


def _summary(topic: TopicInfo) -> TopicSummaryView:
    return TopicSummaryView(
        name=topic.name,
        topic_id=None if topic.topic_id is None else str(topic.topic_id),
        partitions=len(topic.partitions),
        replication_factor=max((len(each.replicas) for each in topic.partitions), default=0),
        is_internal=topic.is_internal,
    )
