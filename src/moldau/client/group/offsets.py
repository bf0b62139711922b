"""Committed offsets of a group: commits and fetches them at the group's coordinator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.group.member_state import NO_GENERATION, Generation
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition, group_by_topic, iterate_partitions, nest_by_topic
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

_UNKNOWN_TOPIC_ERRORS = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
"""Retriable errors that are not retried here, because they mean that the topic was deleted."""

PartitionErrors = dict[TopicPartition, KafkaError | None]
"""The error of each partition, None for success."""


@dataclass
class GroupOffsets:
    """Commits and fetches the offsets of one group, with retries."""

    cluster: Cluster
    group_id: str
    instance_id: str | None = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: Generation,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commits offsets. Raises KafkaError if a partition fails; the other partitions are still committed."""
        for error in (await self.commit_each(offsets, generation, timeout_ms=timeout_ms)).values():
            if error is not None:
                raise error

    async def commit_each(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: Generation = NO_GENERATION,
        *,
        timeout_ms: int | None = None,
    ) -> PartitionErrors:
        tree = {
            "group_id": self.group_id,
            "generation_id_or_member_epoch": generation.generation_id,
            "member_id": generation.member_id,
            "group_instance_id": self.instance_id if generation.is_member else None,
            "topics": nest_offsets(offsets),
        }
        return await self.cluster.call_coordinator(
            self.group_id, ApiKey.OFFSET_COMMIT, tree, parse_partition_errors, timeout_ms
        )

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = True, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of these partitions (None: all), without partitions that have none.

        With `require_stable`, waits for open transactions that commit offsets. Otherwise returns the offsets from
        before these transactions.
        """
        topics = None
        if partitions is not None:
            by_topic = group_by_topic(partitions)
            topics = [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic.items()]
        tree = {"groups": [{"group_id": self.group_id, "topics": topics}], "require_stable": require_stable}
        return await self.cluster.call_coordinator(
            self.group_id, ApiKey.OFFSET_FETCH, tree, _parse_committed, timeout_ms
        )


def nest_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    """Returns the `topics` field of a request that commits these offsets."""
    return nest_by_topic(
        (
            partition,
            {
                "partition_index": partition.partition,
                "committed_offset": each.offset,
                "committed_leader_epoch": each.leader_epoch,
                "committed_metadata": each.metadata,
            },
        )
        for partition, each in offsets.items()
    )


def parse_partition_errors(response: Message) -> PartitionErrors:
    """Returns the errors in the response to a commit or deletion. Raises the first error that a retry may fix."""
    errors: PartitionErrors = {}
    for partition, each in iterate_partitions(response.topics):
        errors[partition] = None
        if each.error_code != ErrorCode.none:
            error = KafkaError(each.error_code, f"failed to change the committed offset of {partition}")
            if error.is_retriable and error.code not in _UNKNOWN_TOPIC_ERRORS:
                raise error
            errors[partition] = error
    return errors


def _parse_committed(response: Message) -> dict[TopicPartition, OffsetAndMetadata]:
    (group,) = response.groups
    raise_for_code(group.error_code, f"failed to fetch the offsets of the group {group.group_id!r}")
    committed = {}
    for partition, each in iterate_partitions(group.topics):
        raise_for_code(each.error_code, f"failed to fetch the committed offset of {partition}")
        if each.committed_offset >= 0:
            committed[partition] = OffsetAndMetadata(
                each.committed_offset, each.metadata or "", each.committed_leader_epoch
            )
    return committed
