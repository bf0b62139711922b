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

    UNKNOWN = 0
    """The type of configs without a definition."""
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Alias(NamedTuple):
    """An alternative name of a setting, possibly in a coarser unit (`log.retention.hours`)."""

    name: str
    factor: int = 1
    """A value of the alias times this factor is the value of the setting."""


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    attribute: str
    """The dataclass field that holds the value."""
    type: ConfigType
    default: Any
    name: str
    """Kafka's name (`retention.ms`), or Moldau's own if Kafka has no such setting."""
    doc: str
    """One or two sentences: what the setting does and why to change it."""
    limits: tuple[float, float] = (LONG_MIN, LONG_MAX)
    """The smallest and the largest number that are allowed."""
    choices: tuple[str, ...] = ()
    """Allowed values of a string, or of each element of a list. With `check` they are only suggestions."""
    values: str = ""
    """The allowed values in words, if type, limits and choices do not fully describe the allowed values."""
    broker_name: str | None = None
    """Topic settings only: the broker setting that provides the default (`log.retention.ms`); None if the default is
    fixed."""
    is_topic_default: bool = False
    """True for a broker setting that is the default of a topic setting. `attribute` is then a TopicSettings field."""
    aliases: tuple[Alias, ...] = ()
    """Alternative names of the broker setting, highest precedence first."""
    section: str = ""
    """Broker settings only: the section in docs/settings.md and `--help`."""
    dynamic: bool = False
    """Broker settings only: whether the setting can be changed at runtime with AlterConfigs."""
    is_sensitive: bool = False
    """Whether the value is secret. DescribeConfigs and `repr` do not show it."""
    check: Callable[[Any], str | None] | None = None
    """An additional check after type, limits and choices. It returns an error message, or None for a valid value."""


def setting(default: T, doc: str, **more: Any) -> T:
    """Declares a dataclass field as a setting. `more` has other attributes of its `SettingDefinition`.

    The field's annotation is the setting's type, and the field's name with dots is the setting's default name.
    """
    is_shown = not more.get("is_sensitive", False)
    field: T = dataclasses.field(default=default, metadata={"setting": {"doc": doc, **more}}, repr=is_shown)
    return field


@cache
def setting_definitions(settings: type) -> Mapping[str, SettingDefinition]:
    """Returns the settings of a dataclass by name, in declaration order."""
    definitions = {}
    for field in dataclasses.fields(settings):
        if "setting" in field.metadata:
            declared = {"name": field.name.replace("_", "."), **field.metadata["setting"]}
            type_ = _config_type(field.type, declared.get("limits", (LONG_MIN, LONG_MAX)))
            if declared.get("is_sensitive"):
                type_ = ConfigType.PASSWORD
            definitions[declared["name"]] = SettingDefinition(field.name, type_, field.default, **declared)
    return MappingProxyType(definitions)


def _config_type(annotation: Any, limits: tuple[float, float]) -> ConfigType:
    if annotation is int:
        return ConfigType.INT if limits[1] <= INT_MAX else ConfigType.LONG
    types = {bool: ConfigType.BOOLEAN, str: ConfigType.STRING, float: ConfigType.DOUBLE}
    return types.get(annotation, ConfigType.LIST)
