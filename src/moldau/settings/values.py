"""Parsing, validation and formatting of setting values."""

import math
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.settings.option_parser import OptionValueError, parse_boolean, parse_integer, parse_number
from moldau.settings.registry import INT_MAX, LONG_MAX, LONG_MIN, ConfigType, SettingDefinition


def parse_value(definition: SettingDefinition, text: str) -> Any:
    """Parses and validates `text`. Raises InvalidConfigError with the same message as Kafka."""
    try:
        value = _parse_text(definition, text)
        violation = find_violation(definition, value)
    except OptionValueError:
        if definition.type is ConfigType.BOOLEAN:
            violation = "Expected value to be either true or false"
        else:
            violation = f"Not a number of type {definition.type.name}"
    if violation is not None:
        shown = "[hidden]" if definition.setting.sensitive else text
        raise InvalidConfigError(f"Invalid value {shown} for configuration {definition.setting.name}: {violation}")
    return value


def _parse_text(definition: SettingDefinition, text: str) -> Any:
    match definition.type:
        case ConfigType.BOOLEAN:
            return parse_boolean(text)
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            return parse_integer(text)
        case ConfigType.DOUBLE:
            return parse_number(text)
        case ConfigType.LIST:
            return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        case _:
            return text.strip()


def find_violation(definition: SettingDefinition, value: Any) -> str | None:
    """Returns an error message if a value of the right type is not allowed, otherwise None."""
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
    """Returns a value as text. `parse_value` converts the text back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def describe_allowed_values(definition: SettingDefinition) -> str:
    """Returns a setting's allowed values in words, for documentation and errors, such as `an integer from 1 to 9`."""
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
