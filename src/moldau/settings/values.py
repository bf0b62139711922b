"""Setting values as text and back: what a flag, the environment or AlterConfigs says, and what it means."""

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.settings.registry import INT_MAX, LONG_MAX, LONG_MIN, ConfigType, SettingDefinition

INTEGER_PATTERN = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
NUMBER_PATTERN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)


def parse_value(definition: SettingDefinition, text: str) -> Any:
    """The value that `text` stands for; InvalidConfigError, in Kafka's words, where it stands for none."""
    value = _parse_text(definition, text)
    complaint = (
        f"Not a number of type {definition.type.name}" if value is None else find_violation(definition, value)
    )
    if definition.type is ConfigType.BOOLEAN and value is None:
        complaint = "Expected value to be either true or false"
    if complaint is not None:
        shown = "[hidden]" if definition.setting.sensitive else text
        raise InvalidConfigError(
            f"Invalid value {shown} for configuration {definition.setting.name}: {complaint}"
        )
    return value


def _parse_text(definition: SettingDefinition, text: str) -> Any:
    """None where the text is not of the setting's type."""
    match definition.type:
        case ConfigType.BOOLEAN:
            return {"true": True, "false": False}.get(text.strip().lower())
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            return parse_integer(text)
        case ConfigType.DOUBLE:
            return float(text) if NUMBER_PATTERN.fullmatch(text.strip()) else None
        case ConfigType.LIST:
            return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        case _:
            return text.strip()


def parse_integer(text: str) -> int | None:
    return int(text) if INTEGER_PATTERN.fullmatch(text.strip()) else None


def find_violation(definition: SettingDefinition, value: Any) -> str | None:
    """What is wrong with a value of the right type, or None."""
    setting = definition.setting
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        low = setting.low if setting.low is not None else LONG_MIN
        high = setting.high if setting.high is not None else LONG_MAX
        if math.isnan(value) or value < low:
            return f"Value must be at least {low}"
        if value > high:
            return f"Value must be no more than {high}"
    elif setting.choices:
        for chosen in (value,) if isinstance(value, str) else value:
            if chosen not in setting.choices:
                return f"String must be one of: {', '.join(setting.choices)}"
    return None if setting.check is None else setting.check(value)


def format_value(value: Any) -> str:
    """The inverse of `parse_value`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def describe_allowed_values(definition: SettingDefinition) -> str:
    """The values a setting takes, for people: `a whole number from 1 to 9`."""
    setting = definition.setting
    if setting.values:
        return setting.values
    match definition.type:
        case ConfigType.BOOLEAN:
            return "true or false"
        case ConfigType.LIST:
            return f"a list of: {', '.join(setting.choices)}" if setting.choices else "a list"
        case ConfigType.STRING | ConfigType.PASSWORD | ConfigType.CLASS:
            return f"one of: {', '.join(setting.choices)}" if setting.choices else "text"
    kind = "a number" if definition.type is ConfigType.DOUBLE else "a whole number"
    bounded = setting.high is not None and setting.high < INT_MAX
    if setting.low is not None and bounded:
        return f"{kind} from {setting.low} to {setting.high}"
    if setting.low is not None:
        return f"{kind}, {setting.low} or more"
    return f"{kind}, {setting.high} or less" if bounded else kind


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean retention.ms?`, or nothing where no name is near."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
