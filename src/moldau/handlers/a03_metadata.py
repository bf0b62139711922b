"""Metadata: the brokers a client can reach and the partitions, leaders and ids of topics.

Asked for topics that do not exist it creates them, where broker and client both allow it, and answers when
they are ready. Where the controller cannot be asked for that, a topic has no leader yet, and clients ask again.
In version 0 an empty list asks for all topics, later null does; ids can be asked for from version 10 (12 to be
useful); 4 brought the choice of not creating, 6 a code for leaders that the caller's listener does not reach.
"""

from typing import Any, NamedTuple
from uuid import UUID

from moldau.controller.requests import NewTopic
from moldau.controller.topic_names import is_internal, validate_topic_name
from moldau.errors import (
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration, TopicImage
from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from moldau.server.broker import Broker
from moldau.server.cluster_view import (
    advertised_controller_id,
    broker_without_lease,
    describe_partition,
    has_listener,
    reachable_brokers,
    reachable_ids,
)
from moldau.server.errors import ErrorCode, error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

TOPIC_ID_VERSION = 12
"""The first version in which topics can be asked for by id, and in which an answer may lack the name."""
LISTENER_VERSION = 6
CONTROLLER_UNAVAILABLE = (NotControllerError, PeerUnreachableError, RequestTimedOutError)


class _View(NamedTuple):
    """What an answer depends on besides the cluster."""

    version: int
    listener: str
    reachable: frozenset[int]
    """The brokers that can be talked to on the listener."""
    operations: int
    """To be told for each topic."""
    excluded_leader_id: int | None


@handles(ApiKey.METADATA, versions=(0, 13))
async def metadata(request: Any, session: Session, broker: Broker) -> Any:
    requested = None if request.topics is None else _deduplicate(request.topics)
    if session.api_version == 0 and not requested:
        requested = None
    errors: dict[str, MoldauError] = {}
    if (
        requested
        and request.get("allow_auto_topic_creation", True)
        and broker.settings.broker.auto_create_topics_enable
    ):
        errors = await _auto_create_topics([topic.name for topic in requested if topic.get("name")], broker)
    image, listener = broker.metadata.image, session.connection.listener
    operations = (
        TOPIC_OPERATIONS if request.get("include_topic_authorized_operations", False) else NOT_REQUESTED
    )
    reachable = reachable_ids(image, listener)
    view = _View(session.api_version, listener, reachable, operations, broker_without_lease(broker))
    if requested is None:
        topics = [_topic(topic, image, view) for _, topic in sorted(image.topics.items())]
    else:
        topics = [_requested_topic(topic, image, view, errors) for topic in requested]
    include_cluster_operations = request.get("include_cluster_authorized_operations", False)
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
            for each, endpoint in reachable_brokers(image, listener)
        ],
        "cluster_id": image.cluster_id,
        "controller_id": advertised_controller_id(image, listener, broker.broker_id),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if include_cluster_operations else NOT_REQUESTED,
        "error_code": 0,
    }


def _deduplicate(topics: list[Any]) -> list[Any]:
    """Each topic once, or a small request could ask for a huge answer."""
    return list({(topic.get("name"), topic.get("topic_id")): topic for topic in topics}.values())


async def _auto_create_topics(names: list[str], broker: Broker) -> dict[str, MoldauError]:
    """Creates what is missing; gives the reasons why some could not be."""
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
            # Somebody else may have asked for it at the same moment.
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                errors[created.name] = created.error
    return errors


def _requested_topic(
    requested: Any, image: MetadataImage, view: _View, errors: dict[str, MoldauError]
) -> dict[str, Any]:
    """A topic by its id, or by its name where it is asked for without one."""
    supports_topic_ids = view.version >= TOPIC_ID_VERSION
    name: str | None = requested.get("name")
    topic_id: UUID | None = requested.get("topic_id")
    if topic_id is not None:
        topic = image.topic_by_id(topic_id) if supports_topic_ids else None
    else:
        topic = None if name is None else image.topics.get(name)
    if topic is not None:
        return _topic(topic, image, view)
    return {
        "error_code": _metadata_error_code(_lookup_error(name, topic_id, supports_topic_ids, errors)),
        "name": name if supports_topic_ids else name or "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NOT_REQUESTED,
    }


def _metadata_error_code(error: MoldauError) -> int:
    return (
        int(ErrorCode.leader_not_available)
        if isinstance(error, CONTROLLER_UNAVAILABLE)
        else error_code(error)
    )


def _lookup_error(
    name: str | None, topic_id: UUID | None, supports_topic_ids: bool, errors: dict[str, MoldauError]
) -> MoldauError:
    if topic_id is not None and supports_topic_ids:
        return UnknownTopicIdError("there is no topic with this id")
    if topic_id is not None or name is None:
        return InvalidRequestError("a topic is asked for by its name, or from version 12 on by its id")
    if name in errors:
        return errors[name]
    try:
        validate_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError(f"there is no topic {name}")


def _topic(topic: TopicImage, image: MetadataImage, view: _View) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [_partition(partition, image, view) for partition in topic.partitions],
        "topic_authorized_operations": view.operations,
    }


def _partition(partition: PartitionRegistration, image: MetadataImage, view: _View) -> dict[str, Any]:
    tree = describe_partition(partition, view.reachable, excluded_leader_id=view.excluded_leader_id)
    if tree["leader_id"] == NO_LEADER:
        is_unreachable = partition.leader in image.brokers and not has_listener(
            partition.leader, image, view.listener
        )
        tree["error_code"] = int(
            ErrorCode.listener_not_found
            if is_unreachable and view.version >= LISTENER_VERSION
            else ErrorCode.leader_not_available
        )
    return tree
