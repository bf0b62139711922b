"""Metadata: returns the brokers that a client can reach, and the partitions, leaders and ids of topics.

Missing topics are created in the background, if both the broker and the client allow it. As in Kafka, the response
does not wait for that: these topics get UNKNOWN_TOPIC_OR_PARTITION, and clients retry.

If the process of a leader has ended, the response waits until the image has the next leader, but not for long.

Responses for many partitions are built a few at a time, so that other requests are served between them, and kept until
the metadata changes.

Versions: in version 0 an empty list requests all topics, in later versions null. 4 added an option not to create
topics, 6 an error code for leaders that have no endpoint on the client's listener, 10 topic ids. Topics can be
requested by id since version 12. Then the names in the same request are ignored.
"""

from collections.abc import Container, Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from moldau.controller.topic_names import is_internal
from moldau.error_codes import ErrorCode, error_code
from moldau.errors import InvalidRequestError, MoldauError
from moldau.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration, TopicImage
from moldau.server.api import Broker, EncodedResponse, RequestContext, handles
from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from moldau.server.cluster_view import (
    advertised_controller_id,
    describe_partition,
    has_listener,
    reachable_brokers,
    reachable_ids,
    unavailable_leaders,
)
from moldau.server.partition_lookup import missing_topic_error
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import encoder
from moldau.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID_VERSION = 12
"""The first version in which clients can request topics by id."""
LISTENER_VERSION = 6
LARGE_PARTITIONS_MIN = 100
"""The number of partitions from which a response is kept. Smaller ones take less than 0.3 ms."""


class _View(NamedTuple):
    """The parameters of the response, besides the metadata image."""

    version: int
    listener: str
    reachable: frozenset[int]
    """The ids of brokers that have an endpoint on the listener."""
    operations: int
    """The authorized operations that the response contains for each topic."""
    unavailable: Container[int]
    """The ids of brokers that must not be named as leaders."""


def error_response(request: MetadataRequest, version: int, error: MoldauError) -> MetadataResponse:
    code = error_code(error)
    topics: list[MetadataResponseTopic] = [
        {"error_code": code, "name": topic.name or "", "topic_id": topic.topic_id} for topic in request.topics or ()
    ]
    return {"topics": topics, "controller_id": -1}


@handles(versions=(0, 13), error_response=error_response)
async def metadata(
    request: MetadataRequest, session: RequestContext, broker: Broker
) -> MetadataResponse | EncodedResponse:
    requested = request.topics
    if session.api_version == 0 and not requested:
        requested = None
    await broker.availability.wait_for_successors(partial(_leaders, requested))
    if not _is_large(requested, broker.metadata.image):
        return _describe(request, requested, session, broker).response
    cached = _cached_response(request, requested, session, broker)
    if cached is not None:
        return cached
    return await broker.cpu_budget.run(lambda: _large_response(request, requested, session, broker))


def _is_large(requested: Sequence[MetadataRequestTopic] | None, image: MetadataImage) -> bool:
    """Returns whether the response has so many partitions that it is worth keeping."""
    topics = image.topics.values() if requested is None else _topics(requested, image)
    count = 0
    for topic in topics:
        count += 0 if topic is None else len(topic.partitions)
        if count >= LARGE_PARTITIONS_MIN:
            return True
    return False


def _large_response(
    request: MetadataRequest, requested: Sequence[MetadataRequestTopic] | None, session: RequestContext, broker: Broker
) -> EncodedResponse:
    """Returns the response of an equal request if that has been completed while this one was queued."""
    cached = _cached_response(request, requested, session, broker)
    if cached is not None:
        return cached
    image, key = broker.metadata.image, _cache_key(request, requested, session, broker)
    response, has_missing_topics = _describe(request, requested, session, broker)
    body = bytearray()
    encoder(ApiKey.METADATA, session.api_version, "response")(body, response)
    encoded = EncodedResponse(bytes(body))
    # Missing topics are not in the image, so requests for them must be handled one by one: each may create topics. And
    # the lease may have ended while the response was built, so that it is unknown for which key it is right.
    if not has_missing_topics and key == _cache_key(request, requested, session, broker):
        broker.metadata_cache.put(image, key, encoded.body)
    return encoded


def _cached_response(
    request: MetadataRequest, requested: Sequence[MetadataRequestTopic] | None, session: RequestContext, broker: Broker
) -> EncodedResponse | None:
    body = broker.metadata_cache.get(broker.metadata.image, _cache_key(request, requested, session, broker))
    return None if body is None else EncodedResponse(body)


def _cache_key(
    request: MetadataRequest, requested: Sequence[MetadataRequestTopic] | None, session: RequestContext, broker: Broker
) -> Hashable:
    """Returns everything that the response depends on besides the image."""
    return (
        session.api_version,
        session.connection.listener,
        None if requested is None else _requested_topics(requested),
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
        frozenset(unavailable_leaders(broker)),
        tuple(
            each.broker_id
            for each in broker.metadata.image.brokers.values()
            if each.fenced and broker.availability.is_listed(each)
        ),
    )


