"""Flags made from the settings registry, one for every setting. `settings/sources` reads what they say.

Not on Typer, which would cost a node more time and memory at its start than everything else it does then.
"""

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
    """The TOML file."""
    settings: dict[str, str]
    """Text by setting name, only of settings that were given."""
    wants_help: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidConfigError(message.removeprefix("argument "))


def parse_flags(arguments: Sequence[str]) -> Flags:
    """InvalidConfigError where a flag is unknown or lacks its value."""
    parser = _parser()
    found, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = [option for action in parser._actions for option in action.option_strings]
        raise InvalidConfigError(f"there is no flag {flag}{did_you_mean(flag, known)}")
    given = vars(found)
    wants_help, config = given.pop("help"), given.pop("config")
    return Flags(config, {name: _text(value) for name, value in given.items()}, wants_help)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--help", "-h", action="store_true", default=False)
    parser.add_argument("--config", default=None)
    types = {name: found.type for name, found in broker_definitions().items()}
    types |= {name: found.type for name, (found, _) in broker_aliases().items()}
    for name, type_ in types.items():
        flag = flag_name(name)
        if type_ is ConfigType.BOOLEAN:
            parser.add_argument(flag, dest=name, nargs="?", const="true")
            parser.add_argument(
                f"--no-{flag.removeprefix('--')}", dest=name, action="store_const", const="false"
            )
        elif type_ is ConfigType.LIST:
            parser.add_argument(flag, dest=name, action="append")
        else:
            parser.add_argument(flag, dest=name)
    return parser


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)
