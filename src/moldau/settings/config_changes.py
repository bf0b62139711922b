"""Changes to settings that clients ask for while the node runs: which are valid, and what lists become."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.metadata.image import TOPIC_RESOURCE
from moldau.settings.broker import BrokerSettings, broker_aliases, broker_definitions, with_values
from moldau.settings.registry import ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import did_you_mean, format_value, parse_value
from moldau.wire.decoder_runtime import STRING_BYTES_MAX


def validate_topic_configs(configs: Mapping[str, str | None], defaults: TopicSettings | None = None) -> None:
    """All the configs a topic is to have of its own; InvalidConfigError for the first that cannot be."""
    registry = setting_definitions(TopicSettings)
    values = _parse_all(configs, registry, "topic")
    changed = {registry[name].attribute: value for name, value in values.items()}
    _raise_conflict(dataclasses.replace(defaults or TopicSettings(), **changed).find_conflict())


def validate_broker_configs(configs: Mapping[str, str | None], static: BrokerSettings | None = None) -> None:
    """All the dynamic configs a broker, or all brokers together, are to have."""
    registry = broker_definitions()
    values = _parse_all(configs, registry, "broker")
    fixed = [name for name in values if not registry[name].setting.dynamic]
    if fixed:
        raise InvalidConfigError(
            f"Cannot update these configs dynamically: {', '.join(fixed)}; set them when starting the broker"
        )
    settings = static or BrokerSettings()
    _raise_conflict(with_values(settings, values, settings.explicitly_set).find_conflict())


def append_to_list(resource_type: int, name: str, current: str | None, added: str | None) -> str:
    """What APPEND makes of a list config. `current` is the resource's own value; None means it has none."""
    parts, change = _list_change(resource_type, name, current, added, "append")
    return format_value(tuple(dict.fromkeys(parts + change)))


def subtract_from_list(resource_type: int, name: str, current: str | None, removed: str | None) -> str:
    """What SUBTRACT makes of a list config."""
    parts, change = _list_change(resource_type, name, current, removed, "subtract")
    return format_value(tuple(part for part in parts if part not in change))


def find_setting(resource_type: int, name: str) -> SettingDefinition:
    """The setting of a topic or a broker by name; InvalidConfigError where there is none."""
    is_topic = resource_type == TOPIC_RESOURCE
    return _find(
        name,
        setting_definitions(TopicSettings) if is_topic else broker_definitions(),
        "topic" if is_topic else "broker",
    )


def _list_change(
    resource_type: int, name: str, current: str | None, change: str | None, verb: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = find_setting(resource_type, name)
    if found.type is not ConfigType.LIST:
        raise InvalidConfigError(f"Can't {verb} to key {name} because its type is not LIST")
    if change is None:
        raise InvalidConfigError(f"Null value not supported to {verb}: {name}")
    # Not checked yet: the list as a whole is, when the change is validated.
    return (found.default if current is None else _split_list(current)), _split_list(change)


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_all(
    configs: Mapping[str, str | None], registry: Mapping[str, SettingDefinition], kind: str
) -> dict[str, Any]:
    values = {}
    for name, text in configs.items():
        found = _find(name, registry, kind)
        if text is None:
            raise InvalidConfigError(f"Null value not supported for {kind} configs: {name}")
        _check_size(name, text)
        values[name] = parse_value(found, text)
    return values


def _check_size(name: str, text: str) -> None:
    """What APPEND makes may be longer than any value that a client can send, and that a client can be told."""
    size = len(text.encode())
    if size > STRING_BYTES_MAX:
        raise InvalidConfigError(
            f"The value of configuration {name} would have {size} bytes, and cannot have more than {STRING_BYTES_MAX}"
        )


def _find(name: str, registry: Mapping[str, SettingDefinition], kind: str) -> SettingDefinition:
    found = registry.get(name)
    if found is not None:
        return found
    alias = broker_aliases().get(name) if kind == "broker" else None
    if alias is not None:
        hint = f"; change {alias[0].setting.name} instead"
        raise InvalidConfigError(f"Cannot update these configs dynamically: {name}{hint}")
    raise InvalidConfigError(f"Unknown {kind} config name: {name}{did_you_mean(name, registry)}")


def _raise_conflict(find_conflict: str | None) -> None:
    if find_conflict is not None:
        raise InvalidConfigError(find_conflict)
