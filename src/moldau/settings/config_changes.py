"""Parsing of config changes by AlterConfigs and CreateTopics."""

from collections.abc import Mapping
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.metadata.image import TOPIC_RESOURCE
from moldau.settings.broker import broker_aliases, broker_definitions
from moldau.settings.option_parser import did_you_mean
from moldau.settings.registry import ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import format_value, parse_value, split_list
from moldau.wire.decoder_runtime import STRING_BYTES_MAX


def parse_changes(resource_type: int, configs: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the values of topic or broker configs by name, without unknown broker configs.

    Raises InvalidConfigError if a config is invalid. Unknown broker configs are valid, as in Kafka, where plugins may
    read them.
    """
    values = {}
    for name, text in configs.items():
        definition = _find_definition(resource_type, name)
        if text is None:
            raise InvalidConfigError(f"Null value not supported for {_kind(resource_type)} configs: {name}")
        # The size is limited, because APPEND can build a value that does not fit into a DescribeConfigs response.
        size_bytes = len(text.encode())
        if size_bytes > STRING_BYTES_MAX:
            raise InvalidConfigError(
                f"The value of configuration {name} has {size_bytes} bytes; the maximum is {STRING_BYTES_MAX}"
            )
        if definition is not None:
            values[name] = parse_value(definition, text)
        elif resource_type == TOPIC_RESOURCE:
            hint = did_you_mean(name, setting_definitions(TopicSettings))
            raise InvalidConfigError(f"Unknown topic config name: {name}{hint}")
        elif name in broker_aliases():
            target, _ = broker_aliases()[name]
            raise InvalidConfigError(f"Cannot update these configs dynamically: {name}; change {target.name} instead")
    return values


def append_to_list(resource_type: int, name: str, current: str | None, added: str | None) -> str:
    """Returns the value of a list config after APPEND. `current` is None if the resource does not set the config."""
    elements, change = _list_change(resource_type, name, current, added, "append")
    return format_value(tuple(dict.fromkeys(elements + change)))


def subtract_from_list(resource_type: int, name: str, current: str | None, removed: str | None) -> str:
    """Returns the value of a list config after SUBTRACT. `current` is None if the resource does not set the config."""
    elements, change = _list_change(resource_type, name, current, removed, "subtract")
    return format_value(tuple(element for element in elements if element not in change))


def _list_change(
    resource_type: int, name: str, current: str | None, change: str | None, operation: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    definition = _find_definition(resource_type, name)
    if definition is None or definition.type is not ConfigType.LIST:
        if resource_type == TOPIC_RESOURCE:
            raise InvalidConfigError(f"Can't {operation.upper()} to key {name} because its type is not LIST.")
        if definition is None and name not in broker_aliases():
            raise InvalidConfigError(f"Unknown config name: {name}")
        raise InvalidConfigError(f"Config value {operation} is not allowed for config key: {name}")
    if change is None:
        raise InvalidConfigError(f"Null value not supported to {operation}: {name}")
    # The elements are not validated here, because `parse_changes` validates the resulting list.
    return (definition.default if current is None else split_list(current)), split_list(change)


def _kind(resource_type: int) -> str:
    return "topic" if resource_type == TOPIC_RESOURCE else "broker"


def _find_definition(resource_type: int, name: str) -> SettingDefinition | None:
    definitions = setting_definitions(TopicSettings) if resource_type == TOPIC_RESOURCE else broker_definitions()
    return definitions.get(name)
