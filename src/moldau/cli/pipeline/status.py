"""`moldau pipeline status`: how a pipeline stands."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from moldau.cli.cluster_access import output, show, table
from moldau.cli.pipeline.arguments import Json, Name, State, state_of
from moldau.cli.pipeline.display import number
from moldau.cli.spark.arguments import told_plainly
from moldau.pipelines.running.progress import latest_of
from moldau.pipelines.running.progress_file import lines_of
from moldau.pipelines.running.run import file_hash, now
from moldau.pipelines.running.state_directory import RunRecord, StateDirectory
from moldau.pipelines.running.times import since


def pipeline_status(name: Name, state: State = None, as_json: Json = False) -> None:
    """Show whether a pipeline runs, how fast and how far behind, and why it ended.

    moldau pipeline status revenue
    """
    with told_plainly():
        directory, record = state_of(name, state)
        progress = latest_of(lines_of(directory.progress), record.generation)
        generations = directory.generations(now())
    if as_json:
        told = {
            "state": how_it_stands(directory, record),
            "run": asdict(record),
            "queries": [asdict(each) for each in progress.values()],
            "generations": asdict(generations),
        }
        output.print(json.dumps(told), markup=False)
        return
    clock = datetime.now(UTC)
    stands = how_it_stands(directory, record)
    changed = record.started if stands == "running" else record.ended or record.started
    facts = table("", "")
    facts.show_header = False
    facts.add_row("pipeline", directory.name)
    facts.add_row("state", f"{stands}, since {since(changed, clock)}")
    if stands == "running":
        facts.add_row("process", f"{record.pid} on {record.host}")
    facts.add_row("file", record.file + _changed(record))
    facts.add_row("reads from", record.bootstrap)
    facts.add_row("master", record.master)
    facts.add_row("checkpoints", f"{record.checkpoints}/{record.generation}")
    for each in generations.all:
        begun = "as the sources say" if each.start is None else f"from {each.start}"
        used = ", in use" if each.number == generations.current else ""
        facts.add_row(f"generation {each.number}", f"{begun}, made {since(each.made, clock)} ago{used}")
    if record.error is not None and stands != "running":
        facts.add_row("last error", record.error)
        facts.add_row("", f"all that is known about it: {directory.error_log}")
    show(facts)
    if not progress:
        return
    output.print()
    columns = ("last batch", "number", "rows", "in/s", "able/s", "took", "lag then")
    rows = table("query", *columns, numbers=columns[1:])
    for last in progress.values():
        rows.add_row(
            last.query,
            f"{since(last.at, clock)} ago",
            str(last.batch),
            f"{last.rows:,}",
            number(last.input_rate),
            number(last.process_rate),
            f"{last.batch_ms} ms",
            "-" if last.lag is None else f"{last.lag:,}",
        )
    show(rows)


def _changed(record: RunRecord) -> str:
    """Whether the file is another one than that which runs or ran."""
    try:
        is_same = not record.file or file_hash(Path(record.file)) == record.file_hash
    except OSError:
        return " (not there any more)"
    return "" if is_same else " (changed since the run began)"


def how_it_stands(directory: StateDirectory, record: RunRecord) -> str:
    """Whether it runs is what the lock says; a run that left without a word was killed."""
    if directory.is_locked():
        return "running"
    return record.outcome or "killed"
