"""The admin client: topics, partitions, configs, brokers, the quorum and groups.

Methods for several objects return the result or KafkaError of each object. Methods for one object return its result or
raise its KafkaError.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        for group in await admin.list_groups(): ...
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from moldau.client.admin import cluster as cluster_requests
from moldau.client.admin import groups as group_requests
from moldau.client.admin import quorum as quorum_requests
from moldau.client.admin import topics as topic_requests
from moldau.client.admin.cluster import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    LogDir,
    LogDirReplica,
    Operation,
    ResourceType,
)
from moldau.client.admin.groups import GroupDescription, GroupListing, MemberDescription, MemberToRemove
from moldau.client.admin.quorum import NodeEndpoint, QuorumInfo, QuorumReplica
from moldau.client.admin.requester import AdminRequester, Results, single_result
from moldau.client.admin.topics import BROKER_DEFAULT, CreatedTopic, ElectionType, NewTopic, OngoingReassignment
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAndTimestamp
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.net.cluster import Cluster, resolve_cluster
from moldau.client.net.metadata import TopicInfo
from moldau.client.record import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "CreatedTopic",
    "ElectionType",
    "GroupDescription",
    "GroupListing",
    "LogDir",
    "LogDirReplica",
    "MemberDescription",
    "MemberToRemove",
    "NewTopic",
    "NodeEndpoint",
    "OngoingReassignment",
    "Operation",
    "QuorumInfo",
    "QuorumReplica",
    "ResourceType",
]


class Admin:
    """Sends admin requests. Call `start` before use and `close` after, or use `async with`."""

    def __init__(
        self, cluster: str | Sequence[str] | Cluster, *, timeout_ms: int = 30_000, **cluster_settings: Any
    ) -> None:
        """`cluster` is bootstrap servers, with `cluster_settings` as in `Cluster`, or a started, shared `Cluster`.

        Retriable errors are retried for `timeout_ms`.
        """
        self._cluster, self._owns_cluster = resolve_cluster(cluster, cluster_settings)
        self._requester = AdminRequester(self._cluster, timeout_ms)

    async def start(self) -> None:
        if self._owns_cluster:
            await self._cluster.start()

    async def close(self) -> None:
        if self._owns_cluster:
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    # Topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        return await topic_requests.create_topics(self._requester, topics, validate_only)

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str | None] | None = None,
    ) -> CreatedTopic:
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        return single_result(await self.create_topics([topic]))

    async def delete_topics(self, names: Iterable[str]) -> Results[str, None]:
        return await topic_requests.delete_topics(self._requester, names)

    async def delete_topic(self, name: str) -> None:
        single_result(await self.delete_topics([name]))

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> Results[str, None]:
        """Adds partitions to topics, up to these total counts."""
        return await topic_requests.create_partitions(self._requester, counts, validate_only)

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """Returns all topics sorted by name. Internal topics are included only if `internal` is true."""
        return await topic_requests.list_topics(self._requester, internal)

    async def describe_topics(self, names: Iterable[str]) -> Results[str, TopicInfo]:
        return await topic_requests.describe_topics(self._requester, names)

    async def describe_topic(self, name: str) -> TopicInfo:
        return single_result(await self.describe_topics([name]))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Deletes all records below these offsets and returns the new log start offsets.

        The offset -1 deletes all committed records.
        """
        return await topic_requests.delete_records(self._requester, offsets)

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the first offset at or after the time of each partition, in ms (or EARLIEST, LATEST, MAX_TIMESTAMP).

        Partitions without such a record are left out. Raises KafkaError if a partition cannot be queried.
        """
        return await topic_requests.list_offsets(self._requester, times, isolation_level)

    async def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, None]:
        """Elects leaders of these partitions, or of all partitions that need an election.

        In the second case the results contain only the partitions that needed an election.
        """
        return await topic_requests.elect_leaders(self._requester, kind, partitions)

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Starts moving partitions to these replicas, the preferred leader first; None cancels a reassignment."""
        return await topic_requests.alter_reassignments(self._requester, wanted)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """Returns the ongoing reassignments of these partitions, or of all partitions."""
        return await topic_requests.list_reassignments(self._requester, partitions)

    # Brokers and configs

    async def describe_cluster(self, *, fenced_too: bool = False) -> ClusterDescription:
        return await cluster_requests.describe_cluster(self._requester, fenced_too)

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """Returns all configs of each resource, by name."""
        return await cluster_requests.describe_configs(self._requester, resources, documentation)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Iterable[ConfigChange]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Changes the named configs of each resource and keeps the others."""
        return await cluster_requests.alter_configs(self._requester, changes, validate_only)

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        return single_result(await self.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))

    async def alter_topic_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Sets configs of a topic. The value None resets a config to its default."""
        changes = [
            ConfigChange(name, value, Operation.DELETE if value is None else Operation.SET)
            for name, value in configs.items()
        ]
        single_result(await self.alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes}))

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> Results[int, list[LogDir]]:
        """Returns the log directories of these brokers, or of all brokers."""
        return await cluster_requests.describe_log_dirs(self._requester, brokers)

    # The quorum

    async def describe_quorum(self) -> QuorumInfo:
        """Returns the metadata quorum and the progress of its replicas, as its leader sees them."""
        return await quorum_requests.describe_quorum(self._requester)

    async def add_voter(self, node_id: int, directory_id: UUID | None, endpoint: NodeEndpoint) -> None:
        """Makes a node a voter once it has caught up; returns when the change is committed."""
        await quorum_requests.add_voter(self._requester, node_id, directory_id, endpoint)

    async def remove_voter(self, node_id: int, directory_id: UUID | None) -> None:
        await quorum_requests.remove_voter(self._requester, node_id, directory_id)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker that will not return."""
        await quorum_requests.unregister_broker(self._requester, broker_id)

    # Groups

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """Returns the groups of all brokers sorted by id, optionally only groups in these states or of these types.

        Raises KafkaError if one broker cannot be queried, because the list would be incomplete.
        """
        return await group_requests.list_groups(self._requester, states, types)

    async def describe_groups(self, groups: Iterable[str]) -> Results[str, GroupDescription]:
        """Describes groups. The error for a group that does not exist is GROUP_ID_NOT_FOUND."""
        return await group_requests.describe_groups(self._requester, groups)

    async def describe_group(self, group: str) -> GroupDescription:
        return single_result(await self.describe_groups([group]))

    async def delete_groups(self, groups: Iterable[str]) -> Results[str, None]:
        return await group_requests.delete_groups(self._requester, groups)

    async def delete_group(self, group: str) -> None:
        single_result(await self.delete_groups([group]))

    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of these partitions, or of all partitions if `partitions` is None.

        Partitions without a committed offset are omitted.
        """
        return await group_requests.list_group_offsets(self._requester, group, partitions)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        """Sets committed offsets. Brokers reject this while the group has members (UNKNOWN_MEMBER_ID)."""
        return await group_requests.alter_group_offsets(self._requester, group, offsets)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Deletes committed offsets. Brokers reject this for topics that members subscribe to."""
        return await group_requests.delete_group_offsets(self._requester, group, partitions)

    async def remove_members(
        self, group: str, members: Iterable[MemberToRemove] | None = None, *, reason: str = ""
    ) -> Results[MemberToRemove, None]:
        """Removes these members from a group, or all members."""
        return await group_requests.remove_members(self._requester, group, members, reason)
