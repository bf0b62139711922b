"""`moldau spark worker`: a worker of a standalone Spark cluster, in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.spark.parameters import exit_on_error
from moldau.spark.errors import LaunchError
from moldau.spark.launcher.cluster_checks import reach_master
from moldau.spark.launcher.master_url import MasterKind, parse_master
from moldau.spark.launcher.standalone import WorkerOptions, exec_worker

REACHED_WITHIN_S = 30.0


def spark_worker(
    master: Annotated[
        str, typer.Argument(metavar="MASTER", help="As the master says it: spark://host:7077.")
    ],
    cores: Annotated[
        int | None, typer.Option(min=1, help="How many its executors may use; all unless given.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What its executors may use, like 2g; all but 1 GB unless given."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address it is known by; the one by which it reaches the master unless given."),
    ] = None,
    webui_port: Annotated[
        int, typer.Option("--webui-port", min=0, max=65535, help="Of its page; any unless given.")
    ] = 0,
    work_dir: Annotated[
        Path, typer.Option("--work-dir", help="Where executors run, and where their logs stay.")
    ] = Path("spark-work"),
) -> None:
    """Run a worker of a Spark cluster until Ctrl-C.

    moldau spark worker spark://127.0.0.1:7077 --cores 2 --memory 2g
    """
    with exit_on_error():
        where = parse_master(master)
        if where.kind is not MasterKind.STANDALONE:
            raise LaunchError(f"A worker needs a standalone master, spark://host:port, not {master!r}.")
        address = host or reach_master(where, REACHED_WITHIN_S)
        exec_worker(WorkerOptions(master, address, webui_port, cores, memory, work_dir.absolute()))
