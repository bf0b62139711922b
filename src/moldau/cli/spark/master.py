"""`moldau spark master`: the master of a standalone Spark cluster, in the foreground."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import say
from moldau.cli.spark.arguments import told_plainly
from moldau.spark.launcher.masters import DEFAULT_PORT
from moldau.spark.launcher.standalone import MasterOptions, become_master


def spark_master(
    host: Annotated[
        str,
        typer.Option(
            help="The address it listens on and is known by. Whoever reaches it can run code on its workers: "
            "give another than this machine's own only in a network that you trust."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For workers and drivers.")] = DEFAULT_PORT,
    webui_port: Annotated[
        int,
        typer.Option("--webui-port", min=0, max=65535, help="Of the page that shows what runs; 0 takes any."),
    ] = 8080,
) -> None:
    """Run the master of a Spark cluster until Ctrl-C.

    moldau spark master

    moldau spark worker spark://127.0.0.1:7077
    """
    with told_plainly():
        say(
            f"Spark master at spark://{host}:{port}; `moldau spark worker spark://{host}:{port}` adds a worker."
        )
        become_master(MasterOptions(host, port, webui_port))
