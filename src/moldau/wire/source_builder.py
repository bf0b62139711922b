"""Builder of generated Python source.

`decoder_compiler.py` and `encoder_compiler.py` generate code for each message when the message is first used, as
dataclasses generate `__init__`. Such code without loops is several times faster than a loop over the fields.
"""

import linecache
from collections.abc import Callable, Iterator
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
"""Kafka's types of fixed size, with their format characters for the struct module."""


Run = list[tuple[str, str]]
"""Adjacent values of fixed size: the expression and the struct format of each value."""


class SourceBuilder:
    """Lines of source with indentation, preceded by constants."""

    def __init__(self, write_run: "Callable[[SourceBuilder, Run], None]") -> None:
        self._write_run = write_run
        self._run: Run = []
        self._lines: list[str] = []
        self._indent = ""
        self._constants: dict[str, str] = {}
        self._defined: set[str] = set()

    def add_fixed(self, expression: str, format_: str) -> None:
        """Adds a value of fixed size to the current run. One call packs or unpacks the whole run."""
        self._run.append((expression, format_))

    def end_run(self) -> None:
        run, self._run = self._run, []
        if run:
            self._write_run(self, run)

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
        """Adds a module-level constant and returns its name."""
        self._constants[name] = value
        return name

    def struct_method(self, method: str, format_: str) -> str:
        """Adds a constant for a method of a `struct.Struct` and returns its name."""
        return self.constant(f"{method}_{format_.replace('?', 't')}", f'Struct(">{format_}").{method}')

    def define_once(self, name: str) -> bool:
        """Returns whether the name is new, and records it, because a message may contain a struct several times."""
        is_new = name not in self._defined
        self._defined.add(name)
        return is_new

    def text(self) -> str:
        constants = [f"{name} = {value}" for name, value in self._constants.items()]
        return "\n".join([*constants, *self._lines, ""])


def compile_function(text: str, name: str, entity: type, names: dict[str, Any]) -> Any:
    """Executes the source with `names` as globals and returns its function `name`. Tracebacks show the source."""
    file = f"<{name} of {entity.__module__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = dict(names)
    exec(compile(text, file, "exec"), space)
    return space[name]
