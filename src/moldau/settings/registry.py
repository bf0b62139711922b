"""How a setting is declared: a dataclass field that knows its Kafka name, its type, limits and why it exists.

`TopicSettings` and `BrokerSettings` are such dataclasses; flags, environment, the TOML file, DescribeConfigs
and the settings page are all made from them.
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
    """As DescribeConfigs numbers them."""

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
    """Another name of a setting, perhaps in a coarser unit (`log.retention.hours`)."""

    name: str
    factor: int = 1
    """How many of the setting's own units one of these is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one setting besides its value."""

    name: str
    """Kafka's name (`retention.ms`), or ours where Kafka has none."""
    doc: str
    """One or two plain sentences: what it does and why one would change it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    """The values allowed, for strings and for each element of a list."""
    values: str = ""
    """The values allowed, in words, where type, limits and choices do not say it all."""
    broker_name: str | None = None
    """Topic settings: the broker-wide setting that is their default (`log.retention.ms`)."""
    aliases: tuple[Alias, ...] = ()
    """Other names that the broker-wide setting goes by, the strongest first."""
    section: str = ""
    """Broker settings: the chapter of the settings page and of `--help`."""
    dynamic: bool = False
    """Broker settings: may be changed while the node runs, through AlterConfigs."""
    sensitive: bool = False
    check: Callable[[Any], str | None] | None = None
    """Gives a complaint for values that type, limits and choices do not catch."""


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """A setting as its dataclass declares it."""

    setting: Setting
    attribute: str
    type: ConfigType
    default: Any
    is_topic_default: bool = False
    """A broker-wide setting that is the default of a topic setting; `attribute` is the topic's."""


def setting(default: T, name: str, doc: str, **more: Any) -> T:
    """A dataclass field that is a setting. Its Python type is the field's annotation."""
    metadata = {"setting": Setting(name=name, doc=doc, **more)}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


@cache
def setting_definitions(settings: type) -> Mapping[str, SettingDefinition]:
    """The settings of a dataclass by name, in the order they are declared."""
    found = {}
    for field in dataclasses.fields(settings):
        if "setting" in field.metadata:
            made: Setting = field.metadata["setting"]
            found[made.name] = SettingDefinition(made, field.name, _type_of(field.type, made), field.default)
    return MappingProxyType(found)


def _type_of(annotation: Any, made: Setting) -> ConfigType:
    if made.sensitive:
        return ConfigType.PASSWORD
    if annotation is int:
        return ConfigType.INT if made.high is not None and made.high <= INT_MAX else ConfigType.LONG
    kinds = {bool: ConfigType.BOOLEAN, str: ConfigType.STRING, float: ConfigType.DOUBLE}
    return kinds.get(annotation, ConfigType.LIST)
