"""What `moldau serve --help` says: every setting with its flag and meaning, those that matter first."""

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

Runs a node until it is told to stop (Ctrl-C, SIGTERM).

  moldau serve                                       for this machine only, data in ./moldau-data
  moldau serve --store memory --listen 127.0.0.1:0   nothing on disk, any free port
  moldau serve --listen 0.0.0.0:9092 --advertised-listeners my-host:9092

Every setting is a flag here, an environment variable (MOLDAU_NUM_PARTITIONS=3) and a
line of the TOML file (num.partitions = 3). Flags win over the environment, the
environment over the file.
"""


def serve_help() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    yield INTRODUCTION
    for section in SECTIONS:
        yield _bold(section)
        if section == START_HERE:
            yield from _flag("--config FILE", "A TOML file with settings.", "", width)
        for found in broker_definitions().values():
            if found.setting.section == section:
                yield from _flag(_usage(found), found.setting.doc, format_value(found.default), width)
        yield ""


def _usage(found: SettingDefinition) -> str:
    flag = flag_name(found.setting.name)
    if found.type is ConfigType.BOOLEAN:
        return f"--[no-]{flag.removeprefix('--')}"
    if found.setting.choices and found.type is ConfigType.STRING:
        return f"{flag} {'|'.join(found.setting.choices)}"
    return f"{flag} {PLACEHOLDERS.get(found.type, 'TEXT')}"


def _flag(usage: str, doc: str, default: str, width: int) -> Iterator[str]:
    yield f"  {_bold(usage)}" + (f"  (default {default})" if default else "")
    yield textwrap.fill(doc, width, initial_indent="      ", subsequent_indent="      ")


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
