"""The commands as Typer knows them, one file each. A file is loaded when somebody types its command, or asks for
its help: `moldau --help` is quick because it loads none of them."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moldau.cli.settings import settings
from moldau.cli.version import print_version, version

COMMANDS_BY_GROUP = {
    "topic": {
        "list": "moldau.cli.topic.list:topic_list",
        "create": "moldau.cli.topic.create:topic_create",
        "describe": "moldau.cli.topic.describe:topic_describe",
        "alter": "moldau.cli.topic.alter:topic_alter",
        "delete": "moldau.cli.topic.delete:topic_delete",
    },
    "group": {
        "list": "moldau.cli.group.list:group_list",
        "describe": "moldau.cli.group.describe:group_describe",
        "reset": "moldau.cli.group.reset:group_reset",
        "delete": "moldau.cli.group.delete:group_delete",
    },
    "cluster": {
        "status": "moldau.cli.cluster.status:cluster_status",
        "new-id": "moldau.cli.cluster.new_id:cluster_new_id",
        "drain": "moldau.cli.cluster.drain:cluster_drain",
        "elect-leaders": "moldau.cli.cluster.elect_leaders:cluster_elect_leaders",
        "add-voter": "moldau.cli.cluster.add_voter:cluster_add_voter",
        "remove-voter": "moldau.cli.cluster.remove_voter:cluster_remove_voter",
        "unregister": "moldau.cli.cluster.unregister:cluster_unregister",
    },
    "spark": {
        "shell": "moldau.cli.spark.shell:spark_shell",
        "submit": "moldau.cli.spark.submit:spark_submit",
        "master": "moldau.cli.spark.master:spark_master",
        "worker": "moldau.cli.spark.worker:spark_worker",
    },
    "pipeline": {
        "new": "moldau.cli.pipeline.new:pipeline_new",
        "check": "moldau.cli.pipeline.check:pipeline_check",
        "run": "moldau.cli.pipeline.run:pipeline_run",
        "list": "moldau.cli.pipeline.list:pipeline_list",
        "status": "moldau.cli.pipeline.status:pipeline_status",
        "stop": "moldau.cli.pipeline.stop:pipeline_stop",
        "replay": "moldau.cli.pipeline.replay:pipeline_replay",
        "redrive": "moldau.cli.pipeline.redrive:pipeline_redrive",
    },
    "log": {
        "dump": "moldau.cli.log.dump:log_dump",
        "verify": "moldau.cli.log.verify:log_verify",
    },
}


NO_INTERSPERSED_ARGS = {"moldau.cli.spark.submit:spark_submit"}
"""Commands whose options end where their first argument is: what follows belongs to the program that they run."""


def _load_command(name: str, place: str) -> Any:
    module, _, function = place.partition(":")
    return _make_command(name, getattr(import_module(module), function), place not in NO_INTERSPERSED_ARGS)


def _make_command(name: str, function: Callable[..., Any], options_anywhere: bool) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(name, context_settings={"allow_interspersed_args": options_anywhere})(function)
    return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """The commands of one group, which bring codecs and an event loop."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS_BY_GROUP[self.name or ""])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = COMMANDS_BY_GROUP[self.name or ""].get(cmd_name)
        return None if place is None else _load_command(cmd_name, place)


app = typer.Typer(name="moldau", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def moldau(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=print_version),
    ] = False,
) -> None:
    """A Kafka-compatible event log written in Python."""


RAW_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For commands that read their arguments elsewhere, `--help` among them."""


@app.command("serve", context_settings=RAW_ARGUMENTS)
def serve(context: typer.Context) -> None:
    """Run a node until it is told to stop (Ctrl-C, SIGTERM)."""
    from moldau.cli.serve import serve

    raise typer.Exit(serve(context.args))


@app.command("up", context_settings=RAW_ARGUMENTS)
def up(context: typer.Context) -> None:
    """Run a cluster of several nodes on this machine."""
    _load_command("up", "moldau.cli.up.command:up").main(context.args, "moldau up")


@app.command("produce", context_settings=RAW_ARGUMENTS)
def produce(context: typer.Context) -> None:
    """Send each line of standard input as a record."""
    _load_command("produce", "moldau.cli.produce:produce").main(context.args, "moldau produce")


@app.command("consume", context_settings=RAW_ARGUMENTS)
def consume(context: typer.Context) -> None:
    """Print records of topics as they come."""
    _load_command("consume", "moldau.cli.consume:consume").main(context.args, "moldau consume")


@app.command("demo", context_settings=RAW_ARGUMENTS)
def demo(context: typer.Context) -> None:
    """See it all at work: a node, orders that come in, and a pipeline on Spark."""
    _load_command("demo", "moldau.cli.demo.command:demo").main(context.args, "moldau demo")


def _add_group(name: str, doc: str) -> None:
    group = typer.Typer(cls=LazyGroup, no_args_is_help=True)
    group.callback()(lambda: None)
    app.add_typer(group, name=name, help=doc)


_add_group("topic", "Create, look at and delete topics.")
_add_group("group", "Look at consumer groups, set how far they have come.")
_add_group("cluster", "Look at the nodes of a cluster, move what they keep, add and remove them.")
_add_group(
    "pipeline",
    "Run pipelines from topics to topics and tables, on Spark.\n\n"
    "A pipeline is one file: topics in, SQL or Python between, topics and tables out. In four steps:\n\n"
    "moldau pipeline new revenue\n\n"
    "moldau pipeline check revenue.yaml\n\n"
    "moldau pipeline run revenue.yaml\n\n"
    "moldau pipeline status revenue",
)
_add_group("spark", "Start Spark with Moldau's data source, on any Java or on none.")
_add_group("log", "Look into segments, indexes and the metadata log.")

app.command("settings")(settings)
app.command("version")(version)
