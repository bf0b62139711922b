"""Typed access to the mappings of a pipeline file, with file, line and suggestions in errors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def error(self, path: tuple[str, ...], message: str) -> PipelineError:
        """Returns an error with the line of the path. If the file does not have the path, uses the closest ancestor."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path)
        return PipelineError(f"{self.file if line is None else f'{self.file}:{line}'}: {message}")


class SpecSection:
    """One mapping of the file. Call `finish` after all keys were read, to detect unknown keys."""

    def __init__(self, tree: object, path: tuple[str, ...], locations: FileLocations) -> None:
        self.path = path
        self.locations = locations
        self._name = ".".join(path) or "a pipeline"
        if not isinstance(tree, Mapping):
            raise locations.error(path, f"{self._name} must be a mapping of settings, not {_value_text(path, tree)}")
        self._tree: Mapping[str, Any] = tree
        self._known: dict[str, None] = {}
        """The keys that were read, in order."""

    def error(self, key: str | None, message: str) -> PipelineError:
        return self.locations.error(self.path if key is None else (*self.path, key), message)

    def finish(self) -> None:
        """Raises PipelineError for the first key that was not read."""
        for key in self._tree:
            if key not in self._known:
                hint = suggest_names(str(key), self._known)
                raise self.error(str(key), f"{self._name} has no option {str(key)!r}{hint}")

    def has(self, key: str) -> bool:
        return self._value(key) is not None

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
        return self._parse(key, lambda text: parse_integer(text.replace("_", ""), 1))

    def flag(self, key: str, *, default: bool = False) -> bool:
        found = self._parse(key, parse_boolean)
        return default if found is None else found

    def choice(self, key: str, kind: type[E], default: E) -> E:
        return kind(self._parse(key, lambda text: parse_choice(text, kind)) or default)

    def _parse(self, key: str, parse: Callable[[str], T]) -> T | None:
        value = self._value(key)
        try:
            return None if value is None else parse(str(value))
        except OptionValueError as error:
            raise self._type_error(key, str(error)) from None

    def settings(self, key: str) -> dict[str, str]:
        """Returns a mapping of names to texts. Names in nested mappings are joined with dots."""
        return dict(self._flatten((*self.path, key), self._mapping(key, "a mapping of names to values")))

    def _flatten(self, path: tuple[str, ...], tree: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        for name, value in tree.items():
            where = (*path, str(name))
            if isinstance(value, Mapping):
                yield from ((f"{name}.{inner}", text) for inner, text in self._flatten(where, value))
            elif isinstance(value, str | int | float):
                yield str(name), str(value).lower() if isinstance(value, bool) else str(value)
            else:
                raise self.locations.error(where, f"{'.'.join(where)} must be text, not {_value_text(where, value)}")

    def sections(self, key: str) -> "dict[str, SpecSection]":
        tree = self._mapping(key, "a mapping of names to settings")
        return {
            str(name): SpecSection(each, (*self.path, key, str(name)), self.locations) for name, each in tree.items()
        }

    def _mapping(self, key: str, expected: str) -> Mapping[str, Any]:
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._type_error(key, expected)
        return value

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
            raise self.error(found[1], f"{self._name} has both {' and '.join(found)}: remove one of them")
        for key in self._tree:
            hint = "" if key in self._known else did_you_mean(str(key), keys)
            if hint:
                raise self.error(str(key), f"{self._name} has no option {str(key)!r}{hint}")
        raise self.error(None, f"{self._name} needs {' or '.join(keys)}")

    def file_text(self, key: str, beside: Path | None) -> str | None:
        """Returns the content of the file that the key names, relative to `beside`. None if the key is not set."""
        name = self.text(key)
        if name is None:
            return None
        path = Path(name) if beside is None else beside / name
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise self.error(key, f"cannot read the file {path}: {why}") from None

    def read(self, key: str, read: Callable[[str], str]) -> str | None:
        """Parses the text of a key with `read`, which raises ValueError for an invalid text."""
        value = self.text(key)
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise self.error(key, f"{'.'.join((*self.path, key))}: {error}") from None

    def _value(self, key: str) -> Any:
        self._known[key] = None
        return self._tree.get(key)

    def _type_error(self, key: str, expected: str) -> PipelineError:
        path = (*self.path, key)
        shown = _value_text(path, self._tree.get(key))
        return self.error(key, f"{'.'.join(path)} must be {expected}, not {shown}")


def _value_text(path: Sequence[str], value: object) -> str:
    if path and is_secret(path[-1]):
        return "what is set"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return "nothing" if value is None else repr(value)
