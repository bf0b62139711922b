"""Metadata: the brokers a client can reach and the partitions, leaders and ids of topics.

Asked for topics that do not exist it creates them, where broker and client both allow it, and answers when
they are ready. Where the controller cannot be asked for that, a topic has no leader yet, and clients ask again.
In version 0 an empty list asks for all topics, later null does; ids can be asked for from version 10 (12 to be
useful); 4 brought the choice of not creating, 6 a code for leaders that the caller's listener does not reach.
"""

from typing import Any, NamedTuple
from uuid import UUID

from moldau.controller.names import is_internal, validate_topic_name
from moldau.controller.requests import NewTopic
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
from moldau.groups.topic import OFFSETS_TOPIC
from moldau.metadata.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.server.topology import (
    controller_as_told,
    cut_off,
    describe_partition,
    has_listener,
    reachable_brokers,
    reachable_ids,
)
from moldau.wire.api_keys import ApiKey

TOPIC_ID_VERSION = 12
"""The first version in which topics can be asked for by id, and in which an answer may lack the name."""
LISTENER_VERSION = 6
NO_CONTROLLER = (NotControllerError, PeerUnreachableError, RequestTimedOutError)


class _Asker(NamedTuple):
    """What an answer depends on besides the cluster."""

    version: int
    listener: str
    reachable: frozenset[int]
    """The brokers that can be talked to on the listener."""
    operations: int
    """To be told for each topic."""
    not_leading: int | None


@handles(ApiKey.METADATA, versions=(0, 13))
async def metadata(request: Any, session: Session, broker: Broker) -> Any:
    asked = None if request.topics is None else _distinct(request.topics)
    if session.api_version == 0 and not asked:
        asked = None
    errors: dict[str, MoldauError] = {}
    if (
        asked
        and request.get("allow_auto_topic_creation", True)
        and broker.settings.broker.auto_create_topics_enable
    ):
        errors = await _create_missing([topic.name for topic in asked if topic.get("name")], broker)
    image, listener = broker.metadata.image, session.connection.listener
    operations = TOPIC_OPERATIONS if request.get("include_topic_authorized_operations", False) else NOT_ASKED
    reachable = reachable_ids(image, listener)
    asker = _Asker(session.api_version, listener, reachable, operations, cut_off(broker))
    if asked is None:
        topics = [_topic(topic, image, asker) for _, topic in sorted(image.topics.items())]
    else:
        topics = [_asked_topic(topic, image, asker, errors) for topic in asked]
    cluster_asked = request.get("include_cluster_authorized_operations", False)
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
            for each, endpoint in reachable_brokers(image, listener)
        ],
        "cluster_id": image.cluster_id,
        "controller_id": controller_as_told(image, listener, broker.broker_id),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if cluster_asked else NOT_ASKED,
        "error_code": 0,
    }


def _distinct(topics: list[Any]) -> list[Any]:
    """Each topic once, or a small request could ask for a huge answer."""
    return list({(topic.get("name"), topic.get("topic_id")): topic for topic in topics}.values())


async def _create_missing(names: list[str], broker: Broker) -> dict[str, MoldauError]:
    """Creates what is missing; gives the reasons why some could not be."""
    topics = broker.metadata.image.topics
    missing = {name: None for name in names if name not in topics and not is_internal(name)}
    errors: dict[str, MoldauError] = {}
    if OFFSETS_TOPIC in names and OFFSETS_TOPIC not in topics:
        try:
            await broker.groups.ensure_topic()
        except MoldauError as error:
            errors[OFFSETS_TOPIC] = error
    wanted = []
    for name in missing:
        try:
            validate_topic_name(name)
        except InvalidTopicError as error:
            errors[name] = error
        else:
            wanted.append(NewTopic(name))
    if wanted:
        try:
            results = await broker.gateway.create_topics(wanted)
        except MoldauError as error:
            return errors | {topic.name: error for topic in wanted}
        for created in results:
            # Somebody else may have asked for it at the same moment.
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                errors[created.name] = created.error
    return errors


def _asked_topic(
    asked: Any, image: ClusterImage, asker: _Asker, errors: dict[str, MoldauError]
) -> dict[str, Any]:
    """A topic by its id, or by its name where it is asked for without one."""
    knows_ids = asker.version >= TOPIC_ID_VERSION
    name: str | None = asked.get("name")
    topic_id: UUID | None = asked.get("topic_id")
    if topic_id is not None:
        topic = image.topic_by_id(topic_id) if knows_ids else None
    else:
        topic = None if name is None else image.topics.get(name)
    if topic is not None:
        return _topic(topic, image, asker)
    return {
        "error_code": _code(_why_not(name, topic_id, knows_ids, errors)),
        "name": name if knows_ids else name or "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NOT_ASKED,
    }


def _code(error: MoldauError) -> int:
    return int(ErrorCode.leader_not_available) if isinstance(error, NO_CONTROLLER) else error_code(error)


def _why_not(
    name: str | None, topic_id: UUID | None, knows_ids: bool, errors: dict[str, MoldauError]
) -> MoldauError:
    if topic_id is not None and knows_ids:
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


def _topic(topic: TopicImage, image: ClusterImage, asker: _Asker) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [_partition(partition, image, asker) for partition in topic.partitions],
        "topic_authorized_operations": asker.operations,
    }


def _partition(partition: PartitionImage, image: ClusterImage, asker: _Asker) -> dict[str, Any]:
    tree = describe_partition(partition, asker.reachable, not_leading=asker.not_leading)
    if tree["leader_id"] == NO_LEADER:
        leads_elsewhere = partition.leader in image.brokers and not has_listener(
            partition.leader, image, asker.listener
        )
        tree["error_code"] = int(
            ErrorCode.listener_not_found
            if leads_elsewhere and asker.version >= LISTENER_VERSION
            else ErrorCode.leader_not_available
        )
    return tree
