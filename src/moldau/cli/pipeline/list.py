"""`moldau pipeline list`: lists pipelines that have run."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, print_json_lines, print_notice, print_table
from moldau.cli.parameters import Json, validate_bootstrap
from moldau.cli.pipeline.display import format_rate
from moldau.cli.pipeline.parameters import State
from moldau.cli.pipeline.status import run_state
from moldau.cli.spark.parameters import exit_on_error
from moldau.client.admin.admin import Admin
from moldau.pipelines.query_report import QueryReport
from moldau.pipelines.runtime.report_reader import read_reports
from moldau.pipelines.runtime.state_directory import DIRECTORY, state_directories, state_root
from moldau.pipelines.runtime.times import elapsed_text


def pipeline_list(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIRECTORY",
            exists=True,
            file_okay=False,
            help="Directory of the pipeline files; by default the working directory.",
        ),
    ] = None,
    state: State = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            callback=lambda value: None if value is None else validate_bootstrap(value),
            help="List the queries that pipelines of all machines have reported to this cluster, instead of a "
            "directory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the pipelines with state in a directory, and the state of each.

    moldau pipeline list

    moldau pipeline list pipelines/

    moldau pipeline list --bootstrap 127.0.0.1:9092
    """
    if bootstrap is not None:
        if directory is not None or state is not None:
            raise typer.BadParameter("--bootstrap lists a cluster, not a directory: use one of them")
        _list_reports(bootstrap, as_json=as_json)
        return
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


def _list_reports(bootstrap: str, *, as_json: bool) -> None:
    async def operation(admin: Admin) -> list[QueryReport]:
        return await read_reports(admin.cluster)

    reports = run_admin(operation, bootstrap)
    now = datetime.now(UTC)
    now_ms = round(now.timestamp() * 1000)
    if as_json:
        print_json_lines({**asdict(each), "state": each.state_at(now_ms)} for each in reports)
        return
    if not reports:
        print_notice(f"No pipeline has reported to {bootstrap} within the last week.")
        return
    numbers = ("in/s", "processed/s", "rows", "lag")
    rows = make_table("pipeline", "query", "state", "reported", "host", *numbers, "error", numbers=numbers)
    for each in reports:
        reported = datetime.fromtimestamp(each.time_ms / 1000, UTC)
        rows.add_row(
            each.pipeline,
            each.query,
            each.state_at(now_ms),
            f"{elapsed_text(reported.isoformat(), now)} ago",
            each.host,
            "-" if each.input_rate is None else format_rate(each.input_rate),
            "-" if each.process_rate is None else format_rate(each.process_rate),
            f"{each.rows:,}",
            "-" if each.lag is None else f"{each.lag:,}",
            each.error or "",
        )
    print_table(rows)
