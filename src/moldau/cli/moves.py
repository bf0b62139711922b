"""The course of commands that move partitions: plan, confirmation, start, and the wait until the end."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import exit_on_failures, out_console, pluralize, print_error, print_json_lines, print_notice
from moldau.cli.exit_codes import CommandError
from moldau.cli.reassignment import (
    MovePlan,
    Targets,
    alter_reassignments,
    plan_moves,
    plan_to_json,
    plan_to_kafka_json,
    print_plan,
    wait_for_moves,
)
from moldau.client.admin.admin import Admin
from moldau.client.record import TopicPartition

NoWait = Annotated[bool, typer.Option("--no-wait", help="Start the moves, and do not wait until they are complete.")]
Cancel = Annotated[
    bool, typer.Option("--cancel", help="Cancel the moves in progress: the partitions keep their replicas.")
]
Undo = Annotated[
    Path | None,
    typer.Option(
        "--undo-file",
        metavar="FILE",
        dir_okay=False,
        help="Write the current replicas to a file, with which `moldau cluster reassign` undoes the moves.",
    ),
]


class MoveOptions(NamedTuple):
    dry_run: bool
    yes: bool
    no_wait: bool
    as_json: bool
    undo_file: Path | None


def move(
    find_targets: Callable[[Admin], Coroutine[Any, Any, Targets]],
    bootstrap: str,
    topics: Sequence[str],
    options: MoveOptions,
) -> None:
    """Prints the plan of the moves to these targets, and makes the moves if the user confirms them."""

    async def make_plan(admin: Admin) -> MovePlan:
        return await plan_moves(admin, await find_targets(admin))

    plan = run_admin(make_plan, bootstrap, topics=topics)
    if not plan:
        print_notice("There is nothing to move: all partitions have these replicas.")
        return
    if options.as_json:
        print_json_lines(plan_to_json(plan))
    else:
        print_plan(plan)
    new = {partition: each.target for partition, each in plan.items() if not each.is_started}
    if new and options.undo_file is not None:
        # A command that only waits for its moves must keep the file: it has the replicas of completed moves, too.
        _write_undo_file(options.undo_file, plan)
    if options.dry_run:
        print_notice("Nothing was changed.")
        return
    if new and not options.yes:
        typer.confirm(f"Move {pluralize(len(new), 'partition')}?", abort=True, err=True)

    async def start_and_wait(admin: Admin) -> dict[TopicPartition, Exception]:
        failed: dict[TopicPartition, Exception] = dict(await alter_reassignments(admin, new))
        started = {partition: each for partition, each in plan.items() if partition not in failed}
        return failed if options.no_wait or not started else failed | await wait_for_moves(admin, started)

    failed = run_admin(start_and_wait, bootstrap, has_progress=True)
    if not options.as_json:
        done = "started" if options.no_wait else "complete"
        out_console.print(f"{pluralize(len(plan) - len(failed), 'move')} {done}.")
    exit_on_failures(failed)


def cancel_moves(
    find_partitions: Callable[[Admin], Coroutine[Any, Any, Sequence[TopicPartition]]],
    bootstrap: str,
    topics: Sequence[str],
    options: MoveOptions,
) -> None:
    """Cancels the reassignments of those partitions that have one, if the user confirms it."""
    if options.no_wait or options.as_json or options.undo_file is not None:
        raise typer.BadParameter("--cancel cannot be combined with --no-wait, --json and --undo-file")

    async def find_moving(admin: Admin) -> list[TopicPartition]:
        return sorted(await admin.list_reassignments(await find_partitions(admin)))

    moving = run_admin(find_moving, bootstrap, topics=topics)
    if not moving:
        print_notice("No move is in progress.")
        return
    if options.dry_run:
        print_notice(f"Moves to cancel: {', '.join(map(str, moving))}. Nothing was changed.")
        return
    if not options.yes:
        typer.confirm(f"Cancel the moves of {', '.join(map(str, moving))}?", abort=True, err=True)
    failed = run_admin(lambda admin: alter_reassignments(admin, dict.fromkeys(moving)), bootstrap)
    for partition in moving:
        if partition not in failed:
            out_console.print(f"{partition}: move cancelled", markup=False)
    exit_on_failures(failed)


def _write_undo_file(path: Path, plan: MovePlan) -> None:
    """Exits with an error if the file exists with other contents: it may be the only way to undo earlier moves."""
    text = plan_to_kafka_json(plan)
    try:
        if path.exists() and path.read_bytes() != text.encode():
            print_error(CommandError(f"{path} exists, and would be overwritten: use another --undo-file."))
            raise typer.Exit(1)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print_error(CommandError(f"Cannot write {path}: {error.strerror}"))
        raise typer.Exit(1) from None
    print_notice(f"To undo the moves: moldau cluster reassign {path}")
