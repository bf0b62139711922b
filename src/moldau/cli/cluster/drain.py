"""`moldau cluster drain`: every replica that a node keeps moves to the others, so that the node can go."""

import asyncio
from typing import NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from moldau.cli.cluster_access import (
    TIMEOUT_MS,
    CommandError,
    connected_cluster,
    err_console,
    out_console,
    pluralize,
    print_notice,
    run_admin,
    run_or_exit,
)
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId, Yes
from moldau.client.admin.admin import Admin, OngoingReassignment
from moldau.client.errors import KafkaError
from moldau.client.net.metadata import PartitionInfo
from moldau.client.record import TopicPartition
from moldau.controller.reassignment import plan_drain
from moldau.errors import MoldauError

POLL_INTERVAL_S = 0.5
STALLED_POLLS_MAX = 20
"""So many in a row at which nothing can move are the end: a leader that died was replaced before that, if it can be."""
MOVES_PER_REQUEST = 200
NO_LEADER = "nobody leads it, so that its records cannot be copied"

Moves = dict[TopicPartition, tuple[int, ...]]
Reasons = dict[TopicPartition, str]


class DrainPlan(NamedTuple):
    moves: Moves
    """What has to be asked for."""
    moving: Moves
    """What was asked for already, by whomever."""
    stalled: Reasons
    """Why some of that does not go on."""

    @property
    def left(self) -> int:
        return len(self.moves) + len(self.moving)


def cluster_drain(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Move every replica off a node, to the nodes that have fewest, while the cluster serves.

    It may be stopped and begun again: what is under way goes on in the cluster.
    """
    plan = run_admin(lambda admin: _plan(admin, node, {}), bootstrap)
    if not plan.left:
        out_console.print(f"Node {node} keeps no replicas.")
        return
    if not yes:
        what = pluralize(plan.left, "partition")
        typer.confirm(f"Move {what} from node {node} to others?", abort=True)
    run_or_exit(_drain(node, bootstrap), bootstrap)
    out_console.print(
        f"Node {node} keeps no replicas any more. Stop it, then `moldau cluster unregister {node}`; if it is a "
        f"voter, `moldau cluster remove-voter {node}` first."
    )


async def _drain(node: int, bootstrap: str) -> None:
    async with connected_cluster(bootstrap, request_timeout_ms=TIMEOUT_MS) as cluster:
        await move_all(Admin(cluster, timeout_ms=TIMEOUT_MS), node)


async def move_all(admin: Admin, node: int) -> None:
    """Returns when the node keeps nothing any more; raises CommandError where nothing of the rest can move."""
    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as progress:
        bar = progress.add_task("moving", total=None)
        total = in_vain = 0
        begun: Moves = {}
        told: Reasons = {}
        while True:
            # Asked anew each time: topics may be made meanwhile, on this node too.
            plan = await _plan(admin, node, begun)
            total = max(total, plan.left)
            progress.update(bar, total=total, completed=total - plan.left)
            if not plan.left:
                return
            refused = await _start_moves(admin, plan.moves)
            begun = {each: to for each, to in (plan.moves | plan.moving).items() if each not in refused}
            stalled = refused | plan.stalled
            _print_stalled(stalled, told)
            in_vain = in_vain + 1 if len(stalled) == plan.left else 0
            if in_vain == STALLED_POLLS_MAX:
                raise CommandError(
                    f"{pluralize(plan.left, 'partition')} cannot be moved off node {node} now, for the reasons above. "
                    "Drain it again when the nodes it waits for are back; if those that have the records are gone for "
                    "good, elect other leaders first (`moldau cluster elect-leaders --unclean`), or delete the topics."
                )
            await asyncio.sleep(POLL_INTERVAL_S)


def _print_stalled(stalled: Reasons, told: Reasons) -> None:
    """Says of each partition why it stays; again only if the reason has become another."""
    for partition, reason in stalled.items():
        if told.get(partition) != reason:
            print_notice(f"{partition} stays for now: {reason}")
    told |= stalled


async def _plan(admin: Admin, node: int, begun: Moves) -> DrainPlan:
    """`begun` is what was under way at the last look."""
    cluster = await admin.describe_cluster(fenced_too=True)
    if node not in [each.node_id for each in cluster.brokers + cluster.fenced]:
        raise CommandError(f"There is no node {node}: `moldau cluster status` shows those there are.")
    ongoing = await admin.list_reassignments()
    replicas: dict[tuple[str, int], tuple[int, ...]] = {}
    moving: Moves = {}
    stalled: Reasons = {}
    alive = {each.node_id for each in cluster.brokers}
    for topic in await admin.list_topics(internal=True):
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.index)
            under_way = ongoing.get(partition)
            move = _ongoing_target(each, under_way, begun.get(partition))
            replicas[partition] = each.replicas if move is None else move
            if move is not None and node in each.replicas and node not in move:
                moving[partition] = move
                adding = () if under_way is None else under_way.adding
                if each.leader < 0:
                    stalled[partition] = NO_LEADER
                elif not alive.issuperset(adding):
                    stalled[partition] = f"node {min(set(adding) - alive)}, which is to have it, is down"
    racks = {each.node_id: each.rack for each in cluster.brokers if each.node_id != node}
    try:
        wanted = plan_drain(replicas, racks, node)
    except MoldauError as error:
        raise CommandError(str(error)) from None
    moves = {
        TopicPartition(each.topic, each.partition): tuple(each.replicas)
        for each in wanted
        if each.replicas is not None
    }
    return DrainPlan(moves, moving, stalled)


def _ongoing_target(
    seen: PartitionInfo, ongoing: OngoingReassignment | None, begun: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Where a partition is on its way to; None where it is on none."""
    if ongoing is not None:
        return tuple(replica for replica in ongoing.replicas if replica not in ongoing.removing)
    # The controller says what is under way, any node who the replicas are. One that lags shows a move that has ended
    # with those that left, and to move all of them would make more replicas than there were.
    return begun if begun is not None and set(begun) < set(seen.replicas) else None


async def _start_moves(admin: Admin, moves: Moves) -> Reasons:
    """What the controller refuses, and why."""
    refused: Reasons = {}
    wanted = list(moves.items())
    for first in range(0, len(wanted), MOVES_PER_REQUEST):
        results = await admin.alter_reassignments(dict(wanted[first : first + MOVES_PER_REQUEST]))
        refused |= {each: str(result) for each, result in results.items() if isinstance(result, KafkaError)}
    return refused
