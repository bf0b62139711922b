"""`moldau group reset`: resets the committed offsets of a group."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import CommandError, make_table, out_console, print_notice, print_table, report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, option, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.group_offsets import OffsetChange, OffsetReset, plan_offset_reset
from moldau.client.record import TopicPartition


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
    if to_offset is not None:
        reset = OffsetReset("offset", to_offset)
    elif to_time is not None:
        reset = OffsetReset("time", _parse_time_ms(to_time))
    elif shift_by is not None:
        reset = OffsetReset("shift", shift_by)
    else:
        reset = OffsetReset("earliest" if to_earliest else "latest")

    async def operation(admin: Admin) -> dict[TopicPartition, OffsetChange]:
        partitions = await list_partitions(admin, topics)
        plan = await plan_offset_reset(admin, group, partitions, reset)
        if not plan:
            raise CommandError(f"{group} has no committed offsets of {', '.join(topics)} to shift.")
        for each in partitions:
            if each not in plan:
                print_notice(f"{each}: no committed offset, skipped")
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
