"""Parsing, validation and formatting of setting values."""

import math
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.settings.option_parser import OptionValueError, parse_boolean, parse_integer, parse_number
from moldau.settings.postgres_url import hide_password
from moldau.settings.registry import INT_MAX, ConfigType, SettingDefinition


def parse_value(definition: SettingDefinition, text: str) -> Any:
    """Parses and validates `text`. Raises InvalidConfigError with the same message as Kafka."""
    try:
        value = _parse_text(definition, text)
        violation = _find_violation(definition, value)
    except OptionValueError:
        if definition.type is ConfigType.BOOLEAN:
            violation = "Expected value to be either true or false"
        else:
            violation = f"Not a number of type {definition.type.name}"
    if violation is not None:
        shown = hide_password(text)
        raise InvalidConfigError(f"Invalid value {shown} for configuration {definition.name}: {violation}")
    return value


def _parse_text(definition: SettingDefinition, text: str) -> Any:
    match definition.type:
        case ConfigType.BOOLEAN:
            return parse_boolean(text)
        case ConfigType.INT | ConfigType.LONG:
            return parse_integer(text)
        case ConfigType.DOUBLE:
            return parse_number(text)
        case ConfigType.LIST:
            return tuple(dict.fromkeys(split_list(text)))
        case _:
            return text.strip()


def split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _find_violation(definition: SettingDefinition, value: Any) -> str | None:
    """Returns an error message if a value of the right type is not allowed, otherwise None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        low, high = definition.limits
        if math.isnan(value) or value < low:
            return f"Value must be at least {low}"
        if value > high:
            return f"Value must be no more than {high}"
    elif definition.choices and definition.check is None:
        elements = (value,) if isinstance(value, str) else value
        if not set(elements) <= set(definition.choices):
            return f"String must be one of: {', '.join(definition.choices)}"
    return None if definition.check is None else definition.check(value)


def format_value(value: Any) -> str:
    """Returns a value as text. `parse_value` converts the text back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def describe_allowed_values(definition: SettingDefinition) -> str:
    """Returns a setting's allowed values in words, for documentation and errors, such as `an integer from 1 to 9`."""
    choices, (low, high) = ", ".join(definition.choices), definition.limits
    if definition.values:
        return definition.values
    match definition.type:
        case ConfigType.BOOLEAN:
            return "true or false"
        case ConfigType.LIST:
            return f"a list of: {choices}" if choices else "a list"
        case ConfigType.PASSWORD:
            return "text"
        case ConfigType.STRING:
            return f"one of: {choices}" if choices else "text"
    kind = "a number" if definition.type is ConfigType.DOUBLE else "an integer"
    return f"{kind} from {low} to {high}" if high < INT_MAX else f"{kind}, {low} or more"
