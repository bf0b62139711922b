"""The commands with their parameters, read from the functions that define them.

Completion uses this view instead of the objects of Typer, whose attributes differ between versions.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

from moldau.cli.commands import GROUPS, LAZY_COMMANDS, app


class Parameter(NamedTuple):
    names: tuple[str, ...]
    """The names of an option, such as --topic and -t; empty for an argument."""
    help: str
    metavar: str
    is_flag: bool
    is_multiple: bool
    choices: tuple[str, ...] = ()
    is_path: bool = False


def command_paths() -> Iterator[tuple[str, ...]]:
    """Yields the paths of all commands, such as ("topic", "create")."""
    for each in app.registered_commands:
        if each.name is not None and not each.hidden:
            yield (each.name,)
    for group in GROUPS:
        yield from ((group, name) for name in import_module(f"moldau.cli.{group}").COMMANDS)


def root_commands() -> dict[str, str]:
    """Returns the commands and groups with their help, in the order of `moldau --help`."""
    found = {}
    for each in app.registered_commands:
        if each.name is not None and not each.hidden:
            found[each.name] = LAZY_COMMANDS[each.name][1] if each.name in LAZY_COMMANDS else _doc(each.callback)
    return {**found, **{name: import_module(f"moldau.cli.{name}").HELP for name in GROUPS}}


def group_commands(group: str) -> dict[str, str]:
    """Returns the commands of a group with their help."""
    names = import_module(f"moldau.cli.{group}").COMMANDS
    return {name: _doc(_group_function(group, name)) for name in names}


def parameters(*path: str) -> list[Parameter]:
    """Returns the arguments and options of a command, such as `parameters("topic", "create")`."""
    if path == ("serve",):
        return list(_serve_parameters())
    if len(path) == 2:
        function = _group_function(*path)
    elif path[0] in LAZY_COMMANDS:
        function = getattr(import_module(LAZY_COMMANDS[path[0]][0]), path[0])
    else:
        function = next(each.callback for each in app.registered_commands if each.name == path[0] and each.callback)
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name in inspect.signature(function).parameters:
        if get_origin(hints[name]) is Annotated:
            type_, info = get_args(hints[name])[:2]
            if not info.hidden:
                found.append(_parameter(name, type_, info))
    return found


def _group_function(group: str, command: str) -> Callable[..., Any]:
    name = command.replace("-", "_")
    function: Callable[..., Any] = getattr(import_module(f"moldau.cli.{group}.{name}"), f"{group}_{name}")
    return function


def _doc(function: Callable[..., Any] | None) -> str:
    return (inspect.getdoc(function) or "") if function is not None else ""


def _parameter(name: str, type_: Any, info: OptionInfo | ArgumentInfo) -> Parameter:
    plain = [each for each in _without_optional(type_) if each is not types.NoneType]
    is_multiple = any(get_origin(each) is list for each in plain)
    if is_multiple:
        plain = [inner for each in plain for inner in get_args(each)]
    choices = tuple(str(value) for each in plain if get_origin(each) is Literal for value in get_args(each))
    metavar, is_path = info.metavar or name.upper(), Path in plain
    if isinstance(info, ArgumentInfo):
        return Parameter((), info.help or "", metavar.strip("[]."), False, is_multiple, choices, is_path)
    long_name = f"--{name.replace('_', '-')}"
    is_flag = bool in plain
    # In an annotation, Typer takes the first name for the default until it builds the command.
    declared = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    names = tuple(part for each in declared for part in each.split("/"))
    if not names:
        names = (long_name, f"--no-{long_name[2:]}") if is_flag else (long_name,)
    return Parameter(names, info.help or "", metavar, is_flag, is_multiple, choices, is_path)


def _without_optional(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (typing.Union, types.UnionType) else (type_,)


def _serve_parameters() -> Iterator[Parameter]:
    """Yields the flags of `moldau serve`, which Typer does not parse."""
    from moldau.settings.broker import broker_definitions
    from moldau.settings.registry import ConfigType
    from moldau.settings.sources import flag_name

    yield Parameter(("--config",), "TOML file with settings.", "FILE", False, False, is_path=True)
    for each in broker_definitions().values():
        flag = flag_name(each.name)
        is_flag = each.type is ConfigType.BOOLEAN
        names = (flag, f"--no-{flag.removeprefix('--')}") if is_flag else (flag,)
        yield Parameter(names, each.doc, "", is_flag, each.type is ConfigType.LIST, tuple(map(str, each.choices or ())))
