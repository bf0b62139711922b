"""Where a node's settings come from when it starts: defaults, over them a TOML file, the environment, flags.

Whatever is wrong is refused with the place it was written at. Among the names of one setting within one
source Kafka's order holds (log.retention.ms over .minutes over .hours); a stronger source always wins.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings, broker_aliases, broker_registry, with_values
from moldau.settings.registry import Alias, ConfigType, Declared
from moldau.settings.values import allowed, format_value, nearest, parse, parse_whole_number

ENVIRONMENT_PREFIX = "MOLDAU_"
CONFIG_VARIABLE = "MOLDAU_CONFIG"
NOT_SETTINGS = re.compile(r"MOLDAU_(BOOTSTRAP|TEST_.+|SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_.+)?)")
"""Where commands find their broker, what steers tests, and what Kubernetes sets in every pod beside a service that
is called moldau."""


class Written(NamedTuple):
    """One setting as somebody wrote it."""

    name: str
    value: Any
    place: str
    is_typed: bool = False
    """TOML has types; flags and environment are text."""


class Chosen(NamedTuple):
    """What a source says of a setting."""

    value: Any
    place: str


def build(
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """The settings to start with. Flags and environment are text, by setting name and by variable name."""
    chosen: dict[str, Chosen] = {}
    environment = environment or {}
    file = file or environment.get(CONFIG_VARIABLE)
    if file:
        chosen |= _choose(_from_file(file))
    chosen |= _choose(_from_environment(environment))
    chosen |= _choose(Written(name, text, f"flag {flag_of(name)}") for name, text in (flags or {}).items())
    try:
        values = {name: choice.value for name, choice in chosen.items()}
        settings = with_values(BrokerSettings(), values, frozenset(chosen))
        contradiction = settings.contradiction()
        if contradiction is not None:
            raise InvalidConfigError(contradiction)
    except InvalidConfigError as error:
        places = [f"{name} is set by {chosen[name].place}" for name in chosen if _mentions(str(error), name)]
        raise InvalidConfigError(f"{error} ({', '.join(places)})" if places else str(error)) from None
    return settings


def _mentions(sentence: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", sentence) is not None


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def flag_of(name: str) -> str:
    return "--" + name.replace(".", "-")


def _from_environment(environment: Mapping[str, str]) -> Iterable[Written]:
    names = {variable_of(name): name for name in (*broker_registry(), *broker_aliases())}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable in names:
            yield Written(names[variable], text, f"environment {variable}")
        elif not NOT_SETTINGS.fullmatch(variable):
            raise InvalidConfigError(
                f"environment {variable}: there is no such setting{nearest(variable, names)}"
            )


def _from_file(path: str) -> Iterable[Written]:
    # Few nodes have a file, and all of them should start fast.
    from moldau.settings.toml_file import read_toml

    for name, value, place in read_toml(path):
        yield Written(name, value, place, is_typed=True)


def _choose(written: Iterable[Written]) -> dict[str, Chosen]:
    """The values of one source, under the one name each setting has."""
    by_setting: dict[str, dict[str, Chosen]] = {}
    for each in written:
        found, alias = _find(each)
        value = _value(found, alias, each)
        by_setting.setdefault(found.setting.name, {})[each.name] = Chosen(value, each.place)
    return {name: _strongest(broker_registry()[name], given) for name, given in by_setting.items()}


def _find(written: Written) -> tuple[Declared, Alias]:
    registry, aliases = broker_registry(), broker_aliases()
    name = written.name
    if name in registry:
        return registry[name], Alias(name)
    if name in aliases:
        return aliases[name]
    hint = nearest(name, (*registry, *aliases))
    raise InvalidConfigError(f"{written.place}: there is no setting {name}{hint}")


def _strongest(found: Declared, given: Mapping[str, Chosen]) -> Chosen:
    order = [Alias(found.setting.name), *found.setting.aliases]
    first, *others = [alias for alias in order if alias.name in given]
    for other in others:
        if first.factor == other.factor and given[first.name].value != given[other.name].value:
            raise InvalidConfigError(
                f"{given[first.name].place} and {given[other.name].place}: {first.name} and {other.name} are "
                f"one setting and cannot have two values"
            )
    return given[first.name]


def _value(found: Declared, alias: Alias, written: Written) -> Any:
    text = _text(found, written.value) if written.is_typed else written.value
    try:
        if text is None:
            raise InvalidConfigError("not of the setting's type")
        return parse(found, text) if alias.factor == 1 else _scaled(found, alias, text)
    except InvalidConfigError:
        shown = "that value" if found.setting.sensitive else repr(written.value)
        raise InvalidConfigError(
            f"{written.place}: {alias.name} cannot be {shown}; it takes {allowed(found)}"
        ) from None


def _scaled(found: Declared, alias: Alias, text: str) -> Any:
    """Negative numbers mean "none" or "for ever" in every unit."""
    value = parse_whole_number(text)
    if value is None:
        raise InvalidConfigError(f"{text} is not a whole number")
    return parse(found, str(value * alias.factor if value > 0 else value))


def _text(found: Declared, value: Any) -> str | None:
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
