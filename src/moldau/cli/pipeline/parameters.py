"""Parameters shared by the pipeline commands, and lookup of pipeline state."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError
from moldau.cli.parameters import validate_bootstrap, validate_name
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.runtime.state_directory import RunRecord, StateDirectory, state_directories, state_root

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Pipeline file, .yaml or .py. `moldau pipeline new` creates one.",
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        callback=validate_name,
        help="Pipeline file, or the name of a pipeline with its state in ./moldau-pipelines.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIRECTORY",
        envvar="MOLDAU_PIPELINES",
        file_okay=False,
        help="Directory for checkpoints and progress; by default moldau-pipelines next to the file.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        callback=lambda value: None if value is None else validate_bootstrap(value),
        help="Comma-separated bootstrap servers, instead of those in the file.",
    ),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process the records that are available now, then stop.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def load_pipeline(file: Path, bootstrap: str | None) -> PipelineDefinition:
    from moldau.pipelines.spec.loader import load

    # Resolve the directory, so that paths of tables and checkpoints do not depend on the working directory or on links.
    file = file.parent.resolve() / file.name
    return load(file, overrides={} if bootstrap is None else {"bootstrap": bootstrap})


def state_directory(pipeline: PipelineDefinition, state: Path | None) -> StateDirectory:
    return StateDirectory.of(state_root(state, pipeline.file), pipeline.name)


def find_run(name_or_file: str, state: Path | None) -> tuple[StateDirectory, RunRecord]:
    """Returns the state directory and the latest run of a pipeline. Raises CommandError if the pipeline has not run."""
    if name_or_file.endswith((".yaml", ".yml", ".py")):
        if not Path(name_or_file).is_file():
            raise CommandError(f"File {name_or_file} does not exist.")
        directory = state_directory(load_pipeline(Path(name_or_file), None), state)
    else:
        directory = StateDirectory.of(state_root(state), name_or_file)
    record = directory.read_run()
    if record is None:
        where = directory.path.parent
        known = ", ".join(each.name for each in state_directories(where))
        others = f"Pipelines with state there: {known}." if known else "No pipeline has run there yet."
        raise CommandError(
            f"Pipeline {directory.name!r} has no state in {where}. {others} "
            "Use the file instead of the name, or set --state or MOLDAU_PIPELINES to the state directory."
        )
    return directory, record
