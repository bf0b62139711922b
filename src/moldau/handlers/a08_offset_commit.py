"""OffsetCommit: how far a group has come, kept until its members come back.

Each partition is committed or refused on its own: a topic that is not there spoils nothing for the others. A consumer
that is in no group commits with generation -1 and no member id.

Versions: 2-4 say how long the offset is to be kept, 6 brought the leader epoch, 7 static members, 8 the flexible
encoding, 9 the code for a group that is not there, 10 topic ids in place of names.
"""

from typing import Any
from uuid import UUID

from moldau.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    MoldauError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.records import NO_EXPIRY, NO_LEADER_EPOCH
from moldau.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    MemberIdentity,
    OffsetToCommit,
    TopicPartition,
)
from moldau.metadata.image import TopicImage
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.settings.registry import LONG_MAX
from moldau.wire.api_keys import ApiKey

GROUP_ID_NOT_FOUND_VERSION = 9


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10))
async def offset_commit(request: Any, session: Session, broker: Broker) -> Any:
    expire_ms = _expire_timestamp_ms(request.get("retention_time", -1), broker)
    offsets: list[OffsetToCommit] = []
    # The errors of each topic stand beside it in the order of the request.
    topics: list[tuple[Any, TopicImage | None]] = []
    for topic in request.topics:
        found = _find_topic(topic, broker)
        topics.append((topic, found))
        if found is not None:
            offsets += [
                _offset_to_commit(found, each, expire_ms)
                for each in topic.partitions
                if 0 <= each.partition_index < len(found.partitions)
            ]
    errors: dict[TopicPartition, MoldauError | None] = {}
    if offsets:
        errors = await _commit(request, tuple(offsets), session.api_version, broker)
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.get("name"),
                "topic_id": topic.get("topic_id"),
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": error_code(_partition_error(topic, found, index, errors)),
                    }
                    for index in (each.partition_index for each in topic.partitions)
                ],
            }
            for topic, found in topics
        ],
    }


def _expire_timestamp_ms(retention_ms: int, broker: Broker) -> int:
    return NO_EXPIRY if retention_ms < 0 else min(broker.platform.clock.wall_ms() + retention_ms, LONG_MAX)


def _find_topic(topic: Any, broker: Broker) -> TopicImage | None:
    image = broker.metadata.image
    name: str | None = topic.get("name")
    if name is not None:
        return image.topics.get(name)
    topic_id: UUID | None = topic.topic_id
    return None if topic_id is None else image.topic_by_id(topic_id)


def _offset_to_commit(topic: TopicImage, each: Any, expire_ms: int) -> OffsetToCommit:
    return OffsetToCommit(
        topic=topic.name,
        partition=each.partition_index,
        offset=each.committed_offset,
        leader_epoch=each.get("committed_leader_epoch", NO_LEADER_EPOCH),
        metadata=each.committed_metadata,
        expire_timestamp_ms=expire_ms,
        topic_id=topic.topic_id,
    )


async def _commit(
    request: Any, offsets: tuple[OffsetToCommit, ...], version: int, broker: Broker
) -> dict[TopicPartition, MoldauError | None]:
    identity = MemberIdentity(
        group_id=request.group_id,
        generation=request.get("generation_id_or_member_epoch", NO_GENERATION),
        member_id=request.get("member_id", UNKNOWN_MEMBER_ID),
        instance_id=request.get("group_instance_id"),
    )
    try:
        reply = await broker.groups.commit(CommitRequest(identity=identity, offsets=offsets))
    except MoldauError as error:
        if isinstance(error, GroupIdNotFoundError) and version < GROUP_ID_NOT_FOUND_VERSION:
            error = IllegalGenerationError(str(error))
        return dict.fromkeys(((each.topic, each.partition) for each in offsets), error)
    return dict(reply.errors)


def _partition_error(
    topic: Any, found: TopicImage | None, index: int, errors: dict[TopicPartition, MoldauError | None]
) -> MoldauError | None:
    if found is None and topic.get("name") is None:
        return UnknownTopicIdError("there is no topic with this id")
    if found is None or not 0 <= index < len(found.partitions):
        return UnknownTopicOrPartitionError("there is no such partition")
    return errors[found.name, index]
