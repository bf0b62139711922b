"""`moldau topic describe`: partitions, offsets and settings of a topic."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import make_table, out_console, print_json_lines, print_table
from moldau.cli.end_offsets import print_leaderless_partitions, print_waiting_records
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, Topic
from moldau.client.admin.admin import Admin
from moldau.client.admin.group_offsets import EndOffsets, list_end_offsets
from moldau.client.admin.types import ConfigEntry
from moldau.client.consumer.offset_lookup import EARLIEST, OffsetAndTimestamp
from moldau.client.net.metadata import NO_LEADER, TopicInfo
from moldau.client.record import TopicPartition

Offsets = dict[TopicPartition, OffsetAndTimestamp]


def topic_describe(
    name: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also show settings that have their default value.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the partitions of a topic with leader, replicas and offsets, and the settings that are not default.

    The end offset is the offset of the next record. If transactions are open, the last stable offset is shown, too:
    consumers with read_committed read up to it.
    """

    async def operation(admin: Admin) -> tuple[TopicInfo, Offsets, EndOffsets, dict[str, ConfigEntry]]:
        topic = await admin.describe_topic(name)
        partitions = await list_partitions(admin, [name])
        first, _ = await admin.list_available_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = await list_end_offsets(admin, partitions)
        return topic, first, ends, await admin.topic_configs(name)

    topic, first, ends, configs = run_admin(operation, bootstrap, topics=[name])
    shown = [entry for entry in configs.values() if all_settings or not entry.is_default]
    if as_json:
        print_json_lines([_to_json(topic, first, ends, shown)])
        return
    stable_column = ("last stable",) if ends.waiting else ()
    numbers = ("partition", "leader", "first offset", *stable_column, "end offset")
    rows = make_table(*numbers[:2], "replicas", "in sync", *numbers[2:], numbers=numbers)
    for each in topic.partitions:
        partition = TopicPartition(name, each.index)
        offsets = [first[partition].offset if partition in first else None]
        offsets += [ends.last_stable_offsets.get(partition)] if stable_column else []
        offsets += [ends.high_watermarks.get(partition)]
        rows.add_row(
            str(each.index),
            str(each.leader) if each.leader >= 0 else "none",
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)),
            *("-" if offset is None else str(offset) for offset in offsets),
        )
    print_table(rows)
    print_leaderless_partitions(ends)
    print_waiting_records(ends)
    if shown:
        out_console.print()
        settings = make_table("setting", "value")
        for entry in shown:
            settings.add_row(entry.name, entry.value or "")
        print_table(settings)


def _to_json(topic: TopicInfo, first: Offsets, ends: EndOffsets, configs: Sequence[ConfigEntry]) -> dict[str, Any]:
    partitions = []
    for each in topic.partitions:
        partition = TopicPartition(topic.name, each.index)
        partitions.append(
            {
                "partition": each.index,
                "leader": None if each.leader == NO_LEADER else each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": each.replicas,
                "isr": each.in_sync,
                "offline_replicas": each.offline,
                "log_start_offset": first[partition].offset if partition in first else None,
                "last_stable_offset": ends.last_stable_offsets.get(partition),
                "high_watermark": ends.high_watermarks.get(partition),
            }
        )
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "configs": {entry.name: entry.value for entry in configs},
    }
