"""Help text of `moldau serve`: every setting with its flag and description."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator

from moldau.settings.broker import SECTIONS, START_HERE, broker_definitions
from moldau.settings.registry import ConfigType, SettingDefinition
from moldau.settings.sources import flag_name
from moldau.settings.values import format_value

WIDTH_MAX = 100
PLACEHOLDERS = {
    ConfigType.LIST: "A,B,...",
    ConfigType.INT: "NUMBER",
    ConfigType.LONG: "NUMBER",
    ConfigType.DOUBLE: "NUMBER",
}

INTRODUCTION = """\
Usage: moldau serve [FLAGS]

Runs a node until it is stopped (Ctrl-C, SIGTERM).

  moldau serve                                       local connections only, data in ./moldau-data
  moldau serve --store memory --listen 127.0.0.1:0   in memory, on a free port
  moldau serve --listen 0.0.0.0:9092 --advertised-listeners my-host:9092

Every setting can be a flag, an environment variable (MOLDAU_NUM_PARTITIONS=3) or a line in
the TOML file (num.partitions = 3). Flags override the environment, which overrides the file.
"""


def serve_help() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    yield INTRODUCTION
    for section in SECTIONS:
        yield _bold(section)
        if section == START_HERE:
            yield from _flag("--config FILE", "TOML file with settings.", "", width)
        for definition in broker_definitions().values():
            if definition.setting.section == section:
                yield from _flag(_usage(definition), definition.setting.doc, format_value(definition.default), width)
        yield ""


def _usage(definition: SettingDefinition) -> str:
    flag = flag_name(definition.setting.name)
    if definition.type is ConfigType.BOOLEAN:
        return f"--[no-]{flag.removeprefix('--')}"
    if definition.setting.choices and definition.type is ConfigType.STRING:
        return f"{flag} {'|'.join(definition.setting.choices)}"
    return f"{flag} {PLACEHOLDERS.get(definition.type, 'TEXT')}"


def _flag(usage: str, doc: str, default: str, width: int) -> Iterator[str]:
    yield f"  {_bold(usage)}" + (f"  (default {default})" if default else "")
    yield textwrap.fill(doc, width, initial_indent="      ", subsequent_indent="      ")


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
