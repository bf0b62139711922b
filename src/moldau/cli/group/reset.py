"""`moldau group reset`: where a group without members goes on reading."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.cluster_access import (
    CommandError,
    list_partitions,
    out_console,
    print_notice,
    print_table,
    report_results,
    run_admin,
    table,
)
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, name
from moldau.client.admin.admin import EARLIEST, LATEST, Admin
from moldau.client.record import TopicPartition

ResetPlan = dict[TopicPartition, tuple[int | None, int]]
"""For each partition what is committed now, and what shall be."""


def group_reset(
    group: Group,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            callback=name,
            help="The topic whose partitions are set; may be repeated.",
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record there is.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end: only what comes from now on.")
    ] = False,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset",
            min=0,
            metavar="OFFSET",
            help="To this offset in each partition, or the nearest that there is.",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", metavar="TIME", help="To the first record since then: 2026-01-31T12:00, in UTC."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            metavar="NUMBER",
            help="So many records on from what is committed; -10 goes back.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it; otherwise what would be done is shown.")
    ] = False,
) -> None:
    """Set what a group has committed, so that it reads again or leaves out. Its consumers must be stopped.

    moldau group reset billing --topic orders --to-time 2026-01-31T12:00

    moldau group reset billing --topic orders --to-earliest --yes
    """
    ways = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(ways) != 1:
        raise typer.BadParameter("say where to, in one way: --to-earliest, --to-latest, --to-offset, ...")
    time_ms = None if to_time is None else _parse_time_ms(to_time)

    async def question(admin: Admin) -> ResetPlan:
        partitions = await list_partitions(admin, topics)
        committed = await admin.list_group_offsets(group)
        first = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        at_time = {} if time_ms is None else await admin.list_offsets(dict.fromkeys(partitions, time_ms))
        if shift_by is not None:
            without = [each for each in partitions if each not in committed]
            partitions = [each for each in partitions if each in committed]
            if not partitions:
                raise CommandError(f"{group} has committed nothing of {', '.join(topics)} to shift from.")
            for each in without:
                print_notice(f"{each}: nothing is committed, and it stays so")
        plan: ResetPlan = {}
        for each in partitions:
            now = committed[each].offset if each in committed else None
            if to_earliest:
                wanted = first[each].offset
            elif to_offset is not None:
                wanted = to_offset
            elif time_ms is not None and each in at_time:
                wanted = at_time[each].offset
            elif shift_by is not None and now is not None:
                wanted = now + shift_by
            else:
                wanted = end[each].offset
            plan[each] = (now, min(max(wanted, first[each].offset), end[each].offset))
        return plan

    plan = run_admin(question, bootstrap)
    if not yes:
        rows = table("topic", "partition", "now", "then", numbers=("partition", "now", "then"))
        for partition, (now, then) in plan.items():
            rows.add_row(
                partition.topic, str(partition.partition), "-" if now is None else str(now), str(then)
            )
        print_table(rows)
        out_console.print("Nothing is changed yet: add --yes to do it.")
        return
    offsets = {partition: then for partition, (_, then) in plan.items()}
    report_results(run_admin(lambda admin: admin.alter_group_offsets(group, offsets), bootstrap), "set")


def _parse_time_ms(validate_text: str) -> int:
    try:
        time = datetime.fromisoformat(validate_text)
    except ValueError:
        raise typer.BadParameter(
            f"{validate_text!r} is not a time like 2026-01-31T12:00", param_hint="--to-time"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time < datetime(1970, 1, 1, tzinfo=UTC):
        raise typer.BadParameter(f"{validate_text!r} is before 1970, when time began", param_hint="--to-time")
    return int(time.timestamp() * 1000)
