"""`moldau group describe`: members, assignments and lag of a group."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, print_json_lines, print_table
from moldau.cli.end_offsets import print_leaderless_partitions, print_waiting_records
from moldau.cli.group.members import member_to_json, print_heading, print_members
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Group, IsolationLevel, Json
from moldau.client.admin.group_offsets import describe_group_lag
from moldau.client.admin.types import GroupDescription
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.record import TopicPartition


def group_describe(
    group: Group,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    members: Annotated[bool, typer.Option("--members", help="Show the members and their partitions.")] = False,
    isolation_level: IsolationLevel = "read_uncommitted",
    as_json: Json = False,
) -> None:
    """Show the committed offset, the lag and the assigned member of each partition of a group.

    The lag is the number of records between the committed offset and the end of the partition. For consumers with
    read_committed the end is the last stable offset, where the first open transaction starts. Brokers do not know how
    the consumers of a group read: --isolation-level says it.

    moldau group describe billing --isolation-level read_committed
    """
    description, committed, ends = run_admin(lambda admin: describe_group_lag(admin, group), bootstrap, groups=[group])
    is_committed = isolation_level == "read_committed"
    partitions = _partition_lags(
        description, committed, ends.last_stable_offsets if is_committed else ends.high_watermarks, ends.without_leader
    )
    if as_json:
        print_json_lines([_to_json(description, partitions)])
        return
    print_heading(description)
    if members:
        print_members(description)
    else:
        _print_partitions(partitions, "last stable" if is_committed else "end")
        print_leaderless_partitions(ends)
        print_waiting_records(ends)


class PartitionLag(NamedTuple):
    partition: TopicPartition
    committed_offset: int | None
    end_offset: int | None
    member_id: str | None
    has_leader: bool = True

    @property
    def lag(self) -> int | None:
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed_offset)


def _partition_lags(
    description: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
    without_leader: Collection[TopicPartition],
) -> list[PartitionLag]:
    owners = {each: member.member_id for member in description.members for each in member.assignment}
    return [
        PartitionLag(
            partition,
            committed[partition].offset if partition in committed else None,
            ends.get(partition),
            owners.get(partition),
            partition not in without_leader,
        )
        for partition in sorted({**committed, **owners})
    ]


def _print_partitions(partitions: Sequence[PartitionLag], end_column: str) -> None:
    numbers = ("partition", "committed", end_column, "lag")
    rows = make_table("topic", *numbers, "member", numbers=numbers, truncated=("member",))
    for each in partitions:
        rows.add_row(
            each.partition.topic,
            str(each.partition.partition),
            *("-" if number is None else str(number) for number in (each.committed_offset, each.end_offset, each.lag)),
            each.member_id or "-",
        )
    print_table(rows)
    total = _total_lag(partitions)
    out_console.print(f"total lag: {'-' if total is None else total}")


def _total_lag(partitions: Sequence[PartitionLag]) -> int | None:
    """Returns None if the lag of a partition is unknown: a sum of the others would look as if the lag fell."""
    if any(each.committed_offset is not None and not each.has_leader for each in partitions):
        return None
    lags = [each.lag for each in partitions if each.lag is not None]
    return sum(lags) if lags else None


def _to_json(description: GroupDescription, partitions: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "group": description.group_id,
        "state": description.state,
        "protocol_type": description.protocol_type,
        "assignor": description.assignor,
        "coordinator": description.coordinator,
        "total_lag": _total_lag(partitions),
        "members": [member_to_json(each) for each in description.members],
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed_offset": each.committed_offset,
                "end_offset": each.end_offset,
                "lag": each.lag,
                "member_id": each.member_id,
            }
            for each in partitions
        ],
    }
