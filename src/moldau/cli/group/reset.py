"""`moldau group reset`: resets the committed offsets of a group."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import (
    CommandError,
    exit_on_failures,
    make_table,
    out_console,
    print_json_lines,
    print_notice,
    print_table,
    report_results,
)
from moldau.cli.log_position import TIME_HELP, PositionError, parse_time
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, Json, option, validate_name
from moldau.cli.progress import run_in_batches
from moldau.cli.suggestions import closest_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.group_offsets import OffsetChange, OffsetReset, plan_offset_reset
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

PARTITIONS_PER_REQUEST = 500


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
        str | None, option("--to-time", "TIME", f"Reset to the first record at or after {TIME_HELP}.")
    ] = None,
    shift_by: Annotated[
        int | None,
        option("--shift-by", "NUMBER", "Shift the committed offsets by this many records; negative numbers go back."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the change; by default it is only shown.")] = False,
    as_json: Json = False,
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

    async def make_plan(admin: Admin) -> dict[TopicPartition, OffsetChange]:
        partitions = await list_partitions(admin, topics)
        await _check_group(admin, group)

        async def plan_batch(batch: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetChange]:
            return await plan_offset_reset(admin, group, batch, reset)

        plan = await run_in_batches(
            "looking up offsets", "partition", partitions, plan_batch, batch_size=PARTITIONS_PER_REQUEST
        )
        if not plan:
            raise CommandError(f"{group} has no committed offsets of {', '.join(topics)} to shift.")
        for each in partitions:
            if each not in plan:
                print_notice(f"{each}: no committed offset, skipped")
        return plan

    plan = run_admin(make_plan, bootstrap, topics=topics, has_progress=True)
    if as_json:
        print_json_lines(_to_json(partition, change) for partition, change in plan.items())
    elif not yes:
        _print_plan(plan)
        out_console.print("Nothing was changed. Add --yes to apply it.")
    if not yes:
        return

    async def apply(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        async def apply_batch(batch: Sequence[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            return await admin.alter_group_offsets(group, {each: plan[each].new for each in batch})

        return await run_in_batches(
            "resetting offsets", "partition", list(plan), apply_batch, batch_size=PARTITIONS_PER_REQUEST
        )

    results = run_admin(apply, bootstrap, has_progress=True)
    if as_json:
        exit_on_failures({each: error for each, error in results.items() if error is not None})
    else:
        report_results(results, "reset")


async def _check_group(admin: Admin, group: str) -> None:
    """Prints a notice if the group does not exist: a reset then creates its offsets, and the name may be misspelt."""
    try:
        await admin.describe_group(group)
    except KafkaError as error:
        if error.code is not ErrorCode.group_id_not_found:
            raise
        closest = closest_name(group, [each.group_id for each in await admin.list_groups()])
        advice = "" if closest is None else f" Did you mean {closest}?"
        print_notice(f"Group {group} does not exist: a reset creates its offsets.{advice}")


def _print_plan(plan: Mapping[TopicPartition, OffsetChange]) -> None:
    rows = make_table("topic", "partition", "current", "new", numbers=("partition", "current", "new"))
    for partition, (current, new) in plan.items():
        rows.add_row(partition.topic, str(partition.partition), "-" if current is None else str(current), str(new))
    print_table(rows)


def _to_json(partition: TopicPartition, change: OffsetChange) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "current_offset": change.current,
        "new_offset": change.new,
    }


def _parse_time_ms(text: str) -> int:
    try:
        return parse_time(text, time.time_ns() // 1_000_000)
    except PositionError as error:
        raise typer.BadParameter(str(error), param_hint="--to-time") from None
