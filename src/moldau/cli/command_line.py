"""An incomplete command line: the command it names, and what its last word can be."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from moldau.cli.command_tree import Parameter, group_commands, parameters, root_commands
from moldau.cli.commands import GROUPS

HELP_LENGTH_MAX = 80
CREATING_COMMANDS = (("topic", "create"),)
"""Commands whose topics do not exist yet."""
STATIC_VALUES = {"CODEC": ("none", "gzip", "snappy", "lz4", "zstd")}
BOOTSTRAP_OPTIONS = ("--bootstrap", "-b")
HELP = Parameter(("--help",), "Show this message and exit.", "", True, False)


class Candidate(NamedTuple):
    value: str
    help: str = ""


class CommandLine(NamedTuple):
    """What the last word of a command line can be."""

    prefix: str
    """The text that candidates must start with: the last word, or what follows `--option=` in it."""
    before: str = ""
    """The text of the last word before `prefix`."""
    candidates: tuple[Candidate, ...] = ()
    metavar: str = ""
    """The metavar of the parameter that the last word is a value of, such as TOPIC."""
    is_path: bool = False
    creates: bool = False
    """Whether the command creates the object that the last word names."""
    bootstrap: str | None = None
    """The value of --bootstrap in the line."""


def parse_command_line(words: Sequence[str]) -> CommandLine:
    """Parses the words after the program name. The last word is the one to complete, and may be empty."""
    *previous, current = words
    path: list[str] = []
    children = root_commands()
    while children and previous:
        word = previous.pop(0)
        if word.startswith("-"):
            continue
        if word not in children:
            return CommandLine(current)
        path.append(word)
        children = group_commands(word) if len(path) == 1 and word in GROUPS else {}
    if children:
        found = {HELP.names[0]: HELP.help} if current.startswith("-") else children
        return CommandLine(current, candidates=tuple(Candidate(name, _shorten(text)) for name, text in found.items()))
    declared = parameters(*path)
    options = [*(each for each in declared if each.names), HELP]
    arguments = [each for each in declared if not each.names]
    return _complete_parameter(options, arguments, previous, current)._replace(
        creates=tuple(path) in CREATING_COMMANDS, bootstrap=_option_value(options, BOOTSTRAP_OPTIONS, previous)
    )


def _complete_parameter(
    options: Sequence[Parameter], arguments: Sequence[Parameter], previous: Sequence[str], current: str
) -> CommandLine:
    by_name = {name: option for option in options for name in option.names}
    positional = 0
    pending: Parameter | None = None
    is_after_separator = False
    for word in previous:
        if pending is not None:
            pending = None
        elif is_after_separator or not word.startswith("-") or word == "-":
            positional += 1
        elif word == "--":
            is_after_separator = True
        else:
            option = by_name.get(word)
            pending = option if option is not None and not option.is_flag else None
    if pending is not None:
        return _value_of(pending, current)
    if current.startswith("-") and not is_after_separator:
        name, equals, value = current.partition("=")
        if not equals:
            return CommandLine(current, candidates=tuple(_option_candidates(options, previous)))
        if name not in by_name:
            return CommandLine(current)
        return _value_of(by_name[name], value, f"{name}=")
    for argument in arguments:
        if positional == 0 or argument.is_multiple:
            return _value_of(argument, current)
        positional -= 1
    return CommandLine(current)


def _value_of(parameter: Parameter, prefix: str, before: str = "") -> CommandLine:
    values = parameter.choices or STATIC_VALUES.get(parameter.metavar, ())
    return CommandLine(prefix, before, tuple(map(Candidate, values)), parameter.metavar, parameter.is_path)


def _option_candidates(options: Sequence[Parameter], previous: Sequence[str]) -> Iterator[Candidate]:
    """Yields the long names of options, without those that are in the line and cannot be repeated."""
    for option in options:
        if option.is_multiple or not set(option.names).intersection(previous):
            names = [name for name in option.names if name.startswith("--")] or option.names
            yield from (Candidate(name, _shorten(option.help)) for name in names)


def _option_value(options: Sequence[Parameter], names: Sequence[str], words: Sequence[str]) -> str | None:
    if not any(name in option.names for option in options for name in names):
        return None
    value = None
    for word, following in pairwise([*words, ""]):
        name, equals, text = word.partition("=")
        if name in names:
            value = text if equals else following
    return value


def _shorten(text: str) -> str:
    """Returns the first sentence of a help text on one line."""
    sentence = " ".join(text.split()).partition(". ")[0].removesuffix(".")
    return sentence if len(sentence) <= HELP_LENGTH_MAX else f"{sentence[: HELP_LENGTH_MAX - 3]}..."
