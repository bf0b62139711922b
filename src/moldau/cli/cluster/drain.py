"""`moldau cluster drain`: moves all replicas of a node to other nodes, and removes those that all other nodes have."""

import asyncio
from collections.abc import Set
from typing import NamedTuple

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, out_console, pluralize
from moldau.cli.exit_codes import NotFoundError
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId, Yes
from moldau.cli.progress import progress_bar
from moldau.cli.reassignment import POLL_INTERVAL_S, StallWatch, alter_reassignments, stall_reason, target_replicas
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigResource, OngoingReassignment, ResourceType
from moldau.client.errors import KafkaError
from moldau.client.net.metadata import PartitionInfo
from moldau.client.record import TopicPartition
from moldau.controller.reassignment import plan_drain
from moldau.controller.state import LEADER_FOLLOWS_CONTROLLER
from moldau.errors import MoldauError
from moldau.settings.option_parser import parse_boolean

Moves = dict[TopicPartition, tuple[int, ...]]
Reasons = dict[TopicPartition, str]


class DrainPlan(NamedTuple):
    moves: Moves
    """Reassignments that the command has to request."""
    moving: Moves
    """Reassignments in progress."""
    stalled: Reasons
    """Reassignments in progress that cannot complete, with the reasons."""

    @property
    def remaining_count(self) -> int:
        return len(self.moves) + len(self.moving)


def cluster_drain(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Move all replicas of a node to the nodes with the fewest replicas, while the cluster is running. Topics with
    leader.follows.controller have replicas on all nodes, so the node's replicas are removed.

    The command can be interrupted and run again: reassignments in progress continue in the cluster.
    """
    plan = run_admin(lambda admin: _plan(admin, node, {}), bootstrap)
    if not plan.remaining_count:
        out_console.print(f"Node {node} has no replicas.")
        return
    if not yes:
        partitions = pluralize(plan.remaining_count, "partition")
        typer.confirm(f"Move {partitions} from node {node} to other nodes?", abort=True)
    run_admin(lambda admin: move_all(admin, node), bootstrap, has_progress=True)
    out_console.print(
        f"Node {node} has no replicas any more. To remove it: run `moldau cluster remove-voter {node}` if it is a "
        f"voter, stop it, then run `moldau cluster unregister {node}`."
    )


async def move_all(admin: Admin, node: int) -> None:
    """Moves all replicas of a node. Raises CommandError if none of the remaining replicas can be moved."""
    with progress_bar("moving") as bar:
        total = 0
        stalls = StallWatch()
        started: Moves = {}
        while True:
            # Plan the moves again in each iteration, because new topics may have been placed on the node meanwhile.
            plan = await _plan(admin, node, started)
            total = max(total, plan.remaining_count)
            moved = total - plan.remaining_count
            bar.update(moved, total, f"{moved} of {pluralize(total, 'partition')}")
            if not plan.remaining_count:
                return
            rejected = await alter_reassignments(admin, plan.moves)
            started = {each: to for each, to in (plan.moves | plan.moving).items() if each not in rejected}
            stalled = {each: str(error) for each, error in rejected.items()} | plan.stalled
            if stalls.is_stuck(stalled, plan.remaining_count):
                raise CommandError(
                    f"{pluralize(plan.remaining_count, 'partition')} cannot be moved off node {node} for the reasons "
                    "above. Run the command again when the unavailable nodes are back. If the nodes with the records "
                    "are lost, elect other leaders with `moldau cluster elect-leaders --unclean`, or delete the topics."
                )
            await asyncio.sleep(POLL_INTERVAL_S)


async def _plan(admin: Admin, node: int, started: Moves) -> DrainPlan:
    """Plans moves of a node's replicas to other nodes. `started` are the moves in progress at the last poll."""
    cluster = await admin.describe_cluster(fenced_too=True)
    if node not in [each.node_id for each in cluster.brokers + cluster.fenced]:
        raise NotFoundError(f"Node {node} does not exist. Run `moldau cluster status` to see the nodes.")
    ongoing = await admin.list_reassignments()
    replicas: dict[tuple[str, int], tuple[int, ...]] = {}
    moving: Moves = {}
    stalled: Reasons = {}
    running = {each.node_id for each in cluster.brokers}
    for topic in await admin.list_topics(internal=True):
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.index)
            reassignment = ongoing.get(partition)
            move = _ongoing_target(each, reassignment, started.get(partition))
            replicas[partition] = each.replicas if move is None else move
            if move is not None and node in each.replicas and node not in move:
                moving[partition] = move
                reason = stall_reason(each.leader, reassignment, running)
                if reason is not None:
                    stalled[partition] = reason
    racks = {each.node_id: each.rack for each in cluster.brokers if each.node_id != node}
    leaving = {TopicPartition(*each) for each, members in replicas.items() if node in members}
    controller_led, errors = await _find_controller_led_topics(admin, {each.topic for each in leaving})
    for partition in sorted(each for each in leaving if each.topic in errors):
        # Look again at the next poll: the topic was deleted, or is so new that a node does not know it yet.
        moving[partition] = replicas.pop(partition)
        stalled[partition] = f"its configs are unknown ({errors[partition.topic]})"
    try:
        changes = plan_drain(replicas, racks, node, controller_led)
    except MoldauError as error:
        raise CommandError(str(error)) from None
    moves = {
        TopicPartition(each.topic, each.partition): tuple(each.replicas)
        for each in changes
        if each.replicas is not None
    }
    return DrainPlan(moves, moving, stalled)


async def _find_controller_led_topics(admin: Admin, topics: Set[str]) -> tuple[set[str], dict[str, KafkaError]]:
    """Returns the topics that have leader.follows.controller, and the errors of topics whose configs are unknown."""
    controller_led: set[str] = set()
    errors: dict[str, KafkaError] = {}
    if topics:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
        for resource, entries in (await admin.describe_configs(resources, names=[LEADER_FOLLOWS_CONTROLLER])).items():
            if isinstance(entries, KafkaError):
                errors[resource.name] = entries
                continue
            # An older broker does not have the config.
            entry = entries.get(LEADER_FOLLOWS_CONTROLLER)
            # Configs have the spelling with which they were set, so the value may be "TRUE".
            if entry is not None and entry.value is not None and parse_boolean(entry.value):
                controller_led.add(resource.name)
    return controller_led, errors


def _ongoing_target(
    partition: PartitionInfo, ongoing: OngoingReassignment | None, started: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Returns the replicas that a partition is being moved to, or None if the partition is not being moved."""
    if ongoing is not None:
        return target_replicas(ongoing)
    # `ongoing` comes from the controller, but `partition` from any node. A node that lags behind still lists replicas
    # that a completed move has removed. A new move would keep them and so increase the replication factor. Until the
    # node has caught up, the completed move is treated as in progress.
    return started if started is not None and set(started) < set(partition.replicas) else None
