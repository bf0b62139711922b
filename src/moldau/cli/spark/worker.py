"""`moldau spark worker`: runs a worker of a standalone Spark cluster in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.spark.parameters import exit_on_error
from moldau.spark.errors import LaunchError
from moldau.spark.launcher.cluster_checks import reach_master
from moldau.spark.launcher.master_url import MasterKind, parse_master
from moldau.spark.launcher.standalone import exec_worker

CONNECT_TIMEOUT_S = 30.0


def spark_worker(
    master: Annotated[str, typer.Argument(metavar="MASTER", help="Master URL, spark://host:7077.")],
    cores: Annotated[int | None, typer.Option(min=1, help="Cores for executors; by default all.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for executors, such as 2g; by default all but 1 GB.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to advertise; by default the local address of the connection to the master."),
    ] = None,
    webui_port: Annotated[
        int, typer.Option("--webui-port", min=0, max=65535, help="Port of the web UI; by default any free port.")
    ] = 0,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Working directory of executors and their logs.")] = Path(
        "spark-work"
    ),
) -> None:
    """Run a worker of a Spark cluster until Ctrl-C.

    moldau spark worker spark://127.0.0.1:7077 --cores 2 --memory 2g
    """
    with exit_on_error():
        where = parse_master(master)
        if where.kind is not MasterKind.STANDALONE:
            raise LaunchError(f"A worker needs a standalone master, spark://host:port, not {master!r}.")
        address = host or reach_master(where, CONNECT_TIMEOUT_S)
        exec_worker(master, address, webui_port, cores, memory, work_dir.absolute())
