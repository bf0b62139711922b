"""The admin client's part for brokers: the cluster, configs, and what lies in the log directories."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from moldau.client.admin.requester import AdminRequester, Results, single_result, to_error
from moldau.client.errors import KafkaError, raise_for_code
from moldau.client.net.cluster import Retry
from moldau.client.net.metadata import BrokerInfo
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    UNKNOWN = -1
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Operation(enum.IntEnum):
    """What an alteration does to a config; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str
    """A broker's is its id, or empty for what all brokers share."""


class ConfigChange(NamedTuple):
    name: str
    value: str | None
    operation: Operation = Operation.SET


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None where it is not set, or secret."""
    source: int
    """A ConfigSource, or a number of a newer broker."""
    is_read_only: bool
    is_sensitive: bool
    synonyms: Sequence[ConfigSynonym] = ()
    """Where the value comes from, the first that is set counting."""
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    """Where changes are asked for; others hand them on."""
    brokers: tuple[BrokerInfo, ...]
    """Those that are alive."""
    fenced: tuple[BrokerInfo, ...] = ()
    """Those that are registered and not alive, where they were asked for."""


class LogDirReplica(NamedTuple):
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: KafkaError | None
    replicas: Mapping[TopicPartition, LogDirReplica]
    total_bytes: int
    """-1 where the broker does not say."""
    usable_bytes: int


class ClusterAdmin(AdminRequester):
    async def describe_cluster(self, *, fenced_too: bool = False) -> ClusterDescription:
        async def attempt(retry: Retry) -> ClusterDescription:
            tree = {"include_cluster_authorized_operations": False, "include_fenced_brokers": fenced_too}
            answer = await self._cluster.call(None, ApiKey.DESCRIBE_CLUSTER, tree)
            raise_for_code(answer.error_code, answer.error_message)
            found: dict[bool, list[BrokerInfo]] = {False: [], True: []}
            for each in answer.brokers:
                broker = BrokerInfo(each.broker_id, each.host, each.port, each.rack)
                found[each.get("is_fenced", False)].append(broker)
            alive, fenced = (tuple(sorted(found[is_fenced])) for is_fenced in (False, True))
            return ClusterDescription(answer.cluster_id, answer.controller_id, alive, fenced)

        return await self.call_once(attempt)

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """All configs of each resource, by name."""

        async def ask_node(
            node: int | None, left: list[ConfigResource], retry: Retry
        ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
            tree = {
                "resources": [
                    {"resource_type": each.type, "resource_name": each.name, "configuration_keys": None}
                    for each in left
                ],
                "include_synonyms": True,
                "include_documentation": documentation,
            }
            answer = await self._cluster.call(node, ApiKey.DESCRIBE_CONFIGS, tree)
            return {
                _parse_resource(each): to_error(each.error_code, each.error_message)
                or {config.name: _parse_config_entry(config) for config in each.configs}
                for each in answer.results
            }

        async def ask(
            left: list[ConfigResource], retry: Retry
        ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
            return await self.call_by_node({each: _config_node(each) for each in left}, ask_node, retry)

        return await self.call_for_each(resources, ask)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Iterable[ConfigChange]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Changes what is named and leaves the other configs of a resource as they are."""
        wanted = {resource: list(each) for resource, each in changes.items()}

        async def ask_node(
            node: int | None, left: list[ConfigResource], retry: Retry
        ) -> Results[ConfigResource, None]:
            tree = {
                "resources": [
                    {
                        "resource_type": resource.type,
                        "resource_name": resource.name,
                        "configs": [
                            {"name": name, "config_operation": operation, "value": value}
                            for name, value, operation in wanted[resource]
                        ],
                    }
                    for resource in left
                ],
                "validate_only": validate_only,
            }
            answer = await self._cluster.call(node, ApiKey.INCREMENTAL_ALTER_CONFIGS, tree)
            return {
                _parse_resource(each): to_error(each.error_code, each.error_message)
                for each in answer.responses
            }

        async def ask(left: list[ConfigResource], retry: Retry) -> Results[ConfigResource, None]:
            return await self.call_by_node({each: _config_node(each) for each in left}, ask_node, retry)

        return await self.call_for_each(wanted, ask)

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        return single_result(await self.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))

    async def alter_topic_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Sets configs of a topic; None takes one back to its default."""
        changes = [
            ConfigChange(name, value, Operation.DELETE if value is None else Operation.SET)
            for name, value in configs.items()
        ]
        single_result(await self.alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes}))

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> Results[int, list[LogDir]]:
        """What lies where on these brokers, or on all."""

        async def ask_node(node: int | None, _: list[int], retry: Retry) -> Results[int, list[LogDir]]:
            answer = await self._cluster.call(node, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
            assert node is not None
            return {node: to_error(answer.error_code) or [_parse_log_dir(each) for each in answer.results]}

        async def ask(left: list[int], retry: Retry) -> Results[int, list[LogDir]]:
            return await self.call_by_node({node: node for node in left}, ask_node, retry)

        if brokers is None:
            brokers = [broker.node_id for broker in (await self.describe_cluster()).brokers]
        return await self.call_for_each(brokers, ask)


def _config_node(resource: ConfigResource) -> int | None:
    """A broker alone knows what is configured for it; anyone knows the rest."""
    if resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdecimal():
        return int(resource.name)
    return None


def _parse_resource(answer: Message) -> ConfigResource:
    return ConfigResource(ResourceType(answer.resource_type), answer.resource_name)


def _parse_config_entry(config: Message) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, each.source) for each in config.synonyms),
        config.get("documentation"),
    )


def _parse_log_dir(answer: Any) -> LogDir:
    return LogDir(
        answer.log_dir,
        to_error(answer.error_code),
        {
            TopicPartition(topic.name, each.partition_index): LogDirReplica(
                each.partition_size, each.offset_lag, each.is_future_key
            )
            for topic in answer.topics
            for each in topic.partitions
        },
        answer.get("total_bytes", -1),
        answer.get("usable_bytes", -1),
    )
