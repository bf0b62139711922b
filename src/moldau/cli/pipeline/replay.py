"""`moldau pipeline replay`: processes records again from a time, with new checkpoints."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.console import print_notice
from moldau.cli.parameters import Json
from moldau.cli.pipeline.parameters import AvailableNow, Bootstrap, File, Quiet, State, load_pipeline, state_directory
from moldau.cli.pipeline.run import run_and_report
from moldau.cli.spark.parameters import MasterUrl, Settings, exit_on_error, parse_spark_conf
from moldau.pipelines.planner.replay import describe_replay
from moldau.pipelines.runtime.run import RunOptions, now
from moldau.pipelines.runtime.times import parse_start_time


def pipeline_replay(
    file: File,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start time by record timestamps: 2026-01-31T12:00 (UTC), '2 hours ago', or earliest.",
        ),
    ],
    available_now: AvailableNow = False,
    master: MasterUrl = None,
    bootstrap: Bootstrap = None,
    state: State = None,
    conf: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Process records again from a time and continue from there.

    The replay starts a new generation of checkpoints. The previous one is kept:
    `moldau pipeline run FILE --generation N` returns to it.

    moldau pipeline replay revenue.yaml --from '2 hours ago'

    moldau pipeline replay revenue.yaml --from earliest --available-now --yes
    """
    with exit_on_error():
        start = parse_start_time(begin, datetime.now(UTC))
        pipeline = load_pipeline(file, bootstrap)
        generations = state_directory(pipeline, state).generations(now())
        for line in describe_replay(pipeline, start, generations):
            print_notice(line)
        if not (yes or _confirm()):
            print_notice("Nothing was changed. Add --yes to replay.")
            raise typer.Exit(1)
        options = RunOptions(master=master, available_now=available_now, conf=parse_spark_conf(conf), replay_from=start)
        run_and_report(pipeline, state, options, as_json=as_json, quiet=quiet)


def _confirm() -> bool:
    return sys.stdin.isatty() and typer.confirm("Continue?", err=True)
