"""OffsetFetch: the offsets that groups have committed; -1 where there is none.

Offsets are found by what was committed: a topic that is not there any more has none, and that is no error, unless it
is asked for by id. Those of a former topic are not told as if they were of the one that has its name now, however it
is asked for: they are forgotten soon, but writing that down may have to wait for replicas.

Versions: 1 says what is wrong with each partition, 2 with the whole group; from 2 on null asks for all of a group's
offsets, 5 brought the leader epoch, 6 the flexible encoding, 7 stable offsets (those that no open transaction is
about to change: all are), 8 many groups in one request, 9 the member that asks, 10 topic ids in place of names.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from moldau.errors import MoldauError, UnknownTopicIdError
from moldau.groups.records import NO_LEADER_EPOCH, CommittedOffset
from moldau.groups.requests import TopicPartition
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

BATCHED_GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10
NO_OFFSET = -1


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10))
async def offset_fetch(request: Any, session: Session, broker: Broker) -> Any:
    version = session.api_version
    if version >= BATCHED_GROUPS_VERSION:
        # Each once, or a small request could ask for a huge answer.
        distinct = {group.group_id: group for group in request.groups}
        groups = [await _group(group, version, broker) for group in distinct.values()]
        return {"throttle_time": 0, "groups": groups}
    response = await _group(request, version, broker)
    if version < 2 and response["error_code"]:
        response["topics"] = [
            _error_topic(topic, response["error_code"]) for topic in _deduplicate(request.topics)
        ]
    return {"throttle_time": 0, **response}


class _RequestedTopic(NamedTuple):
    """A topic, by its name or its id, and which of its partitions the caller wants to know of."""

    name: str | None
    topic_id: UUID | None
    indexes: dict[int, None]


def _deduplicate(topics: Sequence[Any]) -> list[_RequestedTopic]:
    """Each topic and each partition of it once, however often it is named."""
    distinct: dict[tuple[str | None, UUID | None], _RequestedTopic] = {}
    for topic in topics:
        key = topic.get("name"), topic.get("topic_id")
        requested = distinct.setdefault(key, _RequestedTopic(*key, {}))
        requested.indexes.update(dict.fromkeys(topic.partition_indexes))
    return list(distinct.values())


async def _group(group: Any, version: int, broker: Broker) -> dict[str, Any]:
    requested = None
    wanted = None
    if group.topics is not None:
        requested = [(topic, _topic_name(topic, broker)) for topic in _deduplicate(group.topics)]
        wanted = [(name, index) for topic, name in requested if name is not None for index in topic.indexes]
    try:
        reply = await broker.groups.fetch_offsets(group.group_id, wanted)
    except MoldauError as error:
        return {"group_id": group.group_id, "error_code": error_code(error), "topics": []}
    offsets = {
        each: at for each, at in reply.offsets.items() if not _is_of_deleted_topic(each[0], at, broker)
    }
    if requested is None:
        topics = _all_topics(offsets, version, broker)
    else:
        topics = [_topic(topic, name, offsets) for topic, name in requested]
    return {"group_id": group.group_id, "error_code": 0, "topics": topics}


def _topic_name(topic: _RequestedTopic, broker: Broker) -> str | None:
    """None where there is no topic with the id that was given."""
    if topic.name is None and topic.topic_id is not None:
        return broker.metadata.image.topic_names.get(topic.topic_id)
    return topic.name


def _topic(
    topic: _RequestedTopic, name: str | None, offsets: Mapping[TopicPartition, CommittedOffset | None]
) -> dict[str, Any]:
    if name is None:
        return _error_topic(topic, error_code(UnknownTopicIdError("there is no topic with this id")))
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(index, offsets.get((name, index))) for index in topic.indexes],
    }


def _is_of_deleted_topic(name: str, committed: CommittedOffset | None, broker: Broker) -> bool:
    topic = broker.metadata.image.topics.get(name)
    return topic is not None and committed is not None and committed.topic_id not in (None, topic.topic_id)


def _all_topics(
    offsets: Mapping[TopicPartition, CommittedOffset | None], version: int, broker: Broker
) -> list[dict[str, Any]]:
    topics = []
    for name, found in groupby(offsets.items(), key=lambda each: each[0][0]):
        topic = broker.metadata.image.topics.get(name)
        if version >= TOPIC_ID_VERSION and topic is None:
            # It has no id by which the caller could know it.
            continue
        partitions = [_partition(index, committed) for (_, index), committed in found]
        topic_id = None if topic is None else topic.topic_id
        topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
    return topics


def _partition(index: int, committed: CommittedOffset | None, code: int = 0) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": code,
    }


def _error_topic(topic: _RequestedTopic, code: int) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(index, None, code) for index in topic.indexes],
    }
