"""What the commands around Spark are given, pipelines among them, and how they fail: in a line that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, exit_with_error, print_error
from moldau.client.errors import KafkaError
from moldau.pipelines.error_summary import USER_ERRORS, missing_extra, summarize_error

MasterUrl = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where it runs: local[*] on this machine (the default), spark://host:7077 on a standalone cluster; yarn, "
        "k8s://… and sc://… are handed to Spark as they are.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", "-c", metavar="NAME=VALUE", help="A setting of Spark. Can be given more than once."
    ),
]
PythonFiles = Annotated[
    str | None,
    typer.Option(
        "--py-files", metavar="FILES", help="Python files or zips that tasks import, with commas between."
    ),
]


def parse_spark_conf(given: list[str] | None) -> dict[str, str]:
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name.strip().startswith("spark."):
            raise typer.BadParameter(f"{each!r} is not a setting: write --conf spark.name=value")
        found[name.strip()] = value
    return found


@contextmanager
def exit_on_error(bootstrap: str = "the bootstrap servers") -> Iterator[None]:
    """Whatever keeps Spark or a pipeline from running ends the command with a sentence, not with a traceback."""
    try:
        yield
    except KafkaError as error:
        exit_with_error(error, bootstrap)
    except (*USER_ERRORS, CommandError) as error:
        print_error(error)
        raise typer.Exit(1) from None
    except ImportError as error:
        if missing_extra(error) is None:
            raise
        print_error(CommandError(summarize_error(error)))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
