"""`moldau pipeline run`: runs a pipeline on Spark."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console, print_error, print_notice
from moldau.cli.parameters import Json
from moldau.cli.pipeline.display import display
from moldau.cli.pipeline.parameters import AvailableNow, Bootstrap, File, Quiet, State, load_pipeline, state_directory
from moldau.cli.spark.parameters import MasterUrl, Settings, exit_on_error, parse_spark_conf
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.error_summary import USER_ERRORS
from moldau.pipelines.runtime.run import RunOptions, RunOutcome, run
from moldau.pipelines.runtime.stop_request import stop_on_signals


def pipeline_run(
    file: File,
    available_now: AvailableNow = False,
    master: MasterUrl = None,
    bootstrap: Bootstrap = None,
    state: State = None,
    conf: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=1,
            metavar="NUMBER",
            help="Use the checkpoints of this generation; `moldau pipeline status` lists them.",
        ),
    ] = None,
) -> None:
    """Run a pipeline until Ctrl-C, or with --available-now until it has caught up.

    It continues where its last run stopped. Ctrl-C and `moldau pipeline stop` let the current batch finish.
    Exit codes: 0 done or stopped, 1 failed, 130 after Ctrl-C.

    moldau pipeline run revenue.yaml

    moldau pipeline run revenue.yaml --master spark://host:7077 --conf spark.executor.memory=2g
    """
    options = RunOptions(master=master, available_now=available_now, conf=parse_spark_conf(conf), generation=generation)
    with exit_on_error():
        pipeline = load_pipeline(file, bootstrap)
        run_and_report(pipeline, state, options, as_json=as_json, quiet=quiet)


def run_and_report(
    pipeline: PipelineDefinition, state: Path | None, options: RunOptions, *, as_json: bool, quiet: bool
) -> None:
    """Runs a pipeline and displays its progress. Exits with code 1 if the run failed, and with 130 after Ctrl-C."""
    directory = state_directory(pipeline, state)
    with stop_on_signals() as stop_request:
        with display(f"pipeline {pipeline.name}", as_json=as_json, quiet=quiet) as shown:
            outcome = run(pipeline, directory, options, stop_request, shown)
        if outcome.error is not None:
            print_error(CommandError(outcome.error))
            if not isinstance(outcome.failure, USER_ERRORS):
                print_notice(f"Details: {directory.error_log}")
            raise typer.Exit(1)
        if stop_request.signal_number == signal.SIGHUP:
            # Print nothing more, because the terminal was closed.
            raise typer.Exit(0)
        if not (as_json or quiet):
            out_console.print(summary(pipeline, outcome), markup=False)
        if stop_request.signal_number == signal.SIGINT:
            raise typer.Exit(130)


def summary(pipeline: PipelineDefinition, outcome: RunOutcome) -> str:
    rows = max((each.rows for each in outcome.states), default=0)
    if outcome.name == "stopped":
        return f"{pipeline.name} is stopped. The next run continues from here."
    return f"{pipeline.name} has caught up: {rows:,} rows read."
