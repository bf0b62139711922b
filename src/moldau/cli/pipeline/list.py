"""`moldau pipeline list`: lists pipelines that have run."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import make_table, out_console, print_json_lines, print_notice, print_table
from moldau.cli.parameters import Json
from moldau.cli.pipeline.parameters import State
from moldau.cli.pipeline.status import run_state
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.runtime.state_directory import DIRECTORY, state_directories, state_root
from moldau.pipelines.runtime.times import elapsed_text


def pipeline_list(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIRECTORY]",
            exists=True,
            file_okay=False,
            help="Directory of the pipeline files; by default the working directory.",
        ),
    ] = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """List the pipelines with state in a directory, and the state of each.

    moldau pipeline list

    moldau pipeline list pipelines/
    """
    with exit_on_error():
        where = (directory.resolve() / DIRECTORY) if directory is not None else state_root(state)
        now = datetime.now(UTC)
        rows = make_table("pipeline", "state", "since", "generation", "file", numbers=("generation",))
        found = [(each, each.read_run()) for each in state_directories(where)]
        if as_json:
            print_json_lines(
                {"pipeline": each.name, "state": run_state(each, record), **asdict(record)}
                for each, record in found
                if record is not None
            )
            return
        for each, record in found:
            if record is not None:
                since = f"{elapsed_text(record.ended or record.started, now)} ago"
                rows.add_row(each.name, run_state(each, record), since, str(record.generation), record.file)
    if not found:
        print_notice(f"No pipeline has state in {where}. Run `moldau pipeline new NAME` to create one.")
        return
    print_table(rows)
    out_console.print()
    out_console.print("Run `moldau pipeline status FILE` for details.", markup=False)
