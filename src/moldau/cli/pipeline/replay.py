"""`moldau pipeline replay`: reads what was there since a time once more, with checkpoints of its own."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.cluster_access import print_notice
from moldau.cli.pipeline.parameters import (
    AvailableNow,
    Bootstrap,
    File,
    Json,
    Quiet,
    State,
    load_pipeline,
    state_directory,
)
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
            help="2026-01-31T12:00 (in UTC), '2 hours ago', or earliest: by the records' timestamps.",
        ),
    ],
    available_now: AvailableNow = False,
    master: MasterUrl = None,
    bootstrap: Bootstrap = None,
    state: State = None,
    conf: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
) -> None:
    """Process again what the topics got since a time, and go on from there.

    A new generation of checkpoints begins at that time. The one before it is kept as it is:
    `moldau pipeline run FILE --generation N` goes back to it.

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
            print_notice("Nothing is changed: add --yes to do it.")
            raise typer.Exit(1)
        options = RunOptions(
            master=master, available_now=available_now, conf=parse_spark_conf(conf), replay_from=start
        )
        run_and_report(pipeline, state, options, as_json=as_json, quiet=quiet)


def _confirm() -> bool:
    return sys.stdin.isatty() and typer.confirm("Go on?", err=True)
