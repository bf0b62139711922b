"""The help of every command: it describes all parameters and fits into a terminal."""

import pytest
from typer.testing import CliRunner

from moldau.cli.command_tree import command_paths, group_commands, parameters, root_commands
from moldau.cli.commands import GROUPS, app

COLUMNS_MAX = 100
PATHS = list(command_paths())


def help_of(*path: str) -> list[str]:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS_MAX)}, terminal_width=COLUMNS_MAX)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert not [line for line in lines if len(line) > COLUMNS_MAX]
    return lines


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_help_of_a_command_describes_it_and_its_parameters(path: tuple[str, ...]) -> None:
    shown = " ".join(help_of(*path))
    assert f"Usage: moldau {' '.join(path)} " in shown
    assert "[[" not in shown, "the brackets of optional arguments are added to metavar"
    for parameter in parameters(*path):
        name = parameter.names[0] if parameter.names else parameter.metavar
        assert parameter.help, f"{name} has no help"
        # `moldau serve` shows both flags of a boolean setting as one.
        assert name in shown or f"--[no-]{name.removeprefix('--')}" in shown


@pytest.mark.parametrize("path", [path for path in PATHS if path != ("serve",)], ids=" ".join)
def test_examples_in_a_help_are_not_folded(path: tuple[str, ...]) -> None:
    for line in help_of(*path):
        if line.lstrip().startswith("moldau "):
            assert len(line.rstrip()) < COLUMNS_MAX - 1, f"the example may be folded: {line.strip()}"


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_lists_its_commands_with_a_description(group: str) -> None:
    shown = " ".join(help_of(group))
    for name, text in group_commands(group).items():
        assert text, f"moldau {group} {name} has no description"
        assert f" {name} " in shown


def test_the_help_of_moldau_lists_all_commands_with_a_description() -> None:
    lines = help_of()
    for name, text in root_commands().items():
        assert text, f"moldau {name} has no description"
        assert any(line.split()[1:2] == [name] for line in lines)
