"""`moldau spark submit`: runs a Python program with Spark."""

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

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""Arguments after the file belong to the program."""


def spark_submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the program.")
    ] = None,
    master: MasterUrl = None,
    settings: Settings = None,
    name: Annotated[str | None, typer.Option(help="Application name; by default the file name.")] = None,
    py_files: PythonFiles = None,
) -> None:
    """Run a Python program that uses Spark. Options go before the file, arguments of the program after it.

    The program creates its session with moldau.spark.session() or SparkSession.builder.getOrCreate(). Both use the
    master and the settings of this command.

    moldau spark submit revenue.py

    moldau spark submit --master spark://127.0.0.1:7077 revenue.py --day 2026-01-01
    """
    conf = parse_spark_conf(settings, py_files)
    with exit_on_error():
        if not file.is_file():
            raise LaunchError(f"File {file} does not exist.")
        from moldau.spark.launcher.session import spark_launcher
        from moldau.spark.launcher.spark_home import find_spark
        from moldau.spark.launcher.spark_settings import read_defaults, resolve_settings

        spark = find_spark()
        defaults = read_defaults(spark.settings)
        master_url, resolved = resolve_settings(
            name or file.name, master, conf, submitted={}, defaults=defaults, environ=os.environ
        )
        spark_launcher().start_submitted(spark, master_url, resolved)
        _run(file, arguments or [])


def _run(file: Path, arguments: list[str]) -> None:
    """Runs the program like `python FILE`: sys.path has the program's directory, and sys.argv has its arguments."""
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
    """Returns the part of a traceback that starts in the program, or None if the program did not start."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
        trace = trace.tb_next
    return trace
