"""The admin client's part for topics: making, describing and deleting them and their records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from moldau.client.admin.requester import AdminRequester, Results, single_result, to_error
from moldau.client.consumer.offset_lookup import OffsetAndTimestamp, list_offsets
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Retry
from moldau.client.net.metadata import TopicInfo
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey

BROKER_DEFAULT = -1
"""A partition count or replication factor that the broker chooses."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The replicas of each partition, where the brokers shall not choose."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


class TopicAdmin(AdminRequester):
    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        wanted = {topic.name: topic for topic in topics}

        async def ask(names: list[str], retry: Retry) -> Results[str, CreatedTopic]:
            tree = {
                "topics": [_creatable_topic(wanted[name]) for name in names],
                "timeout": self.request_timeout_ms(retry),
                "validate_only": validate_only,
            }
            answer = await self._cluster.call(None, ApiKey.CREATE_TOPICS, tree)
            return {
                each.name: to_error(each.error_code, each.error_message)
                or CreatedTopic(
                    each.name,
                    each.get("topic_id"),
                    each.num_partitions,
                    each.replication_factor,
                    {config.name: config.value for config in each.configs or ()},
                )
                for each in answer.topics
            }

        return await self.call_for_each(wanted, ask)

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str | None] | None = None,
    ) -> CreatedTopic:
        """Raises KafkaError, as all do that are about one thing."""
        return single_result(
            await self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})])
        )

    async def delete_topics(self, names: Iterable[str]) -> Results[str, None]:
        maybe_gone: set[str] = set()

        async def ask(left: list[str], retry: Retry) -> Results[str, None]:
            topics = [{"name": name, "topic_id": None} for name in left]
            tree = {"topics": topics, "timeout": self.request_timeout_ms(retry)}
            try:
                answer = await self._cluster.call(None, ApiKey.DELETE_TOPICS, tree)
            except KafkaError:
                # The broker may have heard it: that a topic is unknown then is what was wanted.
                maybe_gone.update(left)
                raise
            results: Results[str, None] = {}
            for each in answer.responses:
                error = to_error(each.error_code, each.error_message)
                results[each.name] = None if each.name in maybe_gone and _is_unknown_topic(error) else error
                if error is not None and error.code is ErrorCode.request_timed_out:
                    maybe_gone.add(each.name)
            return results

        return await self.call_for_each(names, ask)

    async def delete_topic(self, name: str) -> None:
        single_result(await self.delete_topics([name]))

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Gives topics more partitions: each as many in all as is said here."""

        async def ask(left: list[str], retry: Retry) -> Results[str, None]:
            topics = [{"name": name, "count": counts[name], "assignments": None} for name in left]
            tree = {
                "topics": topics,
                "timeout": self.request_timeout_ms(retry),
                "validate_only": validate_only,
            }
            answer = await self._cluster.call(None, ApiKey.CREATE_PARTITIONS, tree)
            return {each.name: to_error(each.error_code, each.error_message) for each in answer.results}

        return await self.call_for_each(counts, ask)

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics by name; those that brokers keep for themselves only with `internal`."""

        async def attempt(retry: Retry) -> None:
            await self._cluster.refresh(all_topics=True)

        await self.call_once(attempt)
        topics = sorted(self._cluster.topics.values(), key=lambda topic: topic.name)
        return [topic for topic in topics if internal or not topic.is_internal]

    async def describe_topics(self, names: Iterable[str]) -> Results[str, TopicInfo]:
        async def ask(left: list[str], retry: Retry) -> Results[str, TopicInfo]:
            await self._cluster.refresh(left)
            return {name: self._cluster.topics.get(name) or self._missing_topic_error(name) for name in left}

        return await self.call_for_each(names, ask)

    async def describe_topic(self, name: str) -> TopicInfo:
        return single_result(await self.describe_topics([name]))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Deletes what is below these offsets (-1: everything that is committed); gives the new first offsets."""

        async def ask_leader(
            node: int | None, partitions: list[TopicPartition], retry: Retry
        ) -> Results[TopicPartition, int]:
            topics: dict[str, list[dict[str, Any]]] = {}
            for partition in partitions:
                each = {"partition_index": partition.partition, "offset": offsets[partition]}
                topics.setdefault(partition.topic, []).append(each)
            tree = {
                "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
                "timeout": self.request_timeout_ms(retry),
            }
            answer = await self._cluster.call(node, ApiKey.DELETE_RECORDS, tree)
            return {
                TopicPartition(topic.name, each.partition_index): to_error(each.error_code)
                or int(each.low_watermark)
                for topic in answer.topics
                for each in topic.partitions
            }

        async def ask(left: list[TopicPartition], retry: Retry) -> Results[TopicPartition, int]:
            leaders, results = await self._find_leaders(left)
            return {**results, **await self.call_by_node(leaders, ask_leader, retry)}

        return await self.call_for_each(offsets, ask)

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first offset at or after a time in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

        Partitions that have no such record are left out. Raises KafkaError when one cannot be asked.
        """
        _, failures = await self._find_leaders(list(times))
        for failure in failures.values():
            if failure.code == ErrorCode.unknown_topic_or_partition:
                raise failure
        return await list_offsets(
            self._cluster, times, isolation_level=isolation_level, timeout_ms=self._timeout_ms
        )

    async def _find_leaders(
        self, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, KafkaError]]:
        """Who leads these partitions now, and why others have no leader."""
        await self._cluster.refresh(dict.fromkeys(partition.topic for partition in partitions))
        leaders: dict[TopicPartition, int | None] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        for partition in partitions:
            known = self._cluster.partition_info(partition)
            if partition.topic not in self._cluster.topics:
                failures[partition] = self._missing_topic_error(partition.topic)
            elif known is None:
                failures[partition] = KafkaError(
                    ErrorCode.unknown_topic_or_partition, f"there is no partition {partition}"
                )
            elif known.leader < 0:
                failures[partition] = KafkaError(
                    ErrorCode.leader_not_available, f"{partition} has no leader now"
                )
            else:
                leaders[partition] = known.leader
        return leaders, failures

    def _missing_topic_error(self, name: str) -> KafkaError:
        code = self._cluster.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
        return KafkaError(code, f"the topic {name!r}")


def _is_unknown_topic(error: KafkaError | None) -> bool:
    return error is not None and error.code is ErrorCode.unknown_topic_or_partition


def _creatable_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        # Brokers want both left open where the replicas are named.
        "num_partitions": BROKER_DEFAULT if topic.assignments else topic.partitions,
        "replication_factor": BROKER_DEFAULT if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)}
            for index, brokers in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }
