"""Validation of config changes by AlterConfigs and CreateTopics."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.metadata.image import TOPIC_RESOURCE
from moldau.settings.broker import BrokerSettings, broker_aliases, broker_definitions, with_values
from moldau.settings.option_parser import did_you_mean
from moldau.settings.registry import ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import format_value, parse_value
from moldau.wire.decoder_runtime import STRING_BYTES_MAX


def validate_topic_configs(configs: Mapping[str, str | None], defaults: TopicSettings | None = None) -> None:
    """Raises InvalidConfigError if a topic config is invalid or contradicts another config."""
    definitions = setting_definitions(TopicSettings)
    values = _parse_all(configs, definitions, "topic")
    changes = {definitions[name].attribute: value for name, value in values.items()}
    _raise_conflict(dataclasses.replace(defaults or TopicSettings(), **changes).find_conflict())


def validate_broker_configs(configs: Mapping[str, str | None], static: BrokerSettings | None = None) -> None:
    """Raises InvalidConfigError if a broker config is invalid, is not dynamic, or contradicts another config."""
    definitions = broker_definitions()
    values = _parse_all(configs, definitions, "broker")
    static_names = [name for name in values if not definitions[name].dynamic]
    if static_names:
        raise InvalidConfigError(
            f"Cannot update these configs dynamically: {', '.join(static_names)}; set them when starting the broker"
        )
    settings = static or BrokerSettings()
    _raise_conflict(with_values(settings, values, settings.explicitly_set).find_conflict())


def append_to_list(resource_type: int, name: str, current: str | None, added: str | None) -> str:
    """Returns the value of a list config after APPEND. `current` is None if the resource does not set the config."""
    elements, change = _list_change(resource_type, name, current, added, "append")
    return format_value(tuple(dict.fromkeys(elements + change)))


def subtract_from_list(resource_type: int, name: str, current: str | None, removed: str | None) -> str:
    """Returns the value of a list config after SUBTRACT. `current` is None if the resource does not set the config."""
    elements, change = _list_change(resource_type, name, current, removed, "subtract")
    return format_value(tuple(element for element in elements if element not in change))


def find_setting(resource_type: int, name: str) -> SettingDefinition:
    """Returns a setting of a topic or a broker. Raises InvalidConfigError if the name is unknown."""
    if resource_type == TOPIC_RESOURCE:
        return _find(name, setting_definitions(TopicSettings), "topic")
    return _find(name, broker_definitions(), "broker")


def _list_change(
    resource_type: int, name: str, current: str | None, change: str | None, verb: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    definition = find_setting(resource_type, name)
    if definition.type is not ConfigType.LIST:
        raise InvalidConfigError(f"Can't {verb} to key {name} because its type is not LIST")
    if change is None:
        raise InvalidConfigError(f"Null value not supported to {verb}: {name}")
    # The elements are validated later, together with the rest of the change.
    return (definition.default if current is None else _split_list(current)), _split_list(change)


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_all(
    configs: Mapping[str, str | None], definitions: Mapping[str, SettingDefinition], kind: str
) -> dict[str, Any]:
    values = {}
    for name, text in configs.items():
        definition = _find(name, definitions, kind)
        if text is None:
            raise InvalidConfigError(f"Null value not supported for {kind} configs: {name}")
        # The size is limited, because APPEND can build a value that does not fit into a DescribeConfigs response.
        size_bytes = len(text.encode())
        if size_bytes > STRING_BYTES_MAX:
            raise InvalidConfigError(
                f"The value of configuration {name} has {size_bytes} bytes; the maximum is {STRING_BYTES_MAX}"
            )
        values[name] = parse_value(definition, text)
    return values


def _find(name: str, definitions: Mapping[str, SettingDefinition], kind: str) -> SettingDefinition:
    definition = definitions.get(name)
    if definition is not None:
        return definition
    if kind == "broker" and name in broker_aliases():
        target, _ = broker_aliases()[name]
        raise InvalidConfigError(f"Cannot update these configs dynamically: {name}; change {target.name} instead")
    raise InvalidConfigError(f"Unknown {kind} config name: {name}{did_you_mean(name, definitions)}")


def _raise_conflict(conflict: str | None) -> None:
    if conflict is not None:
        raise InvalidConfigError(conflict)
