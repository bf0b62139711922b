"""`moldau spark master`: runs the master of a standalone Spark cluster in the foreground."""

from typing import Annotated

import typer

from moldau.cli.console import print_notice
from moldau.cli.spark.parameters import exit_on_error
from moldau.spark.launcher.master_url import DEFAULT_PORT
from moldau.spark.launcher.standalone import exec_master


def spark_master(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on and advertise. Anyone who can connect can run code on the workers: use a "
            "non-local address only in a trusted network."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for workers and drivers.")] = DEFAULT_PORT,
    webui_port: Annotated[
        int, typer.Option("--webui-port", min=0, max=65535, help="Port of the web UI; 0 for any free port.")
    ] = 8080,
) -> None:
    """Run the master of a Spark cluster until Ctrl-C.

    moldau spark master

    moldau spark worker spark://127.0.0.1:7077
    """
    with exit_on_error():
        print_notice(f"Spark master at spark://{host}:{port}. Add a worker: moldau spark worker spark://{host}:{port}")
        exec_master(host, port, webui_port)
