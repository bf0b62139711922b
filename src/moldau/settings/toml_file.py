"""A TOML file as dotted setting names, each with its value and the line it is set at."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moldau.errors import InvalidConfigError


def read_toml(file: str) -> Iterable[tuple[str, Any, str]]:
    """Name, value and place, for messages, of everything the file sets."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfigError(f"cannot read the config file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfigError(f"the config file {path} is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # To TOML max.connections cannot be both a number and the table that holds per.ip.
        hint = '; write the longer name in quotes: "max.connections.per.ip" = 5'
        hint = hint if "overwrite" in str(error) else ""
        raise InvalidConfigError(f"the config file {path} is not TOML: {error}{hint}") from None
    lines = _lines(text)
    for name, value in _flatten(tables, ""):
        yield name, value, f"{path} line {lines[name]}" if name in lines else str(path)


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(text: str) -> dict[str, int]:
    """The line each dotted name is set at, for error messages. The TOML parser does not tell."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line):
            table = _dotted(header[1]) + "."
        elif key := re.match(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=", line):
            lines.setdefault(table + _dotted(key[1]), number)
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
