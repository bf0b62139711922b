"""`moldau pipeline replay`: reads what was there since a time once more, with checkpoints of its own."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.cluster_access import say
from moldau.cli.pipeline.arguments import (
    AvailableNow,
    Bootstrap,
    File,
    Json,
    Quiet,
    State,
    loaded,
    state_directory,
)
from moldau.cli.pipeline.run import run_and_tell
from moldau.cli.spark.arguments import MasterUrl, Settings, parsed_settings, told_plainly
from moldau.pipelines.planning.replaying import consequences
from moldau.pipelines.running.run import RunOptions, now
from moldau.pipelines.running.times import start_at


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
    with told_plainly():
        start = start_at(begin, datetime.now(UTC))
        pipeline = loaded(file, bootstrap)
        generations = state_directory(pipeline, state).generations(now())
        for line in consequences(pipeline, start, generations):
            say(line)
        if not (yes or _is_wanted()):
            say("Nothing is changed: add --yes to do it.")
            raise typer.Exit(1)
        options = RunOptions(
            master=master, available_now=available_now, conf=parsed_settings(conf), replay_from=start
        )
        run_and_tell(pipeline, state, options, as_json=as_json, quiet=quiet)


def _is_wanted() -> bool:
    return sys.stdin.isatty() and typer.confirm("Go on?", err=True)
