"""OffsetFetch: the offsets that groups have committed; -1 where there is none.

Offsets are found by what was committed: a topic that is not there any more has none, and that is no error, unless it
is asked for by id.

Versions: 1 says what is wrong with each partition, 2 with the whole group; from 2 on null asks for all of a group's
offsets, 5 brought the leader epoch, 6 the flexible encoding, 7 stable offsets (those that no open transaction is
about to change: all are), 8 many groups in one request, 9 the member that asks, 10 topic ids in place of names.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any
from uuid import UUID

from moldau.errors import MoldauError, UnknownTopicIdError
from moldau.groups.records import NO_LEADER_EPOCH, CommittedOffset
from moldau.groups.requests import MemberClaim, TopicPartition
from moldau.requests.broker import Broker
from moldau.requests.errors import error_code
from moldau.requests.registry import handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey

MANY_GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10
NO_OFFSET = -1


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10))
async def offset_fetch(request: Any, session: Session, broker: Broker) -> Any:
    version = session.api_version
    if version >= MANY_GROUPS_VERSION:
        groups = [await _group(group, version, broker) for group in request.groups]
        return {"throttle_time": 0, "groups": groups}
    answer = await _group(request, version, broker)
    if version < 2 and answer["error_code"]:
        answer["topics"] = [_refused(topic, answer["error_code"]) for topic in request.topics]
    return {"throttle_time": 0, **answer}


async def _group(group: Any, version: int, broker: Broker) -> dict[str, Any]:
    asked = None if group.topics is None else [(topic, _name(topic, broker)) for topic in group.topics]
    wanted = None
    if asked is not None:
        wanted = [
            (name, index) for topic, name in asked if name is not None for index in topic.partition_indexes
        ]
    try:
        reply = await broker.groups.fetch_offsets(group.group_id, wanted, _claim(group))
    except MoldauError as error:
        return {"group_id": group.group_id, "error_code": error_code(error), "topics": []}
    if asked is None:
        topics = _all(reply.offsets, version, broker)
    else:
        topics = [_topic(topic, name, reply.offsets) for topic, name in asked]
    return {"group_id": group.group_id, "error_code": 0, "topics": topics}


def _claim(group: Any) -> MemberClaim | None:
    member_id = group.get("member_id")
    if member_id is None:
        return None
    return MemberClaim(
        group_id=group.group_id, generation=group.member_epoch, member_id=member_id, instance_id=None
    )


def _name(topic: Any, broker: Broker) -> str | None:
    """None where there is no topic with the id that was given."""
    name: str | None = topic.get("name")
    topic_id: UUID | None = topic.get("topic_id")
    if name is None and topic_id is not None:
        return broker.metadata.image.topic_names.get(topic_id)
    return name


def _topic(
    topic: Any, name: str | None, offsets: Mapping[TopicPartition, CommittedOffset | None]
) -> dict[str, Any]:
    if name is None:
        return _refused(topic, error_code(UnknownTopicIdError("there is no topic with this id")))
    topic_id = topic.get("topic_id")
    return {
        "name": name,
        "topic_id": topic_id,
        "partitions": [
            _partition(index, _unless_of_another(offsets[name, index], topic_id))
            for index in topic.partition_indexes
        ],
    }


def _unless_of_another(committed: CommittedOffset | None, topic_id: UUID | None) -> CommittedOffset | None:
    """Who names a topic by its id is not given what was committed to a former topic of the same name."""
    if committed is None or topic_id is None or committed.topic_id in (None, topic_id):
        return committed
    return None


def _all(
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


def _refused(topic: Any, code: int) -> dict[str, Any]:
    return {
        "name": topic.get("name"),
        "topic_id": topic.get("topic_id"),
        "partitions": [_partition(index, None, code) for index in topic.partition_indexes],
    }
