"""Metadata: returns the brokers that a client can reach, and the partitions, leaders and ids of topics.

Missing topics are created first, if both the broker and the client allow it. The response waits until these topics are
ready, but not for long. If the controller cannot be reached, these topics get LEADER_NOT_AVAILABLE and clients retry.

Versions: in version 0 an empty list requests all topics, in later versions null. 4 added an option not to create
topics, 6 an error code for leaders that have no endpoint on the client's listener, 10 topic ids. Topics can be
requested by id since version 12.
"""

from typing import NamedTuple
from uuid import UUID

from moldau.controller.requests import NewTopic
from moldau.controller.topic_names import is_internal, validate_topic_name
from moldau.error_codes import ErrorCode, error_code
from moldau.errors import (
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownTopicIdError,
)
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration, TopicImage
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from moldau.server.cluster_view import (
    advertised_controller_id,
    broker_without_lease,
    describe_partition,
    has_listener,
    reachable_brokers,
    reachable_ids,
)
from moldau.server.partition_lookup import missing_topic_error
from moldau.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID_VERSION = 12
"""The first version in which clients can request topics by id. Its responses may have no topic name."""
LISTENER_VERSION = 6
CONTROLLER_UNAVAILABLE = (NotControllerError, PeerUnreachableError, RequestTimedOutError)


class _View(NamedTuple):
    """The parameters of the response, besides the metadata image."""

    version: int
    listener: str
    reachable: frozenset[int]
    """The ids of brokers that have an endpoint on the listener."""
    operations: int
    """The authorized operations that the response contains for each topic."""
    excluded_leader_id: int | None


@handles(versions=(0, 13))
async def metadata(request: MetadataRequest, session: RequestContext, broker: Broker) -> MetadataResponse:
    requested = None
    if request.topics is not None:
        # Describe each topic only once, so that a small request cannot cause a huge response.
        requested = list({(topic.name, topic.topic_id): topic for topic in request.topics}.values())
    if session.api_version == 0 and not requested:
        requested = None
    errors: dict[str, MoldauError] = {}
    if requested and request.allow_auto_topic_creation and broker.settings.broker.auto_create_topics_enable:
        errors = await _auto_create_topics([topic.name for topic in requested if topic.name], broker)
    image, listener = broker.metadata.image, session.connection.listener
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED
    reachable = reachable_ids(image, listener)
    view = _View(session.api_version, listener, reachable, operations, broker_without_lease(broker))
    if requested is None:
        topics = [_topic(topic, image, view) for _, topic in sorted(image.topics.items())]
    else:
        topics = [_requested_topic(topic, image, view, errors) for topic in requested]
    return {
        "brokers": [
            {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
            for each, endpoint in reachable_brokers(image, listener)
        ],
        "cluster_id": image.cluster_id,
        "controller_id": advertised_controller_id(image, listener, broker.broker_id),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    }


async def _auto_create_topics(names: list[str], broker: Broker) -> dict[str, MoldauError]:
    """Creates the topics that do not exist. Returns the errors of topics that could not be created."""
    topics = broker.metadata.image.topics
    missing = {name: None for name in names if name not in topics and not is_internal(name)}
    errors: dict[str, MoldauError] = {}
    if OFFSETS_TOPIC in names and OFFSETS_TOPIC not in topics:
        try:
            await broker.groups.ensure_topic()
        except MoldauError as error:
            errors[OFFSETS_TOPIC] = error
    new_topics = []
    for name in missing:
        try:
            validate_topic_name(name)
        except InvalidTopicError as error:
            errors[name] = error
        else:
            new_topics.append(NewTopic(name))
    if new_topics:
        try:
            results = await broker.controller_channel.create_topics(new_topics)
        except MoldauError as error:
            return errors | {topic.name: error for topic in new_topics}
        for created in results:
            # Ignore TopicExistsError, because another request may have created the topic at the same time.
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                errors[created.name] = created.error
    return errors


def _requested_topic(
    requested: MetadataRequestTopic, image: MetadataImage, view: _View, errors: dict[str, MoldauError]
) -> MetadataResponseTopic:
    """Describes a requested topic. Looks up the topic by id if the request has an id, otherwise by name."""
    supports_topic_ids = view.version >= TOPIC_ID_VERSION
    name, topic_id = requested.name, requested.topic_id
    if topic_id is not None:
        topic = image.topic_by_id(topic_id) if supports_topic_ids else None
    else:
        topic = None if name is None else image.topics.get(name)
    if topic is not None:
        return _topic(topic, image, view)
    error = _lookup_error(name, topic_id, supports_topic_ids, errors)
    is_unavailable = isinstance(error, CONTROLLER_UNAVAILABLE)
    return {
        "error_code": ErrorCode.leader_not_available if is_unavailable else error_code(error),
        "name": name if supports_topic_ids else name or "",
        "topic_id": topic_id,
    }


def _lookup_error(
    name: str | None, topic_id: UUID | None, supports_topic_ids: bool, errors: dict[str, MoldauError]
) -> MoldauError:
    if topic_id is not None and supports_topic_ids:
        return UnknownTopicIdError("no topic has this id")
    if topic_id is not None or name is None:
        return InvalidRequestError("a topic must be requested by name, or from version 12 on by id")
    return errors.get(name) or missing_topic_error(name)


def _topic(topic: TopicImage, image: MetadataImage, view: _View) -> MetadataResponseTopic:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [_partition(partition, image, view) for partition in topic.partitions],
        "topic_authorized_operations": view.operations,
    }


def _partition(partition: PartitionRegistration, image: MetadataImage, view: _View) -> MetadataResponsePartition:
    response = describe_partition(partition, view.reachable, excluded_leader_id=view.excluded_leader_id)
    if response["leader_id"] == NO_LEADER:
        is_unreachable = partition.leader in image.brokers and not has_listener(partition.leader, image, view.listener)
        response["error_code"] = (
            ErrorCode.listener_not_found
            if is_unreachable and view.version >= LISTENER_VERSION
            else ErrorCode.leader_not_available
        )
    return response
