"""Where a node's settings come from when it starts: defaults, over them a TOML file, the environment, flags.

Whatever is wrong is refused with the place it was written at. Among the names of one setting within one
source Kafka's order holds (log.retention.ms over .minutes over .hours); a stronger source always wins.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings, broker_aliases, broker_definitions, with_values
from moldau.settings.registry import Alias, ConfigType, SettingDefinition
from moldau.settings.values import (
    describe_allowed_values,
    did_you_mean,
    format_value,
    parse_integer,
    parse_value,
)

ENVIRONMENT_PREFIX = "MOLDAU_"
CONFIG_VARIABLE = "MOLDAU_CONFIG"
IGNORED_VARIABLES = re.compile(
    r"MOLDAU_(BOOTSTRAP|TEST_.+|SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_.+)?)"
)
"""Where commands find their broker, what steers tests, and what Kubernetes sets in every pod beside a service that
is called moldau."""


class RawSetting(NamedTuple):
    """One setting as somebody wrote it."""

    name: str
    value: Any
    origin: str
    is_toml: bool = False
    """TOML has types; flags and environment are text."""


class ResolvedSetting(NamedTuple):
    """What a source says of a setting."""

    value: Any
    origin: str


def build_settings(
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """The settings to start with. Flags and environment are text, by setting name and by variable name."""
    chosen: dict[str, ResolvedSetting] = {}
    environment = environment or {}
    file = file or environment.get(CONFIG_VARIABLE)
    if file:
        chosen |= _resolve(_read_file(file))
    chosen |= _resolve(_read_environment(environment))
    chosen |= _resolve(
        RawSetting(name, text, f"flag {flag_name(name)}") for name, text in (flags or {}).items()
    )
    try:
        values = {name: choice.value for name, choice in chosen.items()}
        settings = with_values(BrokerSettings(), values, frozenset(chosen))
        find_conflict = settings.find_conflict()
        if find_conflict is not None:
            raise InvalidConfigError(find_conflict)
    except InvalidConfigError as error:
        places = [f"{name} is set by {chosen[name].origin}" for name in chosen if _mentions(str(error), name)]
        raise InvalidConfigError(f"{error} ({', '.join(places)})" if places else str(error)) from None
    return settings


def _mentions(sentence: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", sentence) is not None


def environment_variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def flag_name(name: str) -> str:
    return "--" + name.replace(".", "-")


def _read_environment(environment: Mapping[str, str]) -> Iterable[RawSetting]:
    names = {environment_variable_name(name): name for name in (*broker_definitions(), *broker_aliases())}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable in names:
            yield RawSetting(names[variable], text, f"environment {variable}")
        elif not IGNORED_VARIABLES.fullmatch(variable):
            raise InvalidConfigError(
                f"environment {variable}: there is no such setting{did_you_mean(variable, names)}"
            )


def _read_file(path: str) -> Iterable[RawSetting]:
    # Few nodes have a file, and all of them should start fast.
    from moldau.settings.toml_file import read_toml

    for name, value, origin in read_toml(path):
        yield RawSetting(name, value, origin, is_toml=True)


def _resolve(written: Iterable[RawSetting]) -> dict[str, ResolvedSetting]:
    """The values of one source, under the one name each setting has."""
    by_setting: dict[str, dict[str, ResolvedSetting]] = {}
    for each in written:
        found, alias = _find_definition(each)
        value = _parse_raw(found, alias, each)
        by_setting.setdefault(found.setting.name, {})[each.name] = ResolvedSetting(value, each.origin)
    return {
        name: _highest_precedence(broker_definitions()[name], given) for name, given in by_setting.items()
    }


def _find_definition(written: RawSetting) -> tuple[SettingDefinition, Alias]:
    registry, aliases = broker_definitions(), broker_aliases()
    name = written.name
    if name in registry:
        return registry[name], Alias(name)
    if name in aliases:
        return aliases[name]
    hint = did_you_mean(name, (*registry, *aliases))
    raise InvalidConfigError(f"{written.origin}: there is no setting {name}{hint}")


def _highest_precedence(found: SettingDefinition, given: Mapping[str, ResolvedSetting]) -> ResolvedSetting:
    order = [Alias(found.setting.name), *found.setting.aliases]
    first, *others = [alias for alias in order if alias.name in given]
    for other in others:
        if first.factor == other.factor and given[first.name].value != given[other.name].value:
            raise InvalidConfigError(
                f"{given[first.name].origin} and {given[other.name].origin}: {first.name} and {other.name} are "
                f"one setting and cannot have two values"
            )
    return given[first.name]


def _parse_raw(found: SettingDefinition, alias: Alias, written: RawSetting) -> Any:
    text = _toml_to_text(found, written.value) if written.is_toml else written.value
    try:
        if text is None:
            raise InvalidConfigError("not of the setting's type")
        return parse_value(found, text) if alias.factor == 1 else _parse_scaled(found, alias, text)
    except InvalidConfigError:
        shown = "that value" if found.setting.sensitive else repr(written.value)
        raise InvalidConfigError(
            f"{written.origin}: {alias.name} cannot be {shown}; it takes {describe_allowed_values(found)}"
        ) from None


def _parse_scaled(found: SettingDefinition, alias: Alias, text: str) -> Any:
    """Negative numbers mean "none" or "for ever" in every unit."""
    value = parse_integer(text)
    if value is None:
        raise InvalidConfigError(f"{text} is not a whole number")
    return parse_value(found, str(value * alias.factor if value > 0 else value))


def _toml_to_text(found: SettingDefinition, value: Any) -> str | None:
    """A TOML value as text; None where its type is not the setting's."""
    match found.type:
        case ConfigType.BOOLEAN:
            fits = isinstance(value, bool)
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            fits = isinstance(value, int) and not isinstance(value, bool)
        case ConfigType.DOUBLE:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        case ConfigType.LIST if isinstance(value, list):
            fits = all(isinstance(part, str) for part in value)
            value = tuple(value)
        case _:
            fits = isinstance(value, str)
    return format_value(value) if fits else None
