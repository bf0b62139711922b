"""Parameters and error handling shared by the Spark and pipeline commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from moldau.cli.console import CommandError, exit_with_error, print_error
from moldau.cli.exit_codes import exit_code_of
from moldau.client.errors import KafkaError
from moldau.pipelines.error_summary import USER_ERRORS, missing_extra, summarize_error

MasterUrl = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master: local[*] for this machine (default), spark://host:7077 for a standalone cluster; yarn, "
        "k8s://… and sc://… are passed to Spark.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", "-c", metavar="NAME=VALUE", help="Spark setting; can be repeated.")
]
PythonFiles = Annotated[
    str | None,
    typer.Option("--py-files", metavar="FILES", help="Comma-separated Python files or zips for tasks to import."),
]


def parse_spark_conf(pairs: list[str] | None, py_files: str | None = None) -> dict[str, str]:
    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().startswith("spark."):
            raise typer.BadParameter(f"{pair!r} is not a Spark setting; use --conf spark.name=value")
        settings[name.strip()] = value
    if py_files:
        settings["spark.submit.pyFiles"] = py_files
    return settings


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns expected errors of Spark and pipelines into a message and exit code 1."""
    try:
        yield
    except KafkaError as error:
        exit_with_error(error, "the bootstrap servers")
    except (*USER_ERRORS, CommandError) as error:
        print_error(error)
        raise typer.Exit(exit_code_of(error)) from None
    except ImportError as error:
        if missing_extra(error) is None:
            raise
        print_error(CommandError(summarize_error(error)))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
