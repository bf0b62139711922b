"""`moldau topic describe`: partitions, offsets and settings of a topic."""

from typing import Annotated

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import make_table, out_console, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topic
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigEntry
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, OffsetAndTimestamp
from moldau.client.net.metadata import TopicInfo
from moldau.client.record import TopicPartition

Offsets = dict[TopicPartition, OffsetAndTimestamp]


def topic_describe(
    name: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also show settings that have their default value.")
    ] = False,
) -> None:
    """Show the partitions of a topic with leader, replicas and offsets, and the settings that are not default.

    The end offset is the offset of the next record.
    """

    async def operation(admin: Admin) -> tuple[TopicInfo, Offsets, Offsets, dict[str, ConfigEntry]]:
        topic = await admin.describe_topic(name)
        partitions = await list_partitions(admin, [name])
        first = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        return topic, first, end, await admin.topic_configs(name)

    topic, first, end, configs = run_admin(operation, bootstrap)
    numbers = ("partition", "leader", "first offset", "end offset")
    rows = make_table(*numbers[:2], "replicas", "in sync", *numbers[2:], numbers=numbers)
    for each in topic.partitions:
        partition = TopicPartition(name, each.index)
        rows.add_row(
            str(each.index),
            str(each.leader) if each.leader >= 0 else "none",
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)),
            str(first[partition].offset) if partition in first else "-",
            str(end[partition].offset) if partition in end else "-",
        )
    print_table(rows)
    entries = [entry for entry in configs.values() if all_settings or not entry.is_default]
    if entries:
        out_console.print()
        settings = make_table("setting", "value")
        for entry in entries:
            settings.add_row(entry.name, entry.value or "")
        print_table(settings)