def _requested_topics(requested: Sequence[MetadataRequestTopic]) -> Hashable:
    """Returns each requested topic once, because a key must not be larger than what the response describes."""
    ids = tuple(dict.fromkeys(topic.topic_id for topic in requested if topic.topic_id is not None))
    return ids or tuple(dict.fromkeys(topic.name or "" for topic in requested))


class _Description(NamedTuple):
    response: MetadataResponse
    has_missing_topics: bool


def _describe(
    request: MetadataRequest, requested: Sequence[MetadataRequestTopic] | None, session: RequestContext, broker: Broker
) -> _Description:
    """Builds the response from the latest image, and starts to create missing topics if the request allows it."""
    image, listener = broker.metadata.image, session.connection.listener
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED
    reachable = reachable_ids(image, listener)
    view = _View(session.api_version, listener, reachable, operations, unavailable_leaders(broker))
    missing: list[str] = []
    if requested is None:
        topics = [_topic(topic, image, view) for _, topic in sorted(image.topics.items())]
    elif ids := _requested_ids(requested, session.api_version):
        topics = [_topic_by_id(topic_id, image, view) for topic_id in ids]
    else:
        # Describe each topic only once, so that a small request cannot cause a huge response.
        names = dict.fromkeys(topic.name or "" for topic in requested)
        topics = [_topic_by_name(name, image, view) for name in names]
        missing = [
            name
            for name, topic in zip(names, topics, strict=True)
            if topic.get("error_code") == ErrorCode.unknown_topic_or_partition
        ]
        if missing and request.allow_auto_topic_creation and broker.settings.broker.auto_create_topics_enable:
            broker.auto_topic_creation.create_topics(missing)
    response: MetadataResponse = {
        "brokers": [
            {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
            for each, endpoint in reachable_brokers(image, listener, include_fenced=True)
            if broker.availability.is_listed(each)
        ],
        "cluster_id": image.cluster_id,
        "controller_id": advertised_controller_id(image, listener, broker.broker_id),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    }
    return _Description(response, bool(missing))


def _requested_ids(requested: Sequence[MetadataRequestTopic], version: int) -> dict[UUID, None]:
    """Returns the ids in a request, each once. Raises InvalidRequestError if a topic has neither name nor id, or if the
    version does not support ids."""
    ids = {topic.topic_id: None for topic in requested if topic.topic_id is not None}
    if version < TOPIC_ID_VERSION and ids:
        raise InvalidRequestError(f"version {version} cannot request topics by id")
    if any(topic.name is None and topic.topic_id is None for topic in requested):
        raise InvalidRequestError("a topic must be requested by name or by id")
    return ids


def _leaders(requested: Sequence[MetadataRequestTopic] | None, image: MetadataImage) -> set[int]:
    """Returns the leaders of the requested topics, or of all topics."""
    topics = image.topics.values() if requested is None else _topics(requested, image)
    return {partition.leader for topic in topics if topic is not None for partition in topic.partitions}


def _topics(requested: Sequence[MetadataRequestTopic], image: MetadataImage) -> Iterator[TopicImage | None]:
    """Yields the image of each requested topic; None if it is missing."""
    for topic in requested:
        yield image.topics.get(topic.name or "") if topic.topic_id is None else image.topic_by_id(topic.topic_id)


def _topic_by_id(topic_id: UUID, image: MetadataImage, view: _View) -> MetadataResponseTopic:
    topic = image.topic_by_id(topic_id)
    if topic is not None:
        return _topic(topic, image, view)
    return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id}


def _topic_by_name(name: str, image: MetadataImage, view: _View) -> MetadataResponseTopic:
    topic = image.topics.get(name)
    if topic is not None:
        return _topic(topic, image, view)
    return {
        "error_code": error_code(missing_topic_error(name)),
        "name": name,
        "topic_id": None,
        "is_internal": is_internal(name),
        "topic_authorized_operations": view.operations,
    }


def _topic(topic: TopicImage, image: MetadataImage, view: _View) -> MetadataResponseTopic:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [_partition(partition, image, view) for partition in topic.partitions],
        "topic_authorized_operations": view.operations,
    }


def _partition(partition: PartitionRegistration, image: MetadataImage, view: _View) -> MetadataResponsePartition:
    response = describe_partition(partition, view.reachable, unavailable=view.unavailable)
    if response["leader_id"] == NO_LEADER:
        is_unreachable = partition.leader in image.brokers and not has_listener(partition.leader, image, view.listener)
        response["error_code"] = (
            ErrorCode.listener_not_found
            if is_unreachable and view.version >= LISTENER_VERSION
            else ErrorCode.leader_not_available
        )
    return response
