"""OffsetFetch: returns the committed offsets of groups; -1 for partitions without a committed offset.

A deleted topic has no offsets. This is an error only if the request contains the topic id. Offsets of a deleted topic
are not returned for a new topic of the same name, even if the tombstones for these offsets are not written yet.

Versions: 1 has error codes per partition, 2 also per group. Since 2, a null topic list means all offsets of the group.
5 added the leader epoch, 6 the flexible encoding, 7 require_stable (partitions whose offset is committed in an open
transaction then have the error UNSTABLE_OFFSET_COMMIT), 8 several groups per request, 9 the member id and epoch, 10
topic ids instead of names.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from moldau.error_codes import error_code
from moldau.errors import MoldauError, UnknownTopicIdError
from moldau.groups.records import CommittedOffset
from moldau.groups.requests import PartitionOffsets
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import topic_name
from moldau.wire.messages import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

BATCHED_GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10
NO_OFFSET = -1


class _RequestedTopic(NamedTuple):
    """A topic, identified by name or by id, and the indexes of its requested partitions."""

    name: str | None
    topic_id: UUID | None
    indexes: dict[int, None]


@handles(versions=(1, 10))
async def offset_fetch(request: OffsetFetchRequest, session: RequestContext, broker: Broker) -> OffsetFetchResponse:
    version = session.api_version
    if version < BATCHED_GROUPS_VERSION:
        one = None if request.topics is None else [(each.name, None, each.partition_indexes) for each in request.topics]
        code, topics = await _fetch_group(
            request.group_id or "", one, version, broker, require_stable=request.require_stable
        )
        return {
            "error_code": code,
            "topics": [{"name": topic["name"] or "", "partitions": topic["partitions"]} for topic in topics],
        }
    groups: list[OffsetFetchResponseGroup] = []
    # Fetch the offsets of each group only once, so that a small request cannot cause a huge response.
    for group in {group.group_id: group for group in request.groups or ()}.values():
        requested = None
        if group.topics is not None:
            requested = [(each.name, each.topic_id, each.partition_indexes) for each in group.topics]
        code, topics = await _fetch_group(
            group.group_id, requested, version, broker, require_stable=request.require_stable
        )
        groups.append({"group_id": group.group_id, "error_code": code, "topics": topics})
    return {"groups": groups}


async def _fetch_group(
    group_id: str,
    topics: Iterable[tuple[str | None, UUID | None, Sequence[int]]] | None,
    version: int,
    broker: Broker,
    *,
    require_stable: bool,
) -> tuple[int, list[OffsetFetchResponseTopics]]:
    """Returns the error code of a group and the offsets of its topics, or of all topics if `topics` is None."""
    requested = None if topics is None else _deduplicate(topics)
    named = [(topic, topic_name(broker, topic.name, topic.topic_id)) for topic in requested or ()]
    partitions = [(name, index) for topic, name in named if name is not None for index in topic.indexes]
    try:
        fetched = await broker.groups.fetch_offsets(
            group_id, None if requested is None else partitions, require_stable=require_stable
        )
    except MoldauError as error:
        return error_code(error), [_error_topic(topic, error) for topic in requested or ()] if version < 2 else []
    offsets = {
        each: committed for each, committed in fetched.items() if not _is_of_deleted_topic(each[0], committed, broker)
    }
    if requested is None:
        return 0, _all_topics(offsets, version, broker)
    return 0, [_topic(topic, name, offsets) for topic, name in named]


def _deduplicate(topics: Iterable[tuple[str | None, UUID | None, Sequence[int]]]) -> list[_RequestedTopic]:
    distinct: dict[tuple[str | None, UUID | None], _RequestedTopic] = {}
    for name, topic_id, indexes in topics:
        requested = distinct.setdefault((name, topic_id), _RequestedTopic(name, topic_id, {}))
        requested.indexes.update(dict.fromkeys(indexes))
    return list(distinct.values())


def _topic(topic: _RequestedTopic, name: str | None, offsets: PartitionOffsets) -> OffsetFetchResponseTopics:
    if name is None:
        return _error_topic(topic, UnknownTopicIdError("no topic has this id"))
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(index, offsets.get((name, index))) for index in topic.indexes],
    }


def _is_of_deleted_topic(name: str, committed: CommittedOffset | MoldauError | None, broker: Broker) -> bool:
    topic = broker.metadata.image.topics.get(name)
    if topic is None or not isinstance(committed, CommittedOffset):
        return False
    return committed.topic_id not in (None, topic.topic_id)


def _all_topics(offsets: PartitionOffsets, version: int, broker: Broker) -> list[OffsetFetchResponseTopics]:
    topics: list[OffsetFetchResponseTopics] = []
    for name, committed_offsets in groupby(offsets.items(), key=lambda each: each[0][0]):
        topic = broker.metadata.image.topics.get(name)
        if version >= TOPIC_ID_VERSION and topic is None:
            # Omit deleted topics, because their id is unknown and clients of this version identify topics by id.
            continue
        partitions = [_partition(index, committed) for (_, index), committed in committed_offsets]
        topic_id = None if topic is None else topic.topic_id
        topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
    return topics


def _partition(index: int, committed: CommittedOffset | MoldauError | None) -> OffsetFetchResponsePartitions:
    if not isinstance(committed, CommittedOffset):
        code = error_code(committed)
        return {"partition_index": index, "committed_offset": NO_OFFSET, "metadata": "", "error_code": code}
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }


def _error_topic(topic: _RequestedTopic, error: MoldauError) -> OffsetFetchResponseTopics:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(index, error) for index in topic.indexes],
    }
