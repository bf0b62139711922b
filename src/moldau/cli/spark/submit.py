"""`moldau spark submit`: a Python program with Spark ready for it, here or on a cluster."""

import os
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from moldau.cli.spark.parameters import MasterUrl, PythonFiles, Settings, exit_on_error, parse_spark_conf
from moldau.pipelines.error_summary import USER_ERRORS
from moldau.spark.errors import LaunchError


def spark_submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Handed to it as they are.")
    ] = None,
    master: MasterUrl = None,
    settings: Settings = None,
    name: Annotated[
        str | None, typer.Option(help="How the application is called; as the file unless given.")
    ] = None,
    py_files: PythonFiles = None,
) -> None:
    """Run a Python program that uses Spark. Options go before the file, what comes after it is the program's.

    The program makes its session with moldau.spark.session() or as it would anywhere, with
    SparkSession.builder.getOrCreate(): both get the master and the settings that are given here.

    moldau spark submit revenue.py

    moldau spark submit --master spark://127.0.0.1:7077 revenue.py --day 2026-01-01
    """
    given = parse_spark_conf(settings)
    if py_files:
        given["spark.submit.pyFiles"] = py_files
    with exit_on_error():
        if not file.is_file():
            raise LaunchError(f"There is no file {file}.")
        _prepare(name or file.name, master, given)
        _run(file, arguments or [])


def _prepare(name: str, master: str | None, given: dict[str, str]) -> None:
    from moldau.spark.launcher.session import start_submitted
    from moldau.spark.launcher.spark_home import find_spark
    from moldau.spark.launcher.spark_settings import read_defaults, resolve_settings

    spark = find_spark()
    where, chosen = resolve_settings(
        name, master, given, submitted={}, defaults=read_defaults(spark.settings), environ=os.environ
    )
    start_submitted(spark, where, chosen)


def _run(file: Path, arguments: list[str]) -> None:
    """As Python itself would: the program's directory comes first in the path, and its arguments are its own."""
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.absolute().parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except USER_ERRORS:
        raise
    except Exception as error:
        traceback.print_exception(error.with_traceback(_from(file, error.__traceback__)))
        raise typer.Exit(1) from None


def _from(file: Path, trace: TracebackType | None) -> TracebackType | None:
    """What of a trace is the program's, not how it was started; nothing where the program did not even begin."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
        trace = trace.tb_next
    return trace
