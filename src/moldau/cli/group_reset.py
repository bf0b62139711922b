"""`moldau group reset`: where a group without members goes on reading."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, ask, output, partitions_of, show, table, tell_each
from moldau.client.admin import EARLIEST, LATEST, Admin
from moldau.client.record import TopicPartition

Plan = dict[TopicPartition, tuple[int | None, int]]
"""For each partition what is committed now, and what shall be."""


def group_reset(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topics: Annotated[
        list[str], typer.Option("--topic", "-t", help="Of this topic, all partitions; may be repeated.")
    ],
    bootstrap: Bootstrap = LOCAL,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Only what comes from now on.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0)] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="The first record since then: 2026-01-31T12:00, UTC."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="From what is committed, +/- so many.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it; otherwise only show what would be.")
    ] = False,
) -> None:
    """Set what a group has committed, so that it reads again or leaves out. Its consumers must be stopped.

    moldau group reset billing --topic orders --to-earliest --yes
    """
    ways = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift_by is not None]
    if sum(ways) != 1:
        raise typer.BadParameter("say where to, in one way: --to-earliest, --to-latest, --to-offset, ...")
    time_ms = None if to_time is None else _milliseconds(to_time)

    async def question(admin: Admin) -> Plan:
        partitions = await partitions_of(admin, topics)
        committed = await admin.list_group_offsets(group)
        first = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        at_time = {} if time_ms is None else await admin.list_offsets(dict.fromkeys(partitions, time_ms))
        plan: Plan = {}
        for each in partitions:
            now = committed[each].offset if each in committed else None
            if to_earliest:
                wanted = first[each].offset
            elif to_offset is not None:
                wanted = to_offset
            elif time_ms is not None and each in at_time:
                wanted = at_time[each].offset
            elif shift_by is not None:
                if now is None:
                    continue
                wanted = now + shift_by
            else:
                wanted = end[each].offset
            plan[each] = (now, min(max(wanted, first[each].offset), end[each].offset))
        return plan

    plan = ask(question, bootstrap)
    if not yes:
        rows = table("topic", "partition", "now", "then", numbers=("partition", "now", "then"))
        for partition, (now, then) in plan.items():
            rows.add_row(
                partition.topic, str(partition.partition), "-" if now is None else str(now), str(then)
            )
        show(rows)
        output.print("Nothing is changed yet: add --yes to do it.")
        return
    offsets = {partition: then for partition, (_, then) in plan.items()}
    tell_each(ask(lambda admin: admin.alter_group_offsets(group, offsets), bootstrap), "set")


def _milliseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time like 2026-01-31T12:00", param_hint="--to-time"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)
