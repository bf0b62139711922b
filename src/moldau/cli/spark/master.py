"""`moldau spark master`: the master of a standalone Spark cluster, in the foreground."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import print_notice
from moldau.cli.spark.parameters import exit_on_error
from moldau.spark.launcher.master_url import DEFAULT_PORT
from moldau.spark.launcher.standalone import MasterOptions, exec_master


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
    with exit_on_error():
        print_notice(
            f"Spark master at spark://{host}:{port}; `moldau spark worker spark://{host}:{port}` adds a worker."
        )
        exec_master(MasterOptions(host, port, webui_port))
