"""`/admin/v1/topics`: creates, lists and deletes topics.

Topics that are created here have a replica on every broker, and the active controller leads them.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from moldau.controller.messages import error_from_code
from moldau.controller.placement import majority_of_brokers
from moldau.controller.requests import NewTopic
from moldau.controller.state import LEADER_FOLLOWS_CONTROLLER
from moldau.controller.topic_names import is_internal, require_user_topic, validate_topic_name
from moldau.errors import InvalidTopicError, TopicExistsError, UnknownTopicOrPartitionError
from moldau.http.body import Context, RequestBody, body_schema, json_body
from moldau.http.context import HttpContext
from moldau.http.errors import HttpError
from moldau.http.simple_api.fields import Count, Text
from moldau.http.simple_api.leadership import require_controller, require_ready
from moldau.metadata.image import TopicImage
from moldau.wire.api_keys import ApiKey

DELETE_TIMEOUT_MS = 30_000

router = APIRouter(
    prefix="/admin/v1/topics", tags=["simple"], dependencies=[Depends(require_ready), Depends(require_controller)]
)


class NewTopicBody(RequestBody):
    topic_name: Text
    partition_count: Count
    replication_factor: Count | None = None
    """Accepted and ignored: every broker has a replica."""


class PartitionView(BaseModel):
    id: str
    replica_brokers: list[str]


class TopicView(BaseModel):
    topic_name: str
    partitions: list[PartitionView]


class TopicList(BaseModel):
    topics: list[TopicView]


ERRORS: dict[int | str, dict[str, Any]] = {
    421: {"description": "This broker is not the leader."},
    503: {"description": "The node is not ready, or there is no leader."},
}


@router.post(
    "",
    status_code=201,
    responses={
        400: {"description": "The topic name is invalid."},
        409: {"description": "The topic exists."},
        413: {"description": "The body is too large."},
        422: {"description": "A field is unknown, missing or has a wrong type."},
        **ERRORS,
    },
    openapi_extra=body_schema(NewTopicBody, {"topic_name": "testtopic", "partition_count": 3}),
)
async def create_topic(context: Context, body: Annotated[NewTopicBody, Depends(json_body(NewTopicBody))]) -> TopicView:
    name = body.topic_name
    if "-" in name:
        raise InvalidTopicError(f"topic name {name} contains a dash")
    validate_topic_name(name)
    require_user_topic(name)
    broker = context.broker
    if name in broker.metadata.committed_image.topics:
        raise _exists(name)
    # Voters that have not joined yet also count, because they get replicas when they join.
    voters = {each.node_id for each in broker.quorum.voters}
    min_isr = majority_of_brokers(voters.union(broker.metadata.committed_image.brokers))
    configs = {LEADER_FOLLOWS_CONTROLLER: "true", "min.insync.replicas": str(min_isr)}
    new = NewTopic(name, body.partition_count, configs=configs)
    [created] = await broker.controller_channel.create_topics([new])
    if isinstance(created.error, TopicExistsError):
        raise _exists(name)
    if created.error is not None:
        raise created.error
    topic = broker.metadata.committed_image.topics.get(name)
    if topic is None:
        raise HttpError(503, f"topic {name} was created and deleted again")
    return topic_view(topic)


@router.get("", responses=ERRORS)
async def list_topics(context: Context) -> TopicList:
    topics = context.broker.metadata.committed_image.topics.values()
    return TopicList(topics=[topic_view(topic) for topic in topics if not is_internal(topic.name)])


@router.delete(
    "/{topic_name}", status_code=204, responses={404: {"description": "The topic does not exist."}, **ERRORS}
)
async def delete_topic(context: Context, topic_name: str) -> Response:
    topic = _find_topic(context, topic_name)
    tree = {"topics": [{"name": None, "topic_id": topic.topic_id}], "timeout": DELETE_TIMEOUT_MS}
    response = await context.broker.controller_channel.send(ApiKey.DELETE_TOPICS, 6, tree, DELETE_TIMEOUT_MS)
    [result] = response.responses
    raise_for_topic(result.error_code, result.error_message, topic_name)
    return Response(status_code=204)


def _find_topic(context: HttpContext, name: str) -> TopicImage:
    topic = context.broker.metadata.committed_image.topics.get(name)
    if topic is None or is_internal(name):
        raise _missing(name)
    return topic


def raise_for_topic(code: int, message: str | None, name: str) -> None:
    error = error_from_code(code, message)
    if isinstance(error, UnknownTopicOrPartitionError):
        raise _missing(name)
    if error is not None:
        raise error


def _exists(name: str) -> TopicExistsError:
    return TopicExistsError(f"topic {name} already exists")


def _missing(name: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"topic {name} does not exist")


def topic_view(topic: TopicImage) -> TopicView:
    return TopicView(
        topic_name=topic.name,
        partitions=[
            PartitionView(
                id=f"{topic.name}-{partition.index + 1}",
                replica_brokers=[str(each) for each in sorted(partition.replicas)],
            )
            for partition in topic.partitions
        ],
    )
