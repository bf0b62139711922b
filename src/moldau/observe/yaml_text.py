"""YAML text of dictionaries, lists, strings and numbers. Pure.

Generated files are small and need no YAML library. Strings that YAML could read as something else are quoted as in
JSON, which YAML understands.
"""

import json
import re
from collections.abc import Mapping, Sequence

Yaml = str | int | float | bool | Sequence["Yaml"] | Mapping[str, "Yaml"]

_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.-]*( [A-Za-z0-9_/.-]+)*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""Words that a reader of YAML 1.1 does not read as strings."""


def format_yaml(value: Mapping[str, Yaml]) -> str:
    return "\n".join((*_lines(value), ""))


def _lines(value: Yaml) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for name, item in value.items() for line in _entry(f"{_scalar(name)}:", item)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [line for item in value for line in _item(item)]
    return [_scalar(value)]


def _entry(head: str, value: Yaml) -> list[str]:
    lines = _lines(value)
    if isinstance(value, str | int | float) or not value:
        return [f"{head} {lines[0]}"]
    return [head, *(f"  {line}" for line in lines)]


def _item(value: Yaml) -> list[str]:
    first, *more = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in more)]


def _scalar(value: Yaml) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not _is_number(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _is_number(text: str) -> bool:
    """Returns whether YAML could read the text as a number, such as `.5`, `.inf` or `_1`."""
    return text.lstrip("._-")[:1].isdigit() or text.lower() in (".inf", ".nan")
