"""The admin client's part for partitions: who leads them, and which brokers keep them."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moldau.client.admin.requester import AdminRequester, Results, to_error
from moldau.client.errors import raise_for_code
from moldau.client.net.cluster import Retry
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    """The first of a partition's replicas, if it is in sync."""
    UNCLEAN = 1
    """Any that is alive, where none is in sync: records may be lost."""


class OngoingReassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionAdmin(AdminRequester):
    async def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, None]:
        """Of these partitions, or of all that need it: then those that did not are left out."""

        async def ask(left: list[TopicPartition] | None, retry: Retry) -> Results[TopicPartition, None]:
            topics = None
            if left is not None:
                topics = [
                    {"topic": topic, "partitions": indexes} for topic, indexes in group_by_topic(left).items()
                ]
            tree = {
                "election_type": int(kind),
                "topic_partitions": topics,
                "timeout": self.request_timeout_ms(retry),
            }
            answer = await self._cluster.call(None, ApiKey.ELECT_LEADERS, tree)
            raise_for_code(answer.error_code)
            return {
                TopicPartition(topic.topic, each.partition_id): to_error(each.error_code, each.error_message)
                for topic in answer.replica_election_results
                for each in topic.partition_result
            }

        if partitions is None:
            return await self.call_once(lambda retry: ask(None, retry))
        return await self.call_for_each(partitions, ask)

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Begins to move partitions to other brokers, the first named preferred to lead; None cancels a move."""

        async def ask(left: list[TopicPartition], retry: Retry) -> Results[TopicPartition, None]:
            topics: dict[str, list[dict[str, Any]]] = {}
            for each in left:
                replicas = wanted[each]
                topics.setdefault(each.topic, []).append(
                    {
                        "partition_index": each.partition,
                        "replicas": None if replicas is None else list(replicas),
                    }
                )
            tree = {
                "timeout": self.request_timeout_ms(retry),
                "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            }
            answer = await self._cluster.call(None, ApiKey.ALTER_PARTITION_REASSIGNMENTS, tree)
            raise_for_code(answer.error_code, answer.error_message)
            results: Results[TopicPartition, None] = {
                TopicPartition(topic.name, each.partition_index): to_error(
                    each.error_code, each.error_message
                )
                for topic in answer.responses
                for each in topic.partitions
            }
            return results

        return await self.call_for_each(wanted, ask)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """The moves under way, of these partitions or of all."""
        asked = None if partitions is None else group_by_topic(partitions)

        async def attempt(retry: Retry) -> dict[TopicPartition, OngoingReassignment]:
            topics = None
            if asked is not None:
                topics = [{"name": name, "partition_indexes": indexes} for name, indexes in asked.items()]
            tree = {"timeout": self.request_timeout_ms(retry), "topics": topics}
            answer = await self._cluster.call(None, ApiKey.LIST_PARTITION_REASSIGNMENTS, tree)
            raise_for_code(answer.error_code, answer.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): OngoingReassignment(
                    tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
                )
                for topic in answer.topics
                for each in topic.partitions
            }

        return await self.call_once(attempt)


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each.partition)
    return found
