"""The commands as Typer knows them, one file each."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moldau.cli.settings import settings
from moldau.cli.version import print_version, version

LOG_COMMANDS = {
    "dump": "moldau.cli.log_dump:log_dump",
    "verify": "moldau.cli.log_verify:log_verify",
}


class LogCommands(TyperGroup):
    """Loaded when somebody types `moldau log`: they bring codecs that `moldau --help` can do without."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(LOG_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LOG_COMMANDS:
            return None
        module, _, function = LOG_COMMANDS[cmd_name].partition(":")
        return _command(cmd_name, getattr(import_module(module), function))


def _command(name: str, function: Callable[..., Any]) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


app = typer.Typer(name="moldau", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def moldau(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=print_version),
    ] = False,
) -> None:
    """A Kafka-compatible event log written in Python."""


@app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def serve(context: typer.Context) -> None:
    """Run a node until it is told to stop (Ctrl-C, SIGTERM)."""
    from moldau.cli.serve import serve

    raise typer.Exit(serve(context.args))


app.command("settings")(settings)
app.command("version")(version)

log_app = typer.Typer(cls=LogCommands, no_args_is_help=True)


@log_app.callback()
def log() -> None:
    """Look into segments, indexes and the metadata log."""


app.add_typer(log_app, name="log")
