"""`moldau pipeline list`: the pipelines that ran here."""

from datetime import UTC, datetime

from moldau.cli.asking import output, say, show, table
from moldau.cli.pipeline_given import State, told_plainly
from moldau.cli.pipeline_status import how_it_stands
from moldau.pipelines.running.state_directory import root, state_directories
from moldau.pipelines.running.times import since


def pipeline_list(state: State = None) -> None:
    """List the pipelines that run or ran with their state here, and how each stands."""
    with told_plainly():
        where = root(state)
        now = datetime.now(UTC)
        rows = table("pipeline", "state", "since", "generation", "file", numbers=("generation",))
        found = [(each, each.read_run()) for each in state_directories(where)]
        for directory, record in found:
            if record is None:
                continue
            changed = record.ended or record.started
            rows.add_row(
                directory.name,
                how_it_stands(directory, record),
                f"{since(changed, now)} ago",
                str(record.generation),
                record.file,
            )
    if not found:
        say(f"No pipeline has run with its state in {where}: `moldau pipeline new NAME` begins one.")
        return
    show(rows)
    output.print()
    output.print("moldau pipeline status NAME tells more.", markup=False)
