"""`moldau group reset`: resets the committed offsets of a group."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import CommandError, make_table, out_console, print_notice, print_table, report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, option, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition

ResetPlan = dict[TopicPartition, tuple[int | None, int]]
"""The current and the new committed offset of each partition. The current offset is None if it does not exist."""


def group_reset(
    group: Group,
    topics: Annotated[
        list[str], option("--topic -t", "TOPIC", "Topic whose offsets are reset; can be repeated.", validate_name)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the earliest offset.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Reset to the end, to skip all existing records.")
    ] = False,
    to_offset: Annotated[
        int | None,
        option("--to-offset", "OFFSET", "Reset to this offset in each partition, or the nearest valid one.", min=0),
    ] = None,
    to_time: Annotated[
        str | None,
        option("--to-time", "TIME", "Reset to the first record at or after this time, such as 2026-01-31T12:00 (UTC)."),
    ] = None,
    shift_by: Annotated[
        int | None,
        option("--shift-by", "NUMBER", "Shift the committed offsets by this many records; negative numbers go back."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the change; by default it is only shown.")] = False,
) -> None:
    """Reset the committed offsets of a group, to process records again or to skip them. Stop its consumers first.

    moldau group reset billing --topic orders --to-time 2026-01-31T12:00

    moldau group reset billing --topic orders --to-earliest --yes
    """
    targets = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(targets) != 1:
        raise typer.BadParameter("use exactly one of --to-earliest, --to-latest, --to-offset, --to-time, --shift-by")
    time_ms = None if to_time is None else _parse_time_ms(to_time)

    async def operation(admin: Admin) -> ResetPlan:
        partitions = await list_partitions(admin, topics)
        committed = await admin.list_group_offsets(group)
        first = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        at_time = {} if time_ms is None else await admin.list_offsets(dict.fromkeys(partitions, time_ms))
        if shift_by is not None:
            without = [each for each in partitions if each not in committed]
            partitions = [each for each in partitions if each in committed]
            if not partitions:
                raise CommandError(f"{group} has no committed offsets of {', '.join(topics)} to shift.")
            for each in without:
                print_notice(f"{each}: no committed offset, skipped")
        plan: ResetPlan = {}
        for each in partitions:
            current = committed[each].offset if each in committed else None
            if to_earliest:
                new = first[each].offset
            elif to_offset is not None:
                new = to_offset
            elif time_ms is not None and each in at_time:
                new = at_time[each].offset
            elif shift_by is not None and current is not None:
                new = current + shift_by
            else:
                new = end[each].offset
            plan[each] = (current, min(max(new, first[each].offset), end[each].offset))
        return plan

    plan = run_admin(operation, bootstrap)
    if not yes:
        rows = make_table("topic", "partition", "current", "new", numbers=("partition", "current", "new"))
        for partition, (current, new) in plan.items():
            rows.add_row(partition.topic, str(partition.partition), "-" if current is None else str(current), str(new))
        print_table(rows)
        out_console.print("Nothing was changed. Add --yes to apply it.")
        return
    offsets = {partition: new for partition, (_, new) in plan.items()}
    report_results(run_admin(lambda admin: admin.alter_group_offsets(group, offsets), bootstrap), "reset")


def _parse_time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T12:00", param_hint="--to-time") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time < datetime(1970, 1, 1, tzinfo=UTC):
        raise typer.BadParameter(f"{text!r} is before 1970", param_hint="--to-time")
    return int(time.timestamp() * 1000)
