"""Parsing, validation and formatting of setting values."""

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
    """Parses and validates `text`; raises InvalidConfigError with the message that Kafka would give."""
    value = _parse_text(definition, text)
    if value is not None:
        violation = find_violation(definition, value)
    elif definition.type is ConfigType.BOOLEAN:
        violation = "Expected value to be either true or false"
    else:
        violation = f"Not a number of type {definition.type.name}"
    if violation is not None:
        shown = "[hidden]" if definition.setting.sensitive else text
        raise InvalidConfigError(
            f"Invalid value {shown} for configuration {definition.setting.name}: {violation}"
        )
    return value


def _parse_text(definition: SettingDefinition, text: str) -> Any:
    """Returns None if the text cannot be parsed as the setting's type."""
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
    """Returns why a value of the right type is not allowed, or None if it is."""
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
        elements = (value,) if isinstance(value, str) else value
        if not set(elements) <= set(setting.choices):
            return f"String must be one of: {', '.join(setting.choices)}"
    return None if setting.check is None else setting.check(value)


def format_value(value: Any) -> str:
    """Formats a value so that `parse_value` returns it again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def describe_allowed_values(definition: SettingDefinition) -> str:
    """Describes a setting's allowed values for documentation and errors: `an integer from 1 to 9`."""
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
    kind = "a number" if definition.type is ConfigType.DOUBLE else "an integer"
    is_bounded = setting.high is not None and setting.high < INT_MAX
    if setting.low is not None and is_bounded:
        return f"{kind} from {setting.low} to {setting.high}"
    if setting.low is not None:
        return f"{kind}, {setting.low} or more"
    return f"{kind}, {setting.high} or less" if is_bounded else kind


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean retention.ms?` for the known name closest to `name`, or an empty string."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""
