"""`moldau group describe`: who is in a group, who reads what, and how far behind they are."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import out_console, pluralize, print_table, run_admin, table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group
from moldau.client.admin.admin import LATEST, Admin, GroupDescription
from moldau.client.consumer.offset_lookup import OffsetAndTimestamp
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.record import TopicPartition

GroupState = tuple[
    GroupDescription, dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, OffsetAndTimestamp]
]


def group_describe(
    group: Group,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    members: Annotated[
        bool, typer.Option("--members", help="Show the members, and which partitions each has.")
    ] = False,
) -> None:
    """Show how far a group has come in each partition, how much it lags, and who reads it.

    Lag is what lies between the committed offset and the end of the partition.
    """

    async def question(admin: Admin) -> GroupState:
        described = await admin.describe_group(group)
        committed = await admin.list_group_offsets(group)
        owned = [each for member in described.members for each in member.assignment]
        partitions = list(dict.fromkeys([*committed, *owned]))
        await admin.cluster.refresh(dict.fromkeys(each.topic for each in partitions))
        there = [each for each in partitions if admin.cluster.partition_info(each) is not None]
        return described, committed, await admin.list_offsets(dict.fromkeys(there, LATEST)) if there else {}

    described, committed, ends = run_admin(question, bootstrap)
    assignor = f", assignor {described.assignor}" if described.assignor else ""
    out_console.print(
        f"{group}: {described.state}, {pluralize(len(described.members), 'member')}{assignor}, "
        f"coordinator {described.coordinator}",
        markup=False,
    )
    if members:
        _print_members(described)
    else:
        _print_partitions(described, committed, ends)


def _print_members(described: GroupDescription) -> None:
    rows = table("member", "instance", "client", "host", "partitions")
    for member in described.members:
        assigned = ", ".join(map(str, sorted(member.assignment)))
        rows.add_row(
            member.member_id, member.instance_id or "-", member.client_id, member.client_host, assigned or "-"
        )
    print_table(rows)


def _print_partitions(
    described: GroupDescription,
    committed: dict[TopicPartition, OffsetAndMetadata],
    ends: dict[TopicPartition, OffsetAndTimestamp],
) -> None:
    owners = {each: member for member in described.members for each in member.assignment}
    numbers = ("partition", "committed", "end", "lag")
    rows = table("topic", *numbers, "member", numbers=numbers, truncated=("member",))
    lags = []
    for partition in sorted({**committed, **owners}):
        offset = committed[partition].offset if partition in committed else None
        end = ends[partition].offset if partition in ends else None
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
    out_console.print(f"lag in all: {sum(lags) if lags else '-'}")
