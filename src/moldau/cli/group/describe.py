"""`moldau group describe`: members, assignments and lag of a group."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, pluralize, print_table
from moldau.cli.end_offsets import print_waiting_records
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, IsolationLevel
from moldau.client.admin.group_offsets import describe_group_lag
from moldau.client.admin.types import GroupDescription
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.record import TopicPartition


def group_describe(
    group: Group,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    members: Annotated[bool, typer.Option("--members", help="Show the members and their partitions.")] = False,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> None:
    """Show the committed offset, the lag and the assigned member of each partition of a group.

    The lag is the number of records between the committed offset and the end of the partition. For consumers with
    read_committed the end is the last stable offset, where the first open transaction starts. Brokers do not know how
    the consumers of a group read: --isolation-level says it.

    moldau group describe billing --isolation-level read_committed
    """
    description, committed, ends = run_admin(lambda admin: describe_group_lag(admin, group), bootstrap)
    assignor = f", assignor {description.assignor}" if description.assignor else ""
    out_console.print(
        f"{group}: {description.state}, {pluralize(len(description.members), 'member')}{assignor}, "
        f"coordinator {description.coordinator}",
        markup=False,
    )
    if members:
        _print_members(description)
    else:
        if isolation_level == "read_committed":
            _print_partitions(description, committed, ends.last_stable_offsets, "last stable")
        else:
            _print_partitions(description, committed, ends.high_watermarks, "end")
        print_waiting_records(ends)


def _print_members(description: GroupDescription) -> None:
    rows = make_table("member", "instance", "client", "host", "partitions")
    for member in description.members:
        assigned = ", ".join(map(str, sorted(member.assignment)))
        rows.add_row(member.member_id, member.instance_id or "-", member.client_id, member.client_host, assigned or "-")
    print_table(rows)


def _print_partitions(
    description: GroupDescription,
    committed: dict[TopicPartition, OffsetAndMetadata],
    ends: dict[TopicPartition, int],
    end_column: str,
) -> None:
    owners = {each: member for member in description.members for each in member.assignment}
    numbers = ("partition", "committed", end_column, "lag")
    rows = make_table("topic", *numbers, "member", numbers=numbers, truncated=("member",))
    lags = []
    for partition in sorted({**committed, **owners}):
        offset = committed[partition].offset if partition in committed else None
        end = ends.get(partition)
        lag = None if offset is None or end is None else max(0, end - offset)
        if lag is not None:
            lags.append(lag)
        owner = owners.get(partition)
        rows.add_row(
            partition.topic,
            str(partition.partition),
            *("-" if each is None else str(each) for each in (offset, end, lag)),
            "-" if owner is None else owner.member_id,
        )
    print_table(rows)
    out_console.print(f"total lag: {sum(lags) if lags else '-'}")
