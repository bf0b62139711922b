"""Sources of a node's static settings: defaults, TOML file, environment, flags, in increasing precedence.

Errors name the source of the invalid value. Within one source, the aliases of a setting have the same precedence as in
Kafka: log.retention.ms, then log.retention.minutes, then log.retention.hours.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings, broker_aliases, broker_definitions, with_values
from moldau.settings.option_parser import OptionValueError, did_you_mean, parse_integer
from moldau.settings.postgres_url import hide_password
from moldau.settings.registry import Alias, ConfigType, SettingDefinition
from moldau.settings.values import describe_allowed_values, format_value, parse_value

ENVIRONMENT_PREFIX = "MOLDAU_"
CONFIG_VARIABLE = "MOLDAU_CONFIG"
IGNORED_VARIABLES = re.compile(
    r"MOLDAU_(BOOTSTRAP|PIPELINES|CACHE|CLASS_CACHE|NATIVE|TEST_.+|SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_.+)?)"
)
"""Variables that are not settings: options of commands, pipelines and Spark, test options, and the variables that
Kubernetes sets in every pod for a service named moldau."""

SHORT_VARIABLES = {"MAX_SEGMENT_SIZE_BYTES": "log.segment.bytes"}
"""Variables without the prefix, with the setting of each. The variable with the prefix overrides them."""


class RawSetting(NamedTuple):
    """A setting as written in one source."""

    name: str
    value: Any
    origin: str
    is_toml: bool = False
    """Whether the value has a TOML type. Values of flags and environment variables are text."""


class ResolvedSetting(NamedTuple):
    """The parsed value of a setting in one source."""

    value: Any
    origin: str


def build_settings(
    *, file: str | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> BrokerSettings:
    """Builds the settings of a node. `environment` has variable names as keys, and `flags` has setting names."""
    resolved: dict[str, ResolvedSetting] = {}
    environment = environment or {}
    file = file or environment.get(CONFIG_VARIABLE)
    if file:
        # Imported lazily, because most nodes have no config file and should start fast.
        from moldau.settings.toml_file import read_toml

        resolved |= _resolve(RawSetting(*each, is_toml=True) for each in read_toml(file))
    resolved |= _resolve(_read_environment(environment))
    resolved |= _resolve(RawSetting(name, text, f"flag {flag_name(name)}") for name, text in (flags or {}).items())
    try:
        values = {name: each.value for name, each in resolved.items()}
        settings = with_values(BrokerSettings(), values, frozenset(resolved))
        settings.check_conflicts()
    except InvalidConfigError as error:
        origins = [f"{name} is set by {resolved[name].origin}" for name in resolved if _mentions(str(error), name)]
        raise InvalidConfigError(f"{error} ({', '.join(origins)})" if origins else str(error)) from None
    return settings


def _mentions(sentence: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", sentence) is not None


def environment_variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def flag_name(name: str) -> str:
    return "--" + name.replace(".", "-")


def _read_environment(environment: Mapping[str, str]) -> Iterable[RawSetting]:
    names = {environment_variable_name(name): name for name in (*broker_definitions(), *broker_aliases())}
    for variable, name in SHORT_VARIABLES.items():
        if variable in environment and environment_variable_name(name) not in environment:
            yield RawSetting(name, environment[variable], f"environment {variable}")
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable in names:
            yield RawSetting(names[variable], text, f"environment {variable}")
        elif not IGNORED_VARIABLES.fullmatch(variable):
            raise InvalidConfigError(f"environment {variable}: no such setting{did_you_mean(variable, names)}")


def _resolve(written: Iterable[RawSetting]) -> dict[str, ResolvedSetting]:
    """Parses the values of one source and resolves aliases."""
    by_definition: dict[str, dict[str, ResolvedSetting]] = {}
    for each in written:
        definition, alias = _find_definition(each)
        value = _parse_raw(definition, alias, each)
        by_definition.setdefault(definition.name, {})[each.name] = ResolvedSetting(value, each.origin)
    return {name: _highest_precedence(broker_definitions()[name], by_name) for name, by_name in by_definition.items()}


def _find_definition(written: RawSetting) -> tuple[SettingDefinition, Alias]:
    registry, aliases = broker_definitions(), broker_aliases()
    name = written.name
    if name in registry:
        return registry[name], Alias(name)
    if name in aliases:
        return aliases[name]
    hint = did_you_mean(name, (*registry, *aliases))
    raise InvalidConfigError(f"{written.origin}: no such setting: {name}{hint}")


def _highest_precedence(definition: SettingDefinition, by_name: Mapping[str, ResolvedSetting]) -> ResolvedSetting:
    order = [Alias(definition.name), *definition.aliases]
    first, *others = [alias for alias in order if alias.name in by_name]
    for other in others:
        if first.factor == other.factor and by_name[first.name].value != by_name[other.name].value:
            raise InvalidConfigError(
                f"{by_name[first.name].origin} and {by_name[other.name].origin}: {first.name} and {other.name} are "
                f"the same setting and cannot have two values"
            )
    return by_name[first.name]


def _parse_raw(definition: SettingDefinition, alias: Alias, written: RawSetting) -> Any:
    text = _toml_to_text(definition, written.value) if written.is_toml else written.value
    try:
        if text is None:
            raise InvalidConfigError("wrong type")
        return parse_value(definition, text) if alias.factor == 1 else _parse_scaled(definition, alias, text)
    except InvalidConfigError:
        allowed = describe_allowed_values(definition)
        shown = hide_password(repr(written.value))
        raise InvalidConfigError(f"{written.origin}: {alias.name} cannot be {shown}; expected {allowed}") from None


def _parse_scaled(definition: SettingDefinition, alias: Alias, text: str) -> Any:
    """Converts a value from the alias's unit to the setting's unit, except -1 (no limit)."""
    try:
        value = parse_integer(text)
    except OptionValueError:
        raise InvalidConfigError(f"{text} is not an integer") from None
    return parse_value(definition, str(value * alias.factor if value > 0 else value))


def _toml_to_text(definition: SettingDefinition, value: Any) -> str | None:
    """Returns a TOML value as text, or None if the TOML type does not match the setting."""
    match definition.type:
        case ConfigType.BOOLEAN:
            matches = isinstance(value, bool)
        case ConfigType.INT | ConfigType.LONG:
            matches = isinstance(value, int) and not isinstance(value, bool)
        case ConfigType.DOUBLE:
            matches = isinstance(value, int | float) and not isinstance(value, bool)
        case ConfigType.LIST if isinstance(value, list):
            matches = all(isinstance(part, str) for part in value)
            value = tuple(value)
        case _:
            matches = isinstance(value, str)
    return format_value(value) if matches else None
