"""How a setting is declared: a dataclass field that knows its Kafka name, its type, limits and why it exists.

`TopicSettings` and `BrokerSettings` are such dataclasses; flags, environment, the TOML file, DescribeConfigs and
the settings page are all made from them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


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
    broker_name: str | None = None
    """Topic settings: the broker-wide setting that is their default (`log.retention.ms`)."""
    dynamic: bool = False
    """Broker settings: may be changed while the node runs, through AlterConfigs."""
    sensitive: bool = False
    check: Callable[[Any], str | None] | None = None
    """Gives a complaint for values that type, limits and choices do not catch."""


def setting(default: T, name: str, doc: str, **more: Any) -> T:
    """A dataclass field that is a setting. Its Python type is the field's annotation."""
    metadata = {"setting": Setting(name=name, doc=doc, **more)}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field
