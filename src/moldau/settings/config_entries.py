"""Config entries of DescribeConfigs: value, source and synonyms of each setting."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from moldau.settings.broker import BrokerSettings, broker_aliases, broker_definitions, get_value
from moldau.settings.registry import Alias, ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import format_value


class ConfigSource(IntEnum):
    """Config sources with the numbers that DescribeConfigs uses, highest precedence first."""

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
    """None if the entry is sensitive, or if it is an alias and the setting's value is not a multiple of the alias's
    unit."""
    source: ConfigSource
    read_only: bool
    type: ConfigType
    documentation: str | None
    synonyms: Sequence[ConfigSynonym]
    """The values from all sources, the effective value first."""
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """The sources of a broker's settings."""

    static: BrokerSettings
    dynamic_default: Mapping[str, str]
    """Dynamic configs that apply to all brokers."""
    dynamic: Mapping[str, str]
    """Dynamic configs of this broker."""

    def describe_topic(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """Returns the settings of a topic that has the configs `overrides`."""
        entries = []
        for name, definition in setting_definitions(TopicSettings).items():
            if definition.broker_name is None:
                synonyms = [ConfigSynonym(name, format_value(definition.default), ConfigSource.DEFAULT)]
            else:
                synonyms = list(self._broker_synonyms(broker_definitions()[definition.broker_name]))
            if name in overrides:
                synonyms.insert(0, ConfigSynonym(name, overrides[name], ConfigSource.TOPIC))
            entries.append(_build_entry(name, definition, synonyms, read_only=False))
        return entries

    def describe_broker(self) -> list[ConfigEntry]:
        entries = []
        for name, definition in broker_definitions().items():
            synonyms = list(self._broker_synonyms(definition))
            entries.append(_build_entry(name, definition, synonyms, read_only=not definition.dynamic))
            # Aliases are included, because Kafka tools look up Kafka's names. Aliases are read-only, because only the
            # main name can be changed.
            entries += [
                _build_entry(alias.name, definition, [_alias_synonym(alias, synonyms[0])], read_only=True)
                for alias in definition.aliases
            ]
        return entries + self._unknown_entries(self.dynamic, self.dynamic_default)

    def describe_broker_defaults(self) -> list[ConfigEntry]:
        """Returns only the settings in `dynamic_default`."""
        definitions = broker_definitions()
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        entries = [
            _build_entry(name, definitions[name], [ConfigSynonym(name, value, source)], read_only=False)
            for name, value in sorted(self.dynamic_default.items())
            if name in definitions
        ]
        return entries + self._unknown_entries({}, self.dynamic_default)

    def _unknown_entries(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]) -> list[ConfigEntry]:
        """Returns the configs that have no definition. As in Kafka, their values are not shown, because they may be
        secret."""
        entries = []
        for name in sorted({*dynamic, *dynamic_default} - {*broker_definitions(), *broker_aliases()}):
            synonyms = [
                ConfigSynonym(name, None, source)
                for source, configs in (
                    (ConfigSource.DYNAMIC_BROKER, dynamic),
                    (ConfigSource.DYNAMIC_DEFAULT_BROKER, dynamic_default),
                )
                if name in configs
            ]
            source = synonyms[0].source
            entries.append(ConfigEntry(name, None, source, True, ConfigType.UNKNOWN, None, synonyms, is_sensitive=True))
        return entries

    def _broker_synonyms(self, definition: SettingDefinition) -> Iterator[ConfigSynonym]:
        name = definition.name
        if name in self.dynamic:
            yield ConfigSynonym(name, self.dynamic[name], ConfigSource.DYNAMIC_BROKER)
        if name in self.dynamic_default:
            yield ConfigSynonym(name, self.dynamic_default[name], ConfigSource.DYNAMIC_DEFAULT_BROKER)
        value = get_value(self.static, name)
        if name in self.static.explicitly_set or value != definition.default:
            yield ConfigSynonym(name, format_value(value), ConfigSource.STATIC_BROKER)
        yield ConfigSynonym(name, format_value(definition.default), ConfigSource.DEFAULT)


def _alias_synonym(alias: Alias, effective: ConfigSynonym) -> ConfigSynonym:
    """Converts the effective value to the unit of an alias. The value is None if it is not a multiple of the unit."""
    value = effective.value
    if alias.factor > 1 and value is not None:
        units, remainder = divmod(int(value), alias.factor)
        value = None if remainder else str(units)
    return ConfigSynonym(alias.name, value, effective.source)


def _build_entry(
    name: str, definition: SettingDefinition, synonyms: Sequence[ConfigSynonym], *, read_only: bool
) -> ConfigEntry:
    if definition.is_sensitive:
        synonyms = [replace(each, value=None) for each in synonyms]
    effective = synonyms[0]
    return ConfigEntry(
        name,
        effective.value,
        effective.source,
        read_only,
        definition.type,
        definition.doc,
        synonyms,
        is_sensitive=definition.is_sensitive,
    )
