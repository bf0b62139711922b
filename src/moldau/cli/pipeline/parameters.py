"""What the pipeline commands are given, and where the state of a pipeline is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.cluster_access import CommandError
from moldau.cli.parameters import name, validate_bootstrap
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.runtime.state_directory import StateDirectory, state_directories, state_root

if TYPE_CHECKING:
    from moldau.pipelines.runtime.state_directory import RunRecord

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
    typer.Argument(
        metavar="NAME|FILE",
        callback=name,
        help="The pipeline: its file, or where its state is in ./moldau-pipelines its name.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIRECTORY",
        envvar="MOLDAU_PIPELINES",
        file_okay=False,
        help="Where pipelines keep checkpoints and progress; moldau-pipelines beside the file by default.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        callback=lambda given: None if given is None else validate_bootstrap(given),
        help="Servers to begin with, instead of those in the file.",
    ),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process what is in the topics now, and end.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what goes wrong.")]


def load_pipeline(file: Path, bootstrap: str | None) -> PipelineDefinition:
    from moldau.pipelines.spec.loader import load

    # From wherever it is run, its tables and checkpoints have the same names.
    file = file.parent.resolve() / file.name
    return load(file, overrides={} if bootstrap is None else {"bootstrap": bootstrap})


def state_directory(pipeline: PipelineDefinition, state: Path | None) -> StateDirectory:
    return StateDirectory.of(state_root(state, file=pipeline.file), pipeline.name)


def find_run(given: str, state: Path | None) -> tuple[StateDirectory, "RunRecord"]:
    """The state directory of a pipeline that has run; `given` is its file, or its name."""
    if given.endswith((".yaml", ".yml", ".py")):
        if not Path(given).is_file():
            raise CommandError(f"There is no file {given}.")
        directory = state_directory(load_pipeline(Path(given), None), state)
    else:
        directory = StateDirectory.of(state_root(state), given)
    record = directory.read_run()
    if record is None:
        where = directory.path.parent
        known = ", ".join(each.name for each in state_directories(where))
        there = f"There is {known}." if known else "None has run here yet."
        raise CommandError(
            f"No pipeline {directory.name!r} has run with its state in {where}. {there} "
            "Give its file instead of its name, or with --state (or MOLDAU_PIPELINES) where its state is."
        )
    return directory, record
