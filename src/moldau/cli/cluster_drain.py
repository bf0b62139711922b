"""`moldau cluster drain`: every replica that a node keeps moves to the others, so that the node can go."""

import asyncio
from typing import NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from moldau.cli.asking import (
    TIMEOUT_MS,
    CommandError,
    ask,
    complaints,
    counted,
    output,
    reached,
    run_or_fail,
    say,
)
from moldau.cli.given import LOCAL, Bootstrap, NodeId, Yes
from moldau.client.admin import Admin
from moldau.client.errors import KafkaError
from moldau.client.record import TopicPartition
from moldau.controller.reassignment import drain
from moldau.errors import MoldauError

LOOK_EVERY_S = 0.5
MOVES_PER_REQUEST = 200

Moves = dict[TopicPartition, tuple[int, ...]]


class Plan(NamedTuple):
    moves: Moves
    """What has to be asked for."""
    moving: int
    """Partitions that are leaving the node already."""


def cluster_drain(node: NodeId, bootstrap: Bootstrap = LOCAL, yes: Yes = False) -> None:
    """Move every replica off a node, to the nodes that have fewest, while the cluster serves.

    It may be stopped and begun again: what is under way goes on in the cluster.
    """
    plan = ask(lambda admin: _plan(admin, node), bootstrap)
    if not plan.moves and not plan.moving:
        output.print(f"Node {node} keeps no replicas.")
        return
    if not yes:
        what = counted(len(plan.moves) + plan.moving, "partition")
        typer.confirm(f"Move {what} from node {node} to others?", abort=True)
    run_or_fail(_drain(node, bootstrap), bootstrap)
    output.print(
        f"Node {node} keeps no replicas any more. Stop it, then `moldau cluster unregister {node}`; if it is a "
        f"voter, `moldau cluster remove-voter {node}` first."
    )


async def _drain(node: int, bootstrap: str) -> None:
    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with reached(bootstrap, request_timeout_ms=TIMEOUT_MS) as cluster:
        admin = Admin(cluster, timeout_ms=TIMEOUT_MS)
        with Progress(*columns, console=complaints, transient=True) as progress:
            bar = progress.add_task("moving", total=None)
            total = 0
            while True:
                # Asked anew each time: topics may be made meanwhile, on this node too.
                plan = await _plan(admin, node)
                left = len(plan.moves) + plan.moving
                total = max(total, left)
                progress.update(bar, total=total, completed=total - left)
                if not left:
                    return
                await _begin(admin, plan.moves)
                await asyncio.sleep(LOOK_EVERY_S)


async def _plan(admin: Admin, node: int) -> Plan:
    cluster = await admin.describe_cluster(fenced_too=True)
    if node not in [each.node_id for each in cluster.brokers + cluster.fenced]:
        raise CommandError(f"There is no node {node}: `moldau cluster status` shows those there are.")
    ongoing = await admin.list_reassignments()
    replicas: dict[tuple[str, int], tuple[int, ...]] = {}
    moving = 0
    for topic in await admin.list_topics(internal=True):
        for each in topic.partitions:
            move = ongoing.get(TopicPartition(topic.name, each.index))
            leaving = () if move is None else move.removing
            moving += node in leaving
            replicas[topic.name, each.index] = tuple(
                replica for replica in each.replicas if replica not in leaving
            )
    racks = {each.node_id: each.rack for each in cluster.brokers if each.node_id != node}
    try:
        wanted = drain(replicas, racks, node)
    except MoldauError as error:
        raise CommandError(str(error)) from None
    moves = {
        TopicPartition(each.topic, each.partition): tuple(each.replicas)
        for each in wanted
        if each.replicas is not None
    }
    return Plan(moves, moving)


async def _begin(admin: Admin, moves: Moves) -> None:
    wanted = list(moves.items())
    for first in range(0, len(wanted), MOVES_PER_REQUEST):
        results = await admin.alter_reassignments(dict(wanted[first : first + MOVES_PER_REQUEST]))
        for partition, result in results.items():
            if isinstance(result, KafkaError):
                say(f"{partition} stays for now: {result}")
