"""Settings as DescribeConfigs tells them: each with its value, where that comes from, and what it hides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from moldau.settings.broker import BrokerSettings, broker_definitions, get_value
from moldau.settings.registry import Alias, ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import format_value


class ConfigSource(IntEnum):
    """As DescribeConfigs numbers them, the strongest first."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None where the setting is sensitive."""
    source: ConfigSource
    is_sensitive: bool
    read_only: bool
    type: ConfigType
    documentation: str
    synonyms: Sequence[ConfigSynonym]
    """Every value the setting has anywhere, the one in force first."""


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """Where a broker's settings come from."""

    static: BrokerSettings
    dynamic_default: Mapping[str, str]
    """Changed for all brokers."""
    dynamic: Mapping[str, str]
    """Changed for this broker."""


def describe_topic(overrides: Mapping[str, str], layers: ConfigLayers) -> list[ConfigEntry]:
    entries = []
    for name, found in setting_definitions(TopicSettings).items():
        assert found.setting.broker_name is not None
        beneath = list(_broker_synonyms(broker_definitions()[found.setting.broker_name], layers))
        own = [ConfigSynonym(name, overrides[name], ConfigSource.TOPIC)] if name in overrides else []
        entries.append(_build_entry(name, found, own + beneath, read_only=False))
    return entries


def describe_broker(layers: ConfigLayers) -> list[ConfigEntry]:
    entries = []
    for name, found in broker_definitions().items():
        synonyms = list(_broker_synonyms(found, layers))
        entries.append(_build_entry(name, found, synonyms, read_only=not found.setting.dynamic))
        # Tools written for Kafka look for its names; those that cannot be changed here say so.
        entries += [
            _build_entry(alias.name, found, [_alias_synonym(alias, found, synonyms)], read_only=True)
            for alias in found.setting.aliases
        ]
    return entries


def describe_broker_defaults(layers: ConfigLayers) -> list[ConfigEntry]:
    """Of all brokers together only what was changed is told."""
    registry = broker_definitions()
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        _build_entry(name, registry[name], [ConfigSynonym(name, value, source)], read_only=False)
        for name, value in sorted(layers.dynamic_default.items())
        if name in registry
    ]


def _broker_synonyms(found: SettingDefinition, layers: ConfigLayers) -> Iterator[ConfigSynonym]:
    name = found.setting.name
    if name in layers.dynamic:
        yield ConfigSynonym(name, layers.dynamic[name], ConfigSource.DYNAMIC_BROKER)
    if name in layers.dynamic_default:
        yield ConfigSynonym(name, layers.dynamic_default[name], ConfigSource.DYNAMIC_DEFAULT_BROKER)
    value = get_value(layers.static, name)
    if name in layers.static.explicitly_set or value != found.default:
        yield ConfigSynonym(name, format_value(value), ConfigSource.STATIC_BROKER)
    yield ConfigSynonym(name, format_value(found.default), ConfigSource.DEFAULT)


def _alias_synonym(
    alias: Alias, found: SettingDefinition, synonyms: Sequence[ConfigSynonym]
) -> ConfigSynonym:
    """The value in force under another name; None where the coarser unit cannot say it."""
    in_force = synonyms[0]
    value = in_force.value
    if alias.factor > 1 and value is not None:
        units, rest = divmod(int(value), alias.factor)
        value = None if rest else str(units)
    return ConfigSynonym(alias.name, value, in_force.source)


def _build_entry(
    name: str, found: SettingDefinition, synonyms: Sequence[ConfigSynonym], *, read_only: bool
) -> ConfigEntry:
    sensitive = found.setting.sensitive
    if sensitive:
        synonyms = [ConfigSynonym(each.name, None, each.source) for each in synonyms]
    in_force = synonyms[0]
    return ConfigEntry(
        name=name,
        value=in_force.value,
        source=in_force.source,
        is_sensitive=sensitive,
        read_only=read_only,
        type=found.type,
        documentation=found.setting.doc,
        synonyms=synonyms,
    )
