"""`moldau topic move`: moves the partitions of a topic to other nodes, or changes its replication factor."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from moldau.cli.exit_codes import CommandError
from moldau.cli.moves import Cancel, MoveOptions, NoWait, Undo, cancel_moves, move
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    DryRun,
    Json,
    Partitions,
    Topic,
    Yes,
    option,
    parse_node_ids,
    validate_int16,
)
from moldau.cli.reassignment import Targets, find_partitions, target_replicas
from moldau.client.admin.admin import Admin
from moldau.client.record import TopicPartition
from moldau.controller.reassignment import plan_replication_factor
from moldau.errors import MoldauError


def topic_move(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    replicas: Annotated[
        str | None,
        option(
            "--replicas",
            "NODES",
            "Comma-separated node ids of the new replicas. The first one is the preferred leader; with several "
            "partitions the nodes take turns.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        option(
            "--replication-factor -r",
            "NUMBER",
            "New number of replicas; the nodes are chosen by their racks and loads.",
            validate_int16,
            min=1,
        ),
    ] = None,
    partitions: Partitions = None,
    cancel: Cancel = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    yes: Yes = False,
    undo_file: Undo = None,
    as_json: Json = False,
) -> None:
    """Move the partitions of a topic to other nodes, or change its replication factor, while clients use it.

    The plan is printed first. New replicas copy the records from the leaders; old replicas are removed when the new
    ones are in sync. Ctrl-C stops only the command: run it again to see the progress.

    moldau topic move orders --replication-factor 3

    moldau topic move orders --replicas 2,3,4 --partition 0 --dry-run

    moldau topic move orders --cancel
    """
    if [replicas is not None, replication_factor is not None, cancel].count(True) != 1:
        raise typer.BadParameter("use exactly one of --replicas, --replication-factor and --cancel")
    options = MoveOptions(dry_run, yes, no_wait, as_json, undo_file)
    if cancel:
        cancel_moves(lambda admin: _selected(admin, topic, partitions), bootstrap, [topic], options)
        return
    nodes = None if replicas is None else parse_node_ids(replicas, "--replicas")

    async def find_targets(admin: Admin) -> Targets:
        selected = await _selected(admin, topic, partitions)
        if nodes is not None:
            return {each: rotate(nodes, turn % len(nodes)) for turn, each in enumerate(selected)}
        assert replication_factor is not None
        return await _plan_factor(admin, selected, replication_factor)

    move(find_targets, bootstrap, [topic], options)


def rotate(nodes: Sequence[int], turn: int) -> tuple[int, ...]:
    return (*nodes[turn:], *nodes[:turn])


async def _selected(admin: Admin, topic: str, indexes: Sequence[int] | None) -> list[TopicPartition]:
    """Returns these partitions of a topic, or all. Raises NotFoundError if one does not exist."""
    if not indexes:
        return [TopicPartition(topic, each.index) for each in (await admin.describe_topic(topic)).partitions]
    selected = [TopicPartition(topic, index) for index in sorted(set(indexes))]
    await find_partitions(admin, selected)
    return selected


async def _plan_factor(admin: Admin, selected: Sequence[TopicPartition], factor: int) -> Targets:
    topics = {topic.name: topic for topic in await admin.list_topics(internal=True)}
    held = Counter(node for topic in topics.values() for each in topic.partitions for node in each.replicas)
    partitions = await find_partitions(admin, selected)
    ongoing = await admin.list_reassignments(selected)
    current = {
        (each.topic, each.partition): target_replicas(ongoing[each]) if each in ongoing else info.replicas
        for each, info in partitions.items()
    }
    in_sync = {(each.topic, each.partition): info.in_sync for each, info in partitions.items()}
    racks = {each.node_id: each.rack for each in (await admin.describe_cluster()).brokers}
    try:
        changes = plan_replication_factor(current, in_sync, racks, held, factor)
    except MoldauError as error:
        raise CommandError(str(error)) from None
    planned = {TopicPartition(each.topic, each.partition): tuple(each.replicas or ()) for each in changes}
    return {each: planned.get(each, current[each.topic, each.partition]) for each in selected}
