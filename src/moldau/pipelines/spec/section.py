"""Typed access to the mappings of a pipeline file, with file, line and suggestions in errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from moldau.pipelines.definition import PipelineError
from moldau.settings.option_parser import (
    OptionValueError,
    did_you_mean,
    parse_boolean,
    parse_choice,
    parse_integer,
    suggest_names,
)

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

_SECRETS = ("password", "secret", "token", "jaas", "credential", "ssl.key", "private")


def is_secret(key: str) -> bool:
    """Returns whether the value of this key must not be shown."""
    return any(each in key.lower() for each in _SECRETS)


@dataclass(frozen=True)
class FileLocations:
    """The line numbers of a file by key path, such as `sources.orders.topic`."""

    file: str
    lines: Mapping[tuple[str, ...], int]

    def of(self, path: Sequence[str]) -> str:
        """Returns `file:line` of the path. If the path is not in the file, uses its closest ancestor."""
        parts = tuple(path)
        while parts and parts not in self.lines:
            parts = parts[:-1]
        line = self.lines.get(parts)
        return self.file if line is None else f"{self.file}:{line}"

    def error(self, path: Sequence[str], message: str) -> PipelineError:
        return PipelineError(f"{self.of(path)}: {message}")


class SpecSection:
    """One mapping of the file. Call `finish` after all keys were read, to detect unknown keys."""

    def __init__(self, tree: object, path: tuple[str, ...], locations: FileLocations) -> None:
        self.path = path
        self.locations = locations
        if not isinstance(tree, Mapping):
            raise locations.error(path, f"{self._name()} must be a mapping of settings, not {_value_text(path, tree)}")
        self._tree: Mapping[str, Any] = tree
        self._known: list[str] = []

    def error(self, key: str | None, message: str) -> PipelineError:
        return self.locations.error(self.path if key is None else (*self.path, key), message)

    def finish(self) -> None:
        """Raises PipelineError for the first key that was not read."""
        for key in self._tree:
            if key not in self._known:
                hint = suggest_names(str(key), self._known)
                raise self.error(str(key), f"{self._name()} has no option {str(key)!r}{hint}")

    def has(self, key: str) -> bool:
        self._add_known(key)
        return self._tree.get(key) is not None

    def is_mapping(self, key: str) -> bool:
        return isinstance(self._value(key), Mapping)

    def text(self, key: str) -> str | None:
        value = self._value(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int | float | Path) and not isinstance(value, bool):
            return str(value)
        raise self._type_error(key, "text")

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns a list of texts. A single text becomes a list with one element."""
        value = self._value(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise self._type_error(key, "a name or a list of names")

    def number(self, key: str) -> int | None:
        value = self._value(key)
        if value is None:
            return None
        return self._parse(key, str(value).replace("_", ""), lambda text: parse_integer(text, 1))

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if value is None:
            return False
        return self._parse(key, str(value), parse_boolean)

    def choice(self, key: str, kind: type[E], default: E) -> E:
        value = self._value(key)
        if value is None:
            return default
        return kind(self._parse(key, str(value), lambda text: parse_choice(text, kind)))

    def _parse(self, key: str, text: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(text)
        except OptionValueError as error:
            raise self._type_error(key, str(error)) from None

    def settings(self, key: str) -> dict[str, str]:
        """Returns a mapping of names to texts. Names in nested mappings are joined with dots."""
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._type_error(key, "a mapping of names to values")
        return dict(self._flatten(key, value, ()))

    def _flatten(self, key: str, tree: Mapping[str, object], parents: tuple[str, ...]) -> "list[tuple[str, str]]":
        flat: list[tuple[str, str]] = []
        for name, value in tree.items():
            path = (*parents, str(name))
            if isinstance(value, Mapping):
                flat += self._flatten(key, value, path)
            elif isinstance(value, bool):
                flat.append((".".join(path), str(value).lower()))
            elif isinstance(value, str | int | float):
                flat.append((".".join(path), str(value)))
            else:
                where = (*self.path, key, *path)
                raise self.locations.error(where, f"{'.'.join(where)} must be text, not {_value_text(where, value)}")
        return flat

    def sections(self, key: str) -> "dict[str, SpecSection]":
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._type_error(key, "a mapping of names to settings")
        return {
            str(name): SpecSection(each, (*self.path, key, str(name)), self.locations) for name, each in value.items()
        }

    def section(self, key: str) -> "SpecSection | None":
        value = self._value(key)
        return None if value is None else SpecSection(value, (*self.path, key), self.locations)

    def one_of(self, *keys: str) -> str:
        """Returns the key that is set, out of several exclusive keys. Raises PipelineError if none or several are set.

        Call this after all other keys were read, so that misspelled keys are recognised.
        """
        found = [key for key in keys if self.has(key)]
        if len(found) == 1:
            return found[0]
        if found:
            raise self.error(found[1], f"{self._name()} has both {' and '.join(found)}: remove one of them")
        for key in self._tree:
            hint = "" if key in self._known else did_you_mean(str(key), keys)
            if hint:
                raise self.error(str(key), f"{self._name()} has no option {str(key)!r}{hint}")
        raise self.error(None, f"{self._name()} needs {' or '.join(keys)}")

    def file_text(self, key: str, beside: Path | None) -> str | None:
        """Returns the content of the file that the key names, or None if the key is not set."""
        name = self.text(key)
        if name is None:
            return None
        path = Path(name) if beside is None else beside / name
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise self.error(key, f"cannot read the file {path}: {why}") from None

    def read(self, key: str, read: "Callable[[str], str]") -> str | None:
        """Parses the text of a key with `read`, which raises ValueError for an invalid text."""
        value = self.text(key)
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise self.error(key, f"{'.'.join((*self.path, key))}: {error}") from None

    def _value(self, key: str) -> Any:
        self._add_known(key)
        return self._tree.get(key)

    def _add_known(self, key: str) -> None:
        if key not in self._known:
            self._known.append(key)

    def _type_error(self, key: str, expected: str) -> PipelineError:
        path = (*self.path, key)
        shown = _value_text(path, self._tree.get(key))
        return self.error(key, f"{'.'.join(path)} must be {expected}, not {shown}")

    def _name(self) -> str:
        return ".".join(self.path) or "a pipeline"


def _value_text(path: Sequence[str], value: object) -> str:
    if path and is_secret(path[-1]):
        return "what is set"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return "nothing" if value is None else repr(value)
