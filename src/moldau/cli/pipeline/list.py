"""`moldau pipeline list`: the pipelines that ran here."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.cluster_access import output, say, show, table
from moldau.cli.pipeline.arguments import State
from moldau.cli.pipeline.status import how_it_stands
from moldau.cli.spark.arguments import told_plainly
from moldau.pipelines.running.state_directory import DIRECTORY, root, state_directories
from moldau.pipelines.running.times import since


def pipeline_list(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIRECTORY]",
            exists=True,
            file_okay=False,
            help="Where their files are; the working directory by default.",
        ),
    ] = None,
    state: State = None,
) -> None:
    """List the pipelines that run or ran with their state here, and how each stands.

    moldau pipeline list

    moldau pipeline list pipelines/
    """
    with told_plainly():
        where = (directory.resolve() / DIRECTORY) if directory is not None else root(state)
        now = datetime.now(UTC)
        rows = table("pipeline", "state", "since", "generation", "file", numbers=("generation",))
        found = [(each, each.read_run()) for each in state_directories(where)]
        for each, record in found:
            if record is None:
                continue
            changed = record.ended or record.started
            rows.add_row(
                each.name,
                how_it_stands(each, record),
                f"{since(changed, now)} ago",
                str(record.generation),
                record.file,
            )
    if not found:
        say(f"No pipeline has run with its state in {where}: `moldau pipeline new NAME` begins one.")
        return
    show(rows)
    output.print()
    output.print("moldau pipeline status FILE tells more.", markup=False)
