"""Reader of TOML config files: dotted setting names with their values and line numbers."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moldau.errors import InvalidConfigError


def read_toml(file: str) -> Iterable[tuple[str, Any, str]]:
    """Yields the name, value and origin (for error messages) of every setting in the file."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfigError(f"cannot read the config file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfigError(f"the config file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        # The hint is for a TOML rule: max.connections cannot be both a number and a table with the key per.ip.
        hint = '; quote the longer name: "max.connections.per.ip" = 5'
        hint = hint if "overwrite" in str(error) else ""
        raise InvalidConfigError(f"the config file {path} is not valid TOML: {error}{hint}") from None
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
    """Returns the line number of each dotted name, because tomllib does not provide line numbers."""
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
