"""`moldau group members`: the members of a group and their partitions."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, pluralize, print_json_lines, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, Json
from moldau.client.admin.types import GroupDescription, MemberDescription
from moldau.client.record import TopicPartition


def group_members(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the members of a group with client, host and assigned partitions, and the state of the group.

    A static id (group.instance.id) lets a member restart without a rebalance.

    moldau group members billing
    """
    description = run_admin(lambda admin: admin.describe_group(group), bootstrap, groups=[group])
    if as_json:
        print_json_lines({**member_to_json(each), "group_state": description.state} for each in description.members)
    else:
        print_heading(description)
        print_members(description)


def print_heading(description: GroupDescription) -> None:
    assignor = f", assignor {description.assignor}" if description.assignor else ""
    out_console.print(
        f"{description.group_id}: {description.state}, {pluralize(len(description.members), 'member')}{assignor}, "
        f"coordinator {description.coordinator}",
        markup=False,
    )


def print_members(description: GroupDescription) -> None:
    if not description.members:
        print_notice("The group has no members.")
        return
    rows = make_table("member", "static id", "client", "host", "partitions")
    for member in description.members:
        rows.add_row(
            member.member_id,
            member.instance_id or "-",
            member.client_id,
            member.client_host.removeprefix("/"),
            assignment_text(member.assignment) or "-",
        )
    print_table(rows)


def member_to_json(member: MemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topics": member.topics,
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in sorted(member.assignment)],
    }


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """Returns partitions as text such as `orders 0-3,7 returns 1`."""
    texts = []
    for topic, group in groupby(sorted(partitions), key=lambda each: each.topic):
        ranges: list[tuple[int, int]] = []
        for each in group:
            if ranges and each.partition == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], each.partition)
            else:
                ranges.append((each.partition, each.partition))
        indexes = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        texts.append(f"{topic} {indexes}")
    return "; ".join(texts)
