"""The admin client: topics, partitions, configs, brokers, the quorum, groups and transactions.

Methods for several objects return the result or KafkaError of each object. Methods for one object return its result or
raise its KafkaError.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        for group in await admin.list_groups(): ...
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from moldau.client.admin.group_lag import GroupLagSample, request_group_lags
from moldau.client.admin.open_transactions import find_open_transactions
from moldau.client.admin.requester import (
    AdminRequester,
    Results,
    find_leaders,
    missing_topic_error,
    single_result,
    to_error,
)
from moldau.client.admin.responses import (
    parse_config_entry,
    parse_group,
    parse_log_dir,
    parse_producer,
    parse_replica,
    parse_resource,
    parse_transaction,
)
from moldau.client.admin.types import (
    BROKER_DEFAULT,
    AbortTransactionSpec,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    ElectionType,
    GroupDescription,
    GroupListing,
    LogDir,
    MemberToRemove,
    NewTopic,
    NodeEndpoint,
    OngoingReassignment,
    OpenTransactions,
    Operation,
    ProducerState,
    QuorumInfo,
    ResourceType,
    TransactionDescription,
    TransactionListing,
)
from moldau.client.consumer.offset_lookup import OffsetAndTimestamp, list_offsets
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.group.offsets import GroupOffsets, parse_partition_errors
from moldau.client.net.cluster import TRANSACTION, Cluster, Retry, resolve_cluster
from moldau.client.net.metadata import BrokerInfo, TopicInfo
from moldau.client.record import TopicPartition, group_by_topic, iterate_partitions, nest_by_topic
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

METADATA_TOPIC = "__cluster_metadata"
_GROUP_TYPES_VERSION_MIN = 5
"""The first version of ListGroups with group types."""
_DURATION_VERSION_MIN, _PATTERN_VERSION_MIN = 1, 2
"""The first versions of ListTransactions with these filters."""
_FENCING_TIMEOUT_MS = 1
"""The transaction timeout of a producer that only fences others and never writes."""


class Admin:
    """Sends admin requests. Call `start` before use and `close` after, or use `async with`."""

    def __init__(
        self, cluster: str | Sequence[str] | Cluster, *, timeout_ms: int = 30_000, **cluster_settings: Any
    ) -> None:
        """`cluster` is bootstrap servers, with `cluster_settings` as in `Cluster`, or a started, shared `Cluster`.

        Retriable errors are retried for `timeout_ms`.
        """
        self.cluster, self._owns_cluster = resolve_cluster(cluster, cluster_settings)
        self._timeout_ms = timeout_ms
        self._requester = AdminRequester(self.cluster, timeout_ms)

    async def start(self) -> None:
        if self._owns_cluster:
            await self.cluster.start()

    async def close(self) -> None:
        if self._owns_cluster:
            await self.cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        new_topics = {topic.name: topic for topic in topics}
        possibly_created: set[str] = set()

        async def request(names: list[str], retry: Retry) -> Results[str, CreatedTopic]:
            tree = {
                "topics": [_creatable_topic(new_topics[name]) for name in names],
                "timeout": self._requester.attempt_timeout_ms(retry),
                "validate_only": validate_only,
            }
            try:
                response = await self.cluster.call(None, ApiKey.CREATE_TOPICS, tree)
            except KafkaError:
                # The broker may have created the topics, so a retry that finds them is a success.
                possibly_created.update([] if validate_only else names)
                raise
            results: Results[str, CreatedTopic] = {}
            for each in response.topics:
                error = to_error(each.error_code, each.error_message)
                code = ErrorCode.none if error is None else error.code
                results[each.name] = error or CreatedTopic(
                    each.name,
                    each.get("topic_id"),
                    each.num_partitions,
                    each.replication_factor,
                    {config.name: config.value for config in each.configs or ()},
                )
                if code is ErrorCode.topic_already_exists and each.name in possibly_created:
                    results[each.name] = await self._describe_created(new_topics[each.name], error)
                elif code is ErrorCode.request_timed_out and not validate_only:
                    possibly_created.add(each.name)
            return results

        # A topic whose logs could not be opened exists, so a retry would hide the error.
        return await self._requester.for_each(new_topics, request, final_errors=[ErrorCode.kafka_storage_error])

    async def _describe_created(self, requested: NewTopic, exists: KafkaError | None) -> CreatedTopic | KafkaError:
        """Describes a topic that an earlier attempt has probably created. Its configs are unknown. Returns the error
        `exists` if the topic differs from the requested one, so that it must be older."""
        name = requested.name
        await self.cluster.refresh([name])
        topic = self.cluster.topics.get(name)
        if topic is None:
            return missing_topic_error(self.cluster, name)
        found = CreatedTopic(name, topic.topic_id, len(topic.partitions), len(topic.partitions[0].replicas), {})
        if exists is not None and not requested.may_have_created(found):
            return exists
        return found

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
        possibly_deleted: set[str] = set()

        async def request(remaining: list[str], retry: Retry) -> Results[str, None]:
            topics = [{"name": name, "topic_id": None} for name in remaining]
            tree = {"topics": topics, "timeout": self._requester.attempt_timeout_ms(retry)}
            try:
                response = await self.cluster.call(None, ApiKey.DELETE_TOPICS, tree)
            except KafkaError:
                # The broker may have deleted the topics, so a retry that does not find them is a success.
                possibly_deleted.update(remaining)
                raise
            results: Results[str, None] = {}
            for each in response.responses:
                error = to_error(each.error_code, each.error_message)
                is_unknown = error is not None and error.code is ErrorCode.unknown_topic_or_partition
                results[each.name] = None if is_unknown and each.name in possibly_deleted else error
                if error is not None and error.code is ErrorCode.request_timed_out:
                    possibly_deleted.add(each.name)
            return results

        return await self._requester.for_each(names, request)

    async def delete_topic(self, name: str) -> None:
        single_result(await self.delete_topics([name]))

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> Results[str, None]:
        """Adds partitions to topics, up to these total counts."""

        async def request(remaining: list[str], retry: Retry) -> Results[str, None]:
            tree = {
                "topics": [{"name": name, "count": counts[name], "assignments": None} for name in remaining],
                "timeout": self._requester.attempt_timeout_ms(retry),
                "validate_only": validate_only,
            }
            response = await self.cluster.call(None, ApiKey.CREATE_PARTITIONS, tree)
            return {each.name: to_error(each.error_code, each.error_message) for each in response.results}

        return await self._requester.for_each(counts, request)

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """Returns all topics sorted by name. Internal topics are included only if `internal` is true."""
        await self._requester.with_retries(lambda _: self.cluster.refresh(all_topics=True))
        topics = sorted(self.cluster.topics.values(), key=lambda topic: topic.name)
        return [topic for topic in topics if internal or not topic.is_internal]

    async def describe_topics(self, names: Iterable[str]) -> Results[str, TopicInfo]:
        async def request(remaining: list[str], retry: Retry) -> Results[str, TopicInfo]:
            await self.cluster.refresh(remaining)
            return {
                name: self.cluster.topics.get(name) or missing_topic_error(self.cluster, name) for name in remaining
            }

        return await self._requester.for_each(names, request)

    async def describe_topic(self, name: str) -> TopicInfo:
        return single_result(await self.describe_topics([name]))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Deletes all records below these offsets (-1: all committed records). Returns the new log start offsets."""

        async def request(
            node: int | None, partitions: list[TopicPartition], retry: Retry
        ) -> Results[TopicPartition, int]:
            entries = ((each, {"partition_index": each.partition, "offset": offsets[each]}) for each in partitions)
            tree = {"topics": nest_by_topic(entries), "timeout": self._requester.attempt_timeout_ms(retry)}
            response = await self.cluster.call(node, ApiKey.DELETE_RECORDS, tree)
            return {
                partition: to_error(each.error_code) or int(each.low_watermark)
                for partition, each in iterate_partitions(response.topics)
            }

        return await self._requester.for_each_on_leader(offsets, request)

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the offset of each partition's first record at or after its time in `times`.

        A time is in milliseconds since 1970, or EARLIEST, LATEST or MAX_TIMESTAMP. Partitions without such a record are
        left out. Raises KafkaError if a partition cannot be queried.
        """
        return await self._list_offsets(times, isolation_level, None)

    async def list_available_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp], set[TopicPartition]]:
        """Returns the offsets of `list_offsets`, and at once the partitions without a leader, which have none."""
        without_leader: set[TopicPartition] = set()
        return await self._list_offsets(times, isolation_level, without_leader), without_leader

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int], isolation_level: int, without_leader: set[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        _, failures = await find_leaders(self.cluster, list(times))
        for failure in failures.values():
            if failure.code == ErrorCode.unknown_topic_or_partition:
                raise failure
        return await list_offsets(
            self.cluster,
            times,
            isolation_level=isolation_level,
            timeout_ms=self._timeout_ms,
            without_leader=without_leader,
        )

    async def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[TopicPartition, None]:
        """Elects leaders of these partitions (None: of all partitions that need an election)."""

        async def request(remaining: list[TopicPartition] | None, retry: Retry) -> Results[TopicPartition, None]:
            topics = None
            if remaining is not None:
                by_topic = group_by_topic(remaining)
                topics = [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
            timeout_ms = self._requester.attempt_timeout_ms(retry)
            tree = {"election_type": int(kind), "topic_partitions": topics, "timeout": timeout_ms}
            response = await self.cluster.call(None, ApiKey.ELECT_LEADERS, tree)
            raise_for_code(response.error_code)
            return {
                TopicPartition(topic.topic, each.partition_id): to_error(each.error_code, each.error_message)
                for topic in response.replica_election_results
                for each in topic.partition_result
            }

        if partitions is None:
            return await self._requester.with_retries(lambda retry: request(None, retry))
        return await self._requester.for_each(partitions, request)

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Starts moving partitions to these replicas, the preferred leader first; None cancels a reassignment."""
        entries = {
            each: {"partition_index": each.partition, "replicas": None if replicas is None else list(replicas)}
            for each, replicas in wanted.items()
        }

        async def request(remaining: list[TopicPartition], retry: Retry) -> Results[TopicPartition, None]:
            topics = nest_by_topic((each, entries[each]) for each in remaining)
            tree = {"timeout": self._requester.attempt_timeout_ms(retry), "topics": topics}
            response = await self._requester.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, tree)
            return {
                partition: to_error(each.error_code, each.error_message)
                for partition, each in iterate_partitions(response.responses)
            }

        return await self._requester.for_each(wanted, request)

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """Returns the ongoing reassignments of these partitions (None: of all)."""
        topics = None
        if partitions is not None:
            by_topic = group_by_topic(partitions)
            topics = [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic.items()]

        async def attempt(retry: Retry) -> dict[TopicPartition, OngoingReassignment]:
            tree = {"timeout": self._requester.attempt_timeout_ms(retry), "topics": topics}
            response = await self._requester.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, tree)
            return {
                partition: OngoingReassignment(
                    tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
                )
                for partition, each in iterate_partitions(response.topics)
            }

        return await self._requester.with_retries(attempt)

    # Brokers and configs

    async def describe_cluster(self, *, fenced_too: bool = False) -> ClusterDescription:
        tree = {"include_cluster_authorized_operations": False, "include_fenced_brokers": fenced_too}
        response = await self._requester.with_retries(lambda _: self._requester.call(ApiKey.DESCRIBE_CLUSTER, tree))
        found: dict[bool, list[BrokerInfo]] = {False: [], True: []}
        for each in response.brokers:
            broker = BrokerInfo(each.broker_id, each.host, each.port, each.rack)
            found[each.get("is_fenced", False)].append(broker)
        live, fenced = tuple(sorted(found[False])), tuple(sorted(found[True]))
        return ClusterDescription(response.cluster_id, response.controller_id, live, fenced)

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False, names: Iterable[str] | None = None
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """Returns all configs of each resource, or only the known ones among `names`."""
        keys = None if names is None else list(names)

        async def request(
            node: int | None, remaining: list[ConfigResource], retry: Retry
        ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
            tree = {
                "resources": [
                    {"resource_type": each.type, "resource_name": each.name, "configuration_keys": keys}
                    for each in remaining
                ],
                "include_synonyms": True,
                "include_documentation": documentation,
            }
            response = await self.cluster.call(node, ApiKey.DESCRIBE_CONFIGS, tree)
            return {
                parse_resource(each): to_error(each.error_code, each.error_message)
                or {config.name: parse_config_entry(config) for config in each.configs}
                for each in response.results
            }

        return await self._requester.for_each_on_node(resources, _config_node, request)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Iterable[ConfigChange]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Changes the named configs of each resource and keeps the others."""
        entries = {
            resource: {
                "resource_type": resource.type,
                "resource_name": resource.name,
                "configs": [
                    {"name": name, "config_operation": operation, "value": value} for name, value, operation in each
                ],
            }
            for resource, each in changes.items()
        }

        async def request(
            node: int | None, remaining: list[ConfigResource], retry: Retry
        ) -> Results[ConfigResource, None]:
            tree = {"resources": [entries[resource] for resource in remaining], "validate_only": validate_only}
            response = await self.cluster.call(node, ApiKey.INCREMENTAL_ALTER_CONFIGS, tree)
            return {parse_resource(each): to_error(each.error_code, each.error_message) for each in response.responses}

        return await self._requester.for_each_on_node(entries, _config_node, request)

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        return single_result(await self.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))

    async def alter_topic_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Sets configs of a topic. The value None resets a config to its default."""
        changes = [
            ConfigChange(name, value, Operation.DELETE if value is None else Operation.SET)
            for name, value in configs.items()
        ]
        single_result(await self.alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes}))

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[int, list[LogDir]]:
        """Returns the log directories of these brokers (None: of all), with the sizes of these partitions (None: of
        all)."""
        topics = None
        if partitions is not None:
            by_topic = group_by_topic(partitions)
            topics = [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]

        async def request(node: int | None, nodes: list[int], retry: Retry) -> Results[int, list[LogDir]]:
            response = await self.cluster.call(node, ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics})
            result = to_error(response.error_code) or [parse_log_dir(each) for each in response.results]
            return dict.fromkeys(nodes, result)

        if brokers is None:
            brokers = [broker.node_id for broker in (await self.describe_cluster()).brokers]
        return await self._requester.for_each_on_node(brokers, lambda node: node, request)

    # The quorum

    async def describe_quorum(self) -> QuorumInfo:
        """Returns the metadata quorum and the progress of its replicas, as its leader sees them."""

        async def attempt(retry: Retry) -> QuorumInfo:
            topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
            response = await self._requester.call(ApiKey.DESCRIBE_QUORUM, {"topics": topics})
            partition = response.topics[0].partitions[0]
            raise_for_code(partition.error_code, partition.error_message)
            return QuorumInfo(
                partition.leader_id,
                partition.leader_epoch,
                partition.high_watermark,
                tuple(parse_replica(each) for each in partition.current_voters),
                tuple(parse_replica(each) for each in partition.observers),
                {
                    node.node_id: tuple(NodeEndpoint(at.name, at.host, at.port) for at in node.listeners)
                    for node in response.nodes
                },
            )

        return await self._requester.with_retries(attempt)

    async def add_voter(self, node_id: int, directory_id: UUID | None, endpoint: NodeEndpoint) -> None:
        """Makes a node a voter once it has caught up; returns when the change is committed."""

        def tree(retry: Retry) -> dict[str, Any]:
            return {
                "cluster_id": self.cluster.cluster_id,
                # The broker gets a shorter timeout than the client, so that its error response can still arrive.
                "timeout": self._requester.attempt_timeout_ms(retry) * 9 // 10,
                "voter_id": node_id,
                "voter_directory_id": directory_id,
                "listeners": [{"name": endpoint.listener, "host": endpoint.host, "port": endpoint.port}],
                "ack_when_committed": True,
            }

        await self._requester.call_idempotent(ApiKey.ADD_RAFT_VOTER, tree, ErrorCode.duplicate_voter)

    async def remove_voter(self, node_id: int, directory_id: UUID | None) -> None:
        tree = {"cluster_id": self.cluster.cluster_id, "voter_id": node_id, "voter_directory_id": directory_id}
        await self._requester.call_idempotent(ApiKey.REMOVE_RAFT_VOTER, lambda _: tree, ErrorCode.voter_not_found)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker that will not return."""
        tree = {"broker_id": broker_id}
        code = ErrorCode.broker_id_not_registered
        await self._requester.call_idempotent(ApiKey.UNREGISTER_BROKER, lambda _: tree, code)

    # Groups

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """Returns the groups of all brokers sorted by id, optionally only groups in these states or of these types.

        Raises KafkaError if one broker cannot be queried, because the list would be incomplete.
        """
        tree = {"states_filter": list(states), "types_filter": list(types)}

        async def request(node: int) -> list[GroupListing]:
            response = await self.cluster.call(node, ApiKey.LIST_GROUPS, tree)
            if tree["types_filter"] and response.api_version < _GROUP_TYPES_VERSION_MIN:
                raise KafkaError(ErrorCode.unsupported_version, "the broker does not support listing groups by type")
            raise_for_code(response.error_code)
            return [
                GroupListing(each.group_id, each.protocol_type, each.group_state, each.get("group_type", ""))
                for each in response.groups
            ]

        listed = await self._requester.on_all_brokers(request)
        return sorted({each.group_id: each for each in listed}.values())

    async def describe_groups(self, groups: Iterable[str]) -> Results[str, GroupDescription]:
        """Describes groups. The error for a group that does not exist is GROUP_ID_NOT_FOUND."""

        async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, GroupDescription]:
            tree = {"groups": remaining, "include_authorized_operations": False}
            response = await self.cluster.call(node, ApiKey.DESCRIBE_GROUPS, tree)
            assert node is not None
            return {each.group_id: parse_group(each, node) for each in response.groups}

        return await self._requester.for_each_on_coordinator(groups, request)

    async def describe_group(self, group: str) -> GroupDescription:
        return single_result(await self.describe_groups([group]))

    async def describe_group_lags(self, groups: Iterable[str]) -> Results[str, GroupLagSample]:
        """Returns the lag of groups as their coordinators have sampled it: records, seconds, rates and states.

        A group whose lag is requested for the first time has no rates yet. Only brokers of Moldau have samples: with
        others the error is UnsupportedVersionError.
        """

        async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, GroupLagSample]:
            return await request_group_lags(self, node, remaining)

        return await self._requester.for_each_on_coordinator(groups, request)

    async def list_group_lags(self) -> list[GroupLagSample]:
        """Returns the lag of all groups; see `describe_group_lags`."""

        async def request(node: int) -> list[GroupLagSample]:
            results = await request_group_lags(self, node, ())
            # A group whose coordinator has changed meanwhile is in the response of another broker.
            return [each for each in results.values() if not isinstance(each, KafkaError)]

        listed = await self._requester.on_all_brokers(request)
        return sorted({each.group: each for each in listed}.values(), key=lambda each: each.group)

    async def delete_groups(self, groups: Iterable[str]) -> Results[str, None]:
        async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, None]:
            response = await self.cluster.call(node, ApiKey.DELETE_GROUPS, {"groups_names": remaining})
            return {
                each.group_id: to_error(each.error_code, f"the group {each.group_id!r}") for each in response.results
            }

        return await self._requester.for_each_on_coordinator(groups, request)

    async def delete_group(self, group: str) -> None:
        single_result(await self.delete_groups([group]))

    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of these partitions (None: of all), without partitions that have none."""
        offsets = GroupOffsets(self.cluster, group)
        return await offsets.committed(partitions, require_stable=False, timeout_ms=self._timeout_ms)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        """Sets committed offsets. Brokers reject this while the group has members (UNKNOWN_MEMBER_ID)."""
        commits = {
            partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }
        return await GroupOffsets(self.cluster, group).commit_each(commits, timeout_ms=self._timeout_ms)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Deletes committed offsets. Brokers reject this for topics that members subscribe to."""

        def parse(response: Message) -> Results[TopicPartition, None]:
            raise_for_code(response.error_code, f"the group {group!r}")
            return parse_partition_errors(response)

        topics = nest_by_topic((each, {"partition_index": each.partition}) for each in partitions)
        tree = {"group_id": group, "topics": topics}
        return await self.cluster.call_coordinator(group, ApiKey.OFFSET_DELETE, tree, parse, self._timeout_ms)

    async def remove_members(
        self, group: str, members: Iterable[MemberToRemove] | None = None, *, reason: str = ""
    ) -> Results[MemberToRemove, None]:
        """Removes these members from a group, or all members."""
        if members is None:
            described = await self.describe_group(group)
            members = [MemberToRemove(each.member_id, each.instance_id) for each in described.members]
        leaving = list(members)
        if not leaving:
            return {}

        def parse(response: Message) -> Results[MemberToRemove, None]:
            raise_for_code(response.error_code, f"the group {group!r}")
            # Match by position, because the response may have a member id where the request had only an instance id.
            return {
                member: to_error(each.error_code, f"{member.instance_id or member.member_id}")
                for member, each in zip(leaving, response.members, strict=True)
            }

        entries = [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "reason": reason or None}
            for each in leaving
        ]
        tree = {"group_id": group, "members": entries}
        return await self.cluster.call_coordinator(group, ApiKey.LEAVE_GROUP, tree, parse, self._timeout_ms)

    # Transactions

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators, sorted. Filters select by state, producer id, running time
        and a regular expression for the transactional id.

        Raises KafkaError if one broker cannot be queried, because the list would be incomplete.
        """
        tree = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        version_min = _PATTERN_VERSION_MIN if pattern else _DURATION_VERSION_MIN if longer_than_ms >= 0 else 0

        async def request(node: int) -> list[TransactionListing]:
            response = await self.cluster.call(node, ApiKey.LIST_TRANSACTIONS, tree)
            if response.api_version < version_min:
                raise KafkaError(
                    ErrorCode.unsupported_version, "the broker does not support listing transactions with this filter"
                )
            raise_for_code(response.error_code)
            return [
                TransactionListing(each.transactional_id, each.producer_id, each.transaction_state, node)
                for each in response.transaction_states
            ]

        listed = await self._requester.on_all_brokers(request)
        return sorted({each.transactional_id: each for each in listed}.values())

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> Results[str, TransactionDescription]:
        """Describes transactions. The error for an unknown transactional id is TRANSACTIONAL_ID_NOT_FOUND."""

        async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, TransactionDescription]:
            tree = {"transactional_ids": remaining}
            response = await self.cluster.call(node, ApiKey.DESCRIBE_TRANSACTIONS, tree)
            assert node is not None
            return {each.transactional_id: parse_transaction(each, node) for each in response.transaction_states}

        return await self._requester.for_each_on_coordinator(transactional_ids, request, kind=TRANSACTION)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        return single_result(await self.describe_transactions([transactional_id]))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, list[ProducerState]]:
        """Returns the producers that the leader of each partition knows, idempotent and transactional ones."""

        async def request(
            node: int | None, remaining: list[TopicPartition], retry: Retry
        ) -> Results[TopicPartition, list[ProducerState]]:
            topics = [
                {"name": name, "partition_indexes": indexes} for name, indexes in group_by_topic(remaining).items()
            ]
            response = await self.cluster.call(node, ApiKey.DESCRIBE_PRODUCERS, {"topics": topics})
            return {
                partition: to_error(each.error_code, each.error_message)
                or [parse_producer(producer) for producer in each.active_producers]
                for partition, each in iterate_partitions(response.topics)
            }

        return await self._requester.for_each_on_leader(partitions, request)

    async def find_open_transactions(self, partitions: Iterable[TopicPartition] | None = None) -> OpenTransactions:
        """Finds the transactions that are open in these partitions (None: in all), and tells hanging ones apart.

        Compares the producers that leaders know with the transactions that coordinators know. The first transaction of
        a partition holds back its last stable offset.
        """
        if partitions is None:
            topics = await self.list_topics(internal=True)
            partitions = [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]
            found = await find_open_transactions(self, partitions)
            # A topic may have been deleted during the search.
            deleted = ErrorCode.unknown_topic_or_partition
            errors = {each: error for each, error in found.errors.items() if error.code is not deleted}
            return found._replace(errors=errors)
        return await find_open_transactions(self, list(dict.fromkeys(partitions)))

    async def fence_producers(self, transactional_ids: Iterable[str]) -> Results[str, None]:
        """Fences the producers with these transactional ids, which aborts their open transactions.

        Returns when the abort is complete. An unknown transactional id is created.
        """

        async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, None]:
            results: Results[str, None] = {}
            for transactional_id in remaining:
                tree = {
                    "transactional_id": transactional_id,
                    "transaction_timeout": _FENCING_TIMEOUT_MS,
                    "producer_id": -1,
                    "producer_epoch": -1,
                }
                response = await self.cluster.call(node, ApiKey.INIT_PRODUCER_ID, tree)
                # CONCURRENT_TRANSACTIONS, until the abort is complete, is retried.
                results[transactional_id] = to_error(response.error_code, f"the transactional id {transactional_id!r}")
            return results

        return await self._requester.for_each_on_coordinator(transactional_ids, request, kind=TRANSACTION)

    async def abort_transaction(self, spec: AbortTransactionSpec) -> None:
        """Writes an abort marker to one partition. This is only for hanging transactions (`find_open_transactions`).

        The coordinator does not take part, so a transaction that is not hanging would be torn: aborted in this
        partition, and perhaps committed in others. `fence_producers` aborts such a transaction.
        """
        topic, index = spec.partition
        marker = {
            "producer_id": spec.producer_id,
            "producer_epoch": spec.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "coordinator_epoch": spec.coordinator_epoch,
            "transaction_version": 0,
        }

        async def request(
            node: int | None, partitions: list[TopicPartition], retry: Retry
        ) -> Results[TopicPartition, None]:
            response = await self.cluster.call(node, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
            return {
                partition: to_error(each.error_code, f"the marker of producer {spec.producer_id} in {partition}")
                for result in response.markers
                for partition, each in iterate_partitions(result.topics)
            }

        single_result(await self._requester.for_each_on_leader([spec.partition], request))


def _creatable_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        # Brokers require that partition count and replication factor are unset if the replicas are given.
        "num_partitions": BROKER_DEFAULT if topic.assignments else topic.partitions,
        "replication_factor": BROKER_DEFAULT if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)} for index, brokers in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _config_node(resource: ConfigResource) -> int | None:
    """Returns the node to ask: for the configs of one broker that broker, for other configs None (any node)."""
    if resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdecimal():
        return int(resource.name)
    return None
