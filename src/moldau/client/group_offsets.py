"""A group's committed offsets, written and read at its coordinator. Knows nothing of membership: the caller says in
whose name it commits."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moldau.client.cluster import Cluster
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.member_terms import Generation
from moldau.client.positions import OffsetAndMetadata
from moldau.client.record import TopicPartition, by_topic
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

_COORDINATOR_GONE = (
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
)


class GroupOffsets:
    def __init__(self, cluster: Cluster, group_id: str, instance_id: str | None = None) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._instance_id = instance_id

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: Generation,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Committed at the coordinator when this returns; raises KafkaError with the coordinator's code. What can be
        repeated is, until the time is over."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition, each in offsets.items():
            topics.setdefault(partition.topic, []).append(
                {
                    "partition_index": partition.partition,
                    "committed_offset": each.offset,
                    "committed_leader_epoch": each.leader_epoch,
                    "committed_metadata": each.metadata,
                }
            )
        tree = {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": generation.generation_id,
            "member_id": generation.member_id,
            "group_instance_id": self._instance_id if generation.is_member else None,
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        }
        await self._until_answered(ApiKey.OFFSET_COMMIT, tree, _check_commit, timeout_ms)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those of the partitions for which there is something. Offsets of a transaction that is not over are waited
        for."""
        topics = [
            {"name": name, "partition_indexes": indexes}
            for name, indexes in by_topic(list(partitions)).items()
        ]
        tree = {"groups": [{"group_id": self._group_id, "topics": topics}], "require_stable": True}
        answer = await self._until_answered(ApiKey.OFFSET_FETCH, tree, _check_committed, timeout_ms)
        return {
            TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
                each.committed_offset, each.metadata or "", each.committed_leader_epoch
            )
            for topic in answer.groups[0].topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    async def _until_answered(
        self, api: ApiKey, tree: Mapping[str, Any], check: Callable[[Message], None], timeout_ms: int | None
    ) -> Message:
        retry = self._cluster.retry(timeout_ms)
        while True:
            try:
                coordinator = await self._cluster.coordinator_of(self._group_id, timeout_ms=retry.left_ms)
                limit_ms = min(retry.left_ms, self._cluster.request_timeout_ms)
                answer = await self._cluster.call(coordinator, api, tree, timeout_ms=limit_ms)
                check(answer)
                return answer
            except KafkaError as error:
                if error.code in _COORDINATOR_GONE:
                    self._cluster.forget_coordinator(self._group_id)
                await retry.after(error)


def _check_commit(answer: Message) -> None:
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code != ErrorCode.none:
                partition = TopicPartition(topic.name, each.partition_index)
                raise KafkaError(each.error_code, f"the offset of {partition} was not committed")


def _check_committed(answer: Message) -> None:
    group = answer.groups[0]
    if group.error_code != ErrorCode.none:
        raise KafkaError(group.error_code, f"the offsets of the group {group.group_id!r} were not read")
    for topic in group.topics:
        for each in topic.partitions:
            if each.error_code != ErrorCode.none:
                partition = TopicPartition(topic.name, each.partition_index)
                raise KafkaError(each.error_code, f"the committed offset of {partition} was not read")
