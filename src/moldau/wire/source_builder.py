"""Python that is written by Python: lines under way, and how they become functions.

Straight-line code made for one message is several times quicker than code that walks along a list of its
fields, so `readers.py` and `writers.py` write it the first time a message is used, as dataclasses write
their `__init__`.
"""

import linecache
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FIXED_SIZE_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
"""The types that always take the same number of bytes, in the letters of the struct module."""


def format_size(letters: str) -> int:
    return struct.calcsize(">" + letters)


def struct_constant_name(verb: str, letters: str) -> str:
    return f"{verb}_{letters.replace('?', 't')}"


class SourceBuilder:
    """Lines of Python under way."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = ""
        self._constants: dict[str, str] = {}
        self._defined: set[str] = set()

    def line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        outer = self._indent
        if not outer:
            self.line("")
        self.line(head)
        self._indent += "    "
        yield
        self._indent = outer

    def constant(self, name: str, value: str) -> str:
        """The name of a value that is made once, before the functions that use it."""
        self._constants[name] = value
        return name

    def define_once(self, name: str) -> bool:
        """Whether the name was not asked for yet: a message may hold the same struct in several places."""
        is_new = name not in self._defined
        self._defined.add(name)
        return is_new

    def text(self) -> str:
        constants = [f"{name} = {value}" for name, value in self._constants.items()]
        return "\n".join([*constants, *self._lines, ""])


def compile_namespace(text: str, title: str, names: dict[str, Any]) -> dict[str, Any]:
    """What the source defines; `names` are what it takes for granted. Tracebacks and debuggers show its lines."""
    file = f"<{title}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"__name__": __name__, **names}
    exec(compile(text, file, "exec"), space)
    return space
