"""The command tree. The module of a command is imported only when the command runs or prints its own help."""

import inspect
import platform
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from moldau import __version__
from moldau.cli.settings import settings
from moldau.settings.option_parser import suggest_names

GROUPS = ("topic", "group", "transaction", "cluster", "broker", "pipeline", "outbox", "spark", "log", "generate")
"""The command groups. Each is a package `moldau.cli.<group>` with HELP and COMMANDS. The file `<group>/<command>.py`
defines the function `<group>_<command>`."""


class _Command(TyperCommand):
    """A command whose errors about arguments have no prefix of Typer's validator."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def _load_command(name: str, module_name: str, function: str) -> Any:
    module = import_module(module_name)
    command = typer.Typer(add_completion=False)
    context_settings = getattr(module, "CONTEXT_SETTINGS", {})
    callback = getattr(module, function)
    help_ = _unwrap(inspect.getdoc(callback) or "")
    command.command(name, cls=_Command, help=help_, context_settings=context_settings)(callback)
    return typer.main.get_command(command)


def _unwrap(text: str) -> str:
    """Joins the lines of each paragraph, so that the terminal wraps them at its own width."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


class LazyGroup(TyperGroup):
    """The commands of one group, each imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(import_module(f"moldau.cli.{self.name}").COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        return _load_command(cmd_name, f"moldau.cli.{self.name}.{name}", f"{self.name}_{name}")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer suggests only commands that it has loaded.
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}{suggest_names(args[0], known)}")
        return super().resolve_command(ctx, args)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        version()
        raise typer.Exit


app = typer.Typer(name="moldau", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def moldau(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """A Kafka-compatible event log written in Python."""


RAW_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings of lazily imported commands. The imported command parses all arguments, including `--help`."""


def version() -> None:
    """Print the versions of Moldau and Python."""
    typer.echo(f"moldau {__version__} (Python {platform.python_version()}, {platform.system()})")


@app.command("serve", context_settings=RAW_ARGUMENTS)
def serve(context: typer.Context) -> None:
    """Run a node until it is stopped (Ctrl-C, SIGTERM)."""
    from moldau.cli.serve import serve

    raise typer.Exit(serve(context.args))


@app.command("complete", hidden=True, context_settings=RAW_ARGUMENTS)
def complete(context: typer.Context) -> None:
    """Print the candidates for a completion script."""
    from moldau.cli.completion import complete

    typer.echo(complete(context.args), nl=False)


LAZY_COMMANDS: dict[str, tuple[str, str]] = {}
"""The module and the help of each command that is imported on first use. The function has the name of the command."""


def _add_command(name: str, module: str, help_: str) -> None:
    LAZY_COMMANDS[name] = (module, help_)

    @app.command(name, help=help_, context_settings=RAW_ARGUMENTS)
    def run(context: typer.Context) -> None:
        _load_command(name, module, name).main(context.args, f"moldau {name}")


def _add_group(name: str) -> None:
    group = typer.Typer(cls=LazyGroup, no_args_is_help=True)
    group.callback()(lambda: None)
    app.add_typer(group, name=name, help=import_module(f"moldau.cli.{name}").HELP)


_add_command("up", "moldau.cli.up.command", "Run a cluster of several nodes on this machine.")
_add_command("produce", "moldau.cli.produce", "Produce each line of standard input as a record.")
_add_command("consume", "moldau.cli.consume", "Print the records of topics.")
_add_command("bench", "moldau.cli.bench.command", "Measure throughput and latency of a cluster.")
_add_command("completion", "moldau.cli.completion", "Print a script that completes commands and names in a shell.")
_add_command("demo", "moldau.cli.demo.command", "Run a demo: a node, generated orders and a pipeline on Spark.")
for name in GROUPS:
    _add_group(name)
app.command("settings")(settings)
app.command("version")(version)
