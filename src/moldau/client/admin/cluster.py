"""Admin requests for brokers, configs and log directories; `Admin` documents them."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from moldau.client.admin.requester import AdminRequester, Results, to_error
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
    """How a config changes; APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str
    """The name of the resource. For a broker it is the broker id, or empty for the defaults of all brokers."""


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
    """None if the config is unset or sensitive."""
    source: int
    """A ConfigSource, or another number from a newer broker."""
    is_read_only: bool
    is_sensitive: bool
    synonyms: Sequence[ConfigSynonym] = ()
    """All sources that set the config. The effective source comes first."""
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    """The broker to which changes should be sent. Other brokers forward changes."""
    brokers: tuple[BrokerInfo, ...]
    """The live brokers."""
    fenced: tuple[BrokerInfo, ...] = ()
    """The registered brokers that are not live, if requested."""


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
    """The size of the volume; -1 if the broker did not return it."""
    usable_bytes: int


async def describe_cluster(admin: AdminRequester, fenced_too: bool) -> ClusterDescription:
    async def attempt(retry: Retry) -> ClusterDescription:
        tree = {"include_cluster_authorized_operations": False, "include_fenced_brokers": fenced_too}
        response = await admin.cluster.call(None, ApiKey.DESCRIBE_CLUSTER, tree)
        raise_for_code(response.error_code, response.error_message)
        found: dict[bool, list[BrokerInfo]] = {False: [], True: []}
        for each in response.brokers:
            broker = BrokerInfo(each.broker_id, each.host, each.port, each.rack)
            found[each.get("is_fenced", False)].append(broker)
        alive, fenced = (tuple(sorted(found[is_fenced])) for is_fenced in (False, True))
        return ClusterDescription(response.cluster_id, response.controller_id, alive, fenced)

    return await admin.with_retries(attempt)


async def describe_configs(
    admin: AdminRequester, resources: Iterable[ConfigResource], documentation: bool
) -> Results[ConfigResource, dict[str, ConfigEntry]]:
    async def request_node(
        node: int | None, remaining: list[ConfigResource], retry: Retry
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        tree = {
            "resources": [
                {"resource_type": each.type, "resource_name": each.name, "configuration_keys": None}
                for each in remaining
            ],
            "include_synonyms": True,
            "include_documentation": documentation,
        }
        response = await admin.cluster.call(node, ApiKey.DESCRIBE_CONFIGS, tree)
        return {
            _parse_resource(each): to_error(each.error_code, each.error_message)
            or {config.name: _parse_config_entry(config) for config in each.configs}
            for each in response.results
        }

    async def request(remaining: list[ConfigResource], retry: Retry) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        return await admin.by_node({each: _config_node(each) for each in remaining}, request_node, retry)

    return await admin.for_each(resources, request)


async def alter_configs(
    admin: AdminRequester, changes: Mapping[ConfigResource, Iterable[ConfigChange]], validate_only: bool
) -> Results[ConfigResource, None]:
    changes_by_resource = {resource: list(each) for resource, each in changes.items()}

    async def request_node(
        node: int | None, remaining: list[ConfigResource], retry: Retry
    ) -> Results[ConfigResource, None]:
        tree = {
            "resources": [
                {
                    "resource_type": resource.type,
                    "resource_name": resource.name,
                    "configs": [
                        {"name": name, "config_operation": operation, "value": value}
                        for name, value, operation in changes_by_resource[resource]
                    ],
                }
                for resource in remaining
            ],
            "validate_only": validate_only,
        }
        response = await admin.cluster.call(node, ApiKey.INCREMENTAL_ALTER_CONFIGS, tree)
        return {_parse_resource(each): to_error(each.error_code, each.error_message) for each in response.responses}

    async def request(remaining: list[ConfigResource], retry: Retry) -> Results[ConfigResource, None]:
        return await admin.by_node({each: _config_node(each) for each in remaining}, request_node, retry)

    return await admin.for_each(changes_by_resource, request)


async def describe_log_dirs(admin: AdminRequester, brokers: Iterable[int] | None) -> Results[int, list[LogDir]]:
    async def request_node(node: int | None, _: list[int], retry: Retry) -> Results[int, list[LogDir]]:
        response = await admin.cluster.call(node, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        assert node is not None
        return {node: to_error(response.error_code) or [_parse_log_dir(each) for each in response.results]}

    async def request(remaining: list[int], retry: Retry) -> Results[int, list[LogDir]]:
        return await admin.by_node({node: node for node in remaining}, request_node, retry)

    if brokers is None:
        brokers = [broker.node_id for broker in (await describe_cluster(admin, fenced_too=False)).brokers]
    return await admin.for_each(brokers, request)


def _config_node(resource: ConfigResource) -> int | None:
    """Returns the node for a request: the broker for its own configs, None (any node) for other configs."""
    if resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdecimal():
        return int(resource.name)
    return None


def _parse_resource(response: Message) -> ConfigResource:
    return ConfigResource(ResourceType(response.resource_type), response.resource_name)


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


def _parse_log_dir(response: Any) -> LogDir:
    return LogDir(
        response.log_dir,
        to_error(response.error_code),
        {
            TopicPartition(topic.name, each.partition_index): LogDirReplica(
                each.partition_size, each.offset_lag, each.is_future_key
            )
            for topic in response.topics
            for each in topic.partitions
        },
        response.get("total_bytes", -1),
        response.get("usable_bytes", -1),
    )
