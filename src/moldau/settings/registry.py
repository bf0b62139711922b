"""Declaration of settings as dataclass fields with a Kafka name, a type, limits and a description.

Flags, environment variables, the TOML file, DescribeConfigs and docs/settings.md are all derived from the fields of
`TopicSettings` and `BrokerSettings`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
INT_MAX = 2**31 - 1


class ConfigType(IntEnum):
    """Config types with the numbers that DescribeConfigs uses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Alias(NamedTuple):
    """An alternative name of a setting, possibly in a coarser unit (`log.retention.hours`)."""

    name: str
    factor: int = 1
    """A value of the alias times this factor is the value of the setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The static description of one setting."""

    name: str
    """Kafka's name (`retention.ms`), or Moldau's own if Kafka has no such setting."""
    doc: str
    """One or two sentences: what the setting does and why to change it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    """Allowed values of a string, or of each element of a list."""
    values: str = ""
    """The allowed values in words, if type, limits and choices do not fully describe the allowed values."""
    broker_name: str | None = None
    """Topic settings only: the broker setting that provides the default (`log.retention.ms`)."""
    aliases: tuple[Alias, ...] = ()
    """Alternative names of the broker setting, highest precedence first."""
    section: str = ""
    """Broker settings only: the section in docs/settings.md and `--help`."""
    dynamic: bool = False
    """Broker settings only: whether the setting can be changed at runtime with AlterConfigs."""
    sensitive: bool = False
    check: Callable[[Any], str | None] | None = None
    """An additional check after type, limits and choices. It returns an error message, or None for a valid value."""


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """A setting together with the dataclass field that holds its value."""

    setting: Setting
    attribute: str
    type: ConfigType
    default: Any
    is_topic_default: bool = False
    """True for a broker setting that is the default of a topic setting. `attribute` is then a TopicSettings field."""


def setting(default: T, name: str, doc: str, **more: Any) -> T:
    """Declares a dataclass field as a setting. The field's annotation is the type of the setting."""
    metadata = {"setting": Setting(name=name, doc=doc, **more)}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


@cache
def setting_definitions(settings: type) -> Mapping[str, SettingDefinition]:
    """Returns the settings of a dataclass by name, in declaration order."""
    definitions = {}
    for field in dataclasses.fields(settings):
        if "setting" in field.metadata:
            setting: Setting = field.metadata["setting"]
            type_ = _config_type(field.type, setting)
            definitions[setting.name] = SettingDefinition(setting, field.name, type_, field.default)
    return MappingProxyType(definitions)


def _config_type(annotation: Any, setting: Setting) -> ConfigType:
    if setting.sensitive:
        return ConfigType.PASSWORD
    if annotation is int:
        return ConfigType.INT if setting.high is not None and setting.high <= INT_MAX else ConfigType.LONG
    types = {bool: ConfigType.BOOLEAN, str: ConfigType.STRING, float: ConfigType.DOUBLE}
    return types.get(annotation, ConfigType.LIST)
