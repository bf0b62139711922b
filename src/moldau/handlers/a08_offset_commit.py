"""OffsetCommit: stores the offsets that a group has consumed.

Each partition is committed or rejected independently. A consumer that is not a member of the group commits with
generation -1 and an empty member id.

Versions: 2-4 have a retention time, 6 added the leader epoch, 7 static members, 8 the flexible encoding, 9 the error
code for a group that does not exist, 10 topic ids instead of names.
"""

from moldau.error_codes import error_code
from moldau.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    MoldauError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.records import NO_EXPIRY
from moldau.groups.requests import CommitRequest, MemberIdentity, OffsetToCommit, PartitionErrors
from moldau.metadata.image import TopicImage
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import topic_name
from moldau.settings.registry import LONG_MAX
from moldau.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

GROUP_ID_NOT_FOUND_VERSION = 9


@handles(versions=(2, 10))
async def offset_commit(request: OffsetCommitRequest, session: RequestContext, broker: Broker) -> OffsetCommitResponse:
    expire_ms = NO_EXPIRY
    if request.retention_time >= 0:
        expire_ms = min(broker.platform.clock.wall_ms() + request.retention_time, LONG_MAX)
    offsets: list[OffsetToCommit] = []
    topics: list[tuple[OffsetCommitRequestTopic, TopicImage | None]] = []
    for topic in request.topics:
        found = broker.metadata.image.topics.get(topic_name(broker, topic.name, topic.topic_id) or "")
        topics.append((topic, found))
        if found is not None:
            offsets += [
                _offset_to_commit(found, each, expire_ms)
                for each in topic.partitions
                if 0 <= each.partition_index < len(found.partitions)
            ]
    errors: PartitionErrors = {}
    if offsets:
        errors = await _commit(request, tuple(offsets), session.api_version, broker)
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": error_code(_partition_error(topic, found, each.partition_index, errors)),
                    }
                    for each in topic.partitions
                ],
            }
            for topic, found in topics
        ]
    }


def _offset_to_commit(topic: TopicImage, partition: OffsetCommitRequestPartition, expire_ms: int) -> OffsetToCommit:
    return OffsetToCommit(
        topic=topic.name,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
        expire_timestamp_ms=expire_ms,
        topic_id=topic.topic_id,
    )


async def _commit(
    request: OffsetCommitRequest, offsets: tuple[OffsetToCommit, ...], version: int, broker: Broker
) -> PartitionErrors:
    identity = MemberIdentity(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    try:
        return await broker.groups.commit(CommitRequest(identity=identity, offsets=offsets))
    except MoldauError as error:
        if isinstance(error, GroupIdNotFoundError) and version < GROUP_ID_NOT_FOUND_VERSION:
            error = IllegalGenerationError(str(error))
        return dict.fromkeys(((each.topic, each.partition) for each in offsets), error)


def _partition_error(
    topic: OffsetCommitRequestTopic, found: TopicImage | None, index: int, errors: PartitionErrors
) -> MoldauError | None:
    if found is None and topic.name is None:
        return UnknownTopicIdError("no topic has this id")
    if found is None or not 0 <= index < len(found.partitions):
        return UnknownTopicOrPartitionError("there is no such partition")
    return errors[found.name, index]
