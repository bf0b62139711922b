"""`moldau serve`: runs one node until it is stopped. There is one flag per setting.

The parser is argparse, because importing Typer would slow down startup.
"""

import argparse
import dataclasses
import errno
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from moldau.errors import InvalidConfigError, MoldauError
from moldau.settings.broker import SECTIONS, START_HERE, BrokerSettings, broker_aliases, broker_definitions
from moldau.settings.option_parser import did_you_mean
from moldau.settings.postgres_url import split_password
from moldau.settings.registry import ConfigType, SettingDefinition
from moldau.settings.sources import build_settings, flag_name
from moldau.settings.values import format_value

EXIT_FAILURE = 1
EXIT_USAGE = 2
HELP_WIDTH_MAX = 100
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
  moldau serve --store postgresql://localhost/postgres   all data in a Postgres database
  moldau serve --listen 0.0.0.0:9092 --advertised-listeners my-host:9092
  moldau serve --http-port 8001                      with the HTTP API

Every setting can be a flag, an environment variable (MOLDAU_NUM_PARTITIONS=3) or a line in
the TOML file (num.partitions = 3). Flags override the environment, which overrides the file.
"""


def serve(arguments: Sequence[str]) -> int:
    """Runs a node with these flags and returns the exit code."""
    try:
        flags = parse_flags(arguments)
        if flags.wants_help:
            sys.stdout.write(serve_help())
            return 0
        settings = build_settings(file=flags.config, environment=os.environ, flags=flags.settings)
        _warn_of_visible_password(flags.settings)
        settings = dataclasses.replace(settings, data_dir=os.path.abspath(settings.data_dir))
        # This import takes long, so wrong flags are reported before it.
        from moldau.cli.serve_node import run

        try:
            run(settings)
        except OSError as error:
            return _print_error(_describe_os_error(error, settings), EXIT_FAILURE)
    except InvalidConfigError as error:
        return _print_error(str(error), EXIT_USAGE)
    except MoldauError as error:
        return _print_error(str(error), EXIT_FAILURE)
    return 0


def _warn_of_visible_password(flags: Mapping[str, str]) -> None:
    if flags.get("postgres.password") or split_password(flags.get("store", ""))[1]:
        sys.stderr.write(
            "moldau: other users of this machine can see the password in the list of processes: set it with "
            "MOLDAU_POSTGRES_PASSWORD, PGPASSWORD or in ~/.pgpass instead\n"
        )


def _describe_os_error(error: OSError, settings: BrokerSettings) -> str:
    from moldau.http.server import HttpListenError

    listen, flag = ", ".join(listener.address for listener in settings.listeners), "--listen"
    if isinstance(error, HttpListenError):
        listen, flag = f"{settings.http_host}:{settings.http_port}", "--http-port"
        error = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {listen}: unknown host"
    match error.errno:
        case errno.EADDRINUSE:
            return f"cannot listen on {listen}: the port is in use; choose another with {flag}"
        case errno.EADDRNOTAVAIL:
            return f"cannot listen on {listen}: not an address of this machine"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _print_error(message: str, code: int) -> int:
    sys.stderr.write(f"moldau: {message}\n")
    return code


class Flags(NamedTuple):
    config: str | None
    """Path of the TOML file."""
    settings: dict[str, str]
    """The text of each flag that is present, by setting name."""
    wants_help: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidConfigError(message.removeprefix("argument "))


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses flags. Raises InvalidConfigError if a flag is unknown or has no value."""
    parser = _parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = [option for action in parser._actions for option in action.option_strings]
        raise InvalidConfigError(f"unknown flag {flag}{did_you_mean(flag, known)}")
    flags = vars(parsed)
    wants_help, config = flags.pop("help"), flags.pop("config")
    settings = {name: value if isinstance(value, str) else ",".join(value) for name, value in flags.items()}
    return Flags(config, settings, wants_help)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--help", "-h", action="store_true", default=False)
    parser.add_argument("--config", default=None)
    types = {name: each.type for name, each in broker_definitions().items()}
    types |= {name: each.type for name, (each, _) in broker_aliases().items()}
    for name, type_ in types.items():
        flag = flag_name(name)
        if type_ is ConfigType.BOOLEAN:
            parser.add_argument(flag, dest=name, nargs="?", const="true")
            parser.add_argument(f"--no-{flag.removeprefix('--')}", dest=name, action="store_const", const="false")
        else:
            parser.add_argument(flag, dest=name, action="append" if type_ is ConfigType.LIST else "store")
    return parser


def serve_help() -> str:
    return "\n".join(_help_lines())


def _help_lines() -> Iterator[str]:
    yield INTRODUCTION
    for section in SECTIONS:
        yield _bold(section)
        if section == START_HERE:
            yield from _flag_lines("--config FILE", "TOML file with settings.", "")
        for definition in broker_definitions().values():
            if definition.section == section:
                yield from _flag_lines(_usage(definition), definition.doc, format_value(definition.default))
        yield ""


def _usage(definition: SettingDefinition) -> str:
    flag = flag_name(definition.name)
    if definition.type is ConfigType.BOOLEAN:
        return f"--[no-]{flag.removeprefix('--')}"
    if definition.choices and definition.type is ConfigType.STRING:
        return f"{flag} {'|'.join(definition.choices)}"
    return f"{flag} {PLACEHOLDERS.get(definition.type, 'TEXT')}"


def _flag_lines(usage: str, doc: str, default: str) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, HELP_WIDTH_MAX)
    yield f"  {_bold(usage)}" + (f"  (default {default})" if default else "")
    yield textwrap.fill(doc, width, initial_indent="      ", subsequent_indent="      ")


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
