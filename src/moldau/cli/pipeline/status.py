"""`moldau pipeline status`: state, progress and last error of a pipeline."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from moldau.cli.console import make_table, out_console, print_table
from moldau.cli.parameters import Json
from moldau.cli.pipeline.display import format_rate
from moldau.cli.pipeline.parameters import Name, State, find_run
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.runtime.progress import latest_progress, read_lines
from moldau.pipelines.runtime.run import file_hash, now
from moldau.pipelines.runtime.state_directory import RunRecord, StateDirectory
from moldau.pipelines.runtime.times import elapsed_text


def pipeline_status(name: Name, state: State = None, as_json: Json = False) -> None:
    """Show whether a pipeline is running, its rate and lag, and its last error.

    moldau pipeline status revenue
    """
    with exit_on_error():
        directory, record = find_run(name, state)
        progress = latest_progress(read_lines(directory.progress), record.generation)
        generations = directory.generations(now())
    current = run_state(directory, record)
    if as_json:
        status = {
            "state": current,
            "run": asdict(record),
            "queries": [asdict(each) for each in progress.values()],
            "generations": asdict(generations),
        }
        out_console.print(json.dumps(status), markup=False)
        return
    clock = datetime.now(UTC)
    changed = record.started if current == "running" else record.ended or record.started
    facts = make_table("", "")
    facts.show_header = False
    facts.add_row("pipeline", directory.name)
    facts.add_row("state", f"{current}, since {elapsed_text(changed, clock)}")
    if current == "running":
        facts.add_row("process", f"{record.pid} on {record.host}")
    facts.add_row("file", record.file + _file_change_note(record))
    facts.add_row("bootstrap", record.bootstrap)
    facts.add_row("master", record.master)
    facts.add_row("checkpoints", f"{record.checkpoints}/{record.generation}")
    for each in generations.all:
        start = "start as configured" if each.start is None else f"replay from {each.start}"
        used = ", in use" if each.number == generations.current else ""
        facts.add_row(f"generation {each.number}", f"{start}, created {elapsed_text(each.made, clock)} ago{used}")
    if record.error is not None and current != "running":
        facts.add_row("last error", record.error)
        facts.add_row("", f"details: {directory.error_log}")
    print_table(facts)
    if not progress:
        return
    out_console.print()
    columns = ("last batch", "number", "rows", "in/s", "processed/s", "duration", "lag")
    rows = make_table("query", *columns, numbers=columns[1:])
    for last in progress.values():
        rows.add_row(
            last.query,
            f"{elapsed_text(last.at, clock)} ago",
            str(last.batch),
            f"{last.rows:,}",
            format_rate(last.input_rate),
            format_rate(last.process_rate),
            f"{last.batch_ms} ms",
            "-" if last.lag is None else f"{last.lag:,}",
        )
    print_table(rows)


def _file_change_note(record: RunRecord) -> str:
    """Returns a note if the pipeline file was changed or deleted since the run started, otherwise an empty string."""
    try:
        is_same = not record.file or file_hash(Path(record.file)) == record.file_hash
    except OSError:
        return " (deleted)"
    return "" if is_same else " (changed since the run started)"


def run_state(directory: StateDirectory, record: RunRecord) -> str:
    """Returns the state of the latest run. The run was killed if it has no outcome and does not hold the lock."""
    if directory.is_locked():
        return "running"
    return record.outcome or "killed"
