"""Configs of topics and nodes on the terminal and as JSON, and errors about their names."""

import re
import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.padding import Padding
from rich.text import Text

from moldau.cli.console import make_table, out_console, print_json_lines, print_table
from moldau.cli.exit_codes import NotFoundError
from moldau.cli.suggestions import closest_name
from moldau.client.admin.types import ConfigEntry, ConfigSource
from moldau.client.errors import ErrorCode, KafkaError
from moldau.settings.registry import setting_definitions
from moldau.settings.topic import TopicSettings

_UNITS_MS = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}
_SOURCE_TEXTS: dict[int, str] = {
    ConfigSource.DYNAMIC_TOPIC: "set for the topic",
    ConfigSource.DYNAMIC_BROKER: "set for the node",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "set for the cluster",
    ConfigSource.STATIC_BROKER: "set when the node started",
    ConfigSource.DEFAULT: "default",
}


def default_value(entry: ConfigEntry) -> str | None:
    """Returns the value that applies if the config is unset where it is set now; None if there is none."""
    if entry.is_default:
        return entry.value
    for synonym in entry.synonyms[1:]:
        if synonym.value is not None:
            return _convert_unit(synonym.name, synonym.value, entry.name)
    return None


def _convert_unit(synonym: str, value: str, name: str) -> str:
    """Returns the value of a synonym in the unit of the config `name`. On Apache Kafka, log.retention.hours is a
    synonym of retention.ms."""
    unit, wanted = (_UNITS_MS.get(each.rpartition(".")[2]) for each in (synonym, name))
    if unit is None or wanted is None or value.startswith("-"):
        return value
    return str(int(value) * unit // wanted)


def select_entries(
    entries: Iterable[ConfigEntry], names: Collection[str], owner: str, *, only_changed: bool
) -> list[ConfigEntry]:
    """Returns the entries sorted by name. Raises NotFoundError if a name does not exist."""
    by_name = {each.name: each for each in sorted(entries, key=lambda each: each.name)}
    for name in names:
        if name not in by_name:
            closest = closest_name(name, by_name)
            advice = "" if closest is None else f" Did you mean {closest}?"
            raise NotFoundError(f"{owner} has no config {name}.{advice}")
    selected = [each for name, each in by_name.items() if not names or name in names]
    return [each for each in selected if not (only_changed and each.is_default)]


def explain_unknown_config(error: KafkaError) -> KafkaError | NotFoundError:
    """Returns the error for a topic config that does not exist, if that is why the cluster has rejected a change."""
    found = re.match(r"Unknown topic config name: ([\w.-]+)", error.message or "")
    if error.code is not ErrorCode.invalid_config or found is None:
        return error
    closest = closest_name(found[1], setting_definitions(TopicSettings))
    advice = "Run `moldau settings` to see all." if closest is None else f"Did you mean {closest}?"
    return NotFoundError(f"Topics have no config {found[1]}. {advice}")


def print_entries(entries: Iterable[ConfigEntry], *, as_json: bool) -> None:
    """Prints the entries with their help texts; on a terminal below each value, otherwise as the last column."""
    if as_json:
        print_json_lines(map(_to_json, entries))
    elif sys.stdout.isatty():
        for entry in entries:
            _print_block(entry)
    else:
        rows = make_table("config", "value", "default", "source", "help")
        for entry in entries:
            default = default_value(entry) or "-"
            rows.add_row(entry.name, _value_text(entry), default, _source_name(entry), _help_text(entry))
        print_table(rows)


def _print_block(entry: ConfigEntry) -> None:
    line = Text(f"{entry.name} = ")
    line.append(_value_text(entry), style="" if entry.is_default else "bold green")
    default = default_value(entry)
    notes = [] if entry.is_default else [_SOURCE_TEXTS.get(entry.source) or _source_name(entry)]
    if default is not None and default != entry.value:
        notes.append(f"default {default or 'empty'}")
    if entry.is_read_only:
        notes.append("read-only")
    if notes:
        line.append(f"  ({', '.join(notes)})", style="dim")
    out_console.print(line)
    if entry.documentation:
        # Unlike other lines, help texts are wrapped with their indentation.
        out_console.print(Padding(Text(_help_text(entry), style="dim"), (0, 0, 0, 4)), soft_wrap=False)


def _value_text(entry: ConfigEntry) -> str:
    if entry.is_sensitive:
        return "(hidden)"
    return entry.value if entry.value else "-"


def _help_text(entry: ConfigEntry) -> str:
    return " ".join((entry.documentation or "").split())


def _source_name(entry: ConfigEntry) -> str:
    sources = {each.value: each.name for each in ConfigSource}
    return sources.get(entry.source, ConfigSource.UNKNOWN.name)


def _to_json(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "default": default_value(entry),
        "source": _source_name(entry),
        "is_default": entry.is_default,
        "is_read_only": entry.is_read_only,
        "is_sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
    }
