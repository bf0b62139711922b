"""Flags of `moldau serve`, one per setting. The parser is argparse, because importing Typer would slow down startup."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from moldau.errors import InvalidConfigError
from moldau.settings.broker import broker_aliases, broker_definitions
from moldau.settings.option_parser import did_you_mean
from moldau.settings.registry import ConfigType
from moldau.settings.sources import flag_name


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
    return Flags(config, {name: _text(value) for name, value in flags.items()}, wants_help)


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
        elif type_ is ConfigType.LIST:
            parser.add_argument(flag, dest=name, action="append")
        else:
            parser.add_argument(flag, dest=name)
    return parser


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)
