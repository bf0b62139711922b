"""Moves of partitions to other nodes: the plan, its start, and the wait until all records are copied."""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rich.filesize import decimal

from moldau.cli.console import make_table, out_console, pluralize, print_notice, print_table
from moldau.cli.exit_codes import CommandError, NotFoundError
from moldau.cli.progress import progress_bar
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import LogDir, OngoingReassignment
from moldau.client.errors import KafkaError
from moldau.client.net.metadata import NO_LEADER, PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition

POLL_INTERVAL_S = 0.5
STALLED_POLLS_MAX = 20
"""The command fails after this many consecutive polls without progress. They take longer than a leader election."""
PARTITIONS_PER_REQUEST = 200
SETTLE_TIMEOUT_S = 5.0
"""How long a completed move may be missing in the metadata of other nodes."""

SIZES_TIMEOUT_MS = 3_000
"""How long to wait for the sizes of replicas. They are not essential, so a node that has just died must not delay the
command for as long as other requests do."""

ReplicaSizes = dict[tuple[TopicPartition, int], int]
"""The size of the log of a partition on a node."""
Targets = Mapping[TopicPartition, Sequence[int]]
"""The replicas that partitions are to have, the preferred leader first."""


class Move(NamedTuple):
    """The move of one partition."""

    current: tuple[int, ...]
    """The replicas, without those that a reassignment in progress adds."""
    target: tuple[int, ...]
    log_bytes: int
    """The size of the leader's log; 0 if it is unknown."""
    is_started: bool
    """Whether a reassignment to the target is in progress."""
    replaced: tuple[int, ...] | None = None
    """The target of a reassignment in progress that this move replaces."""

    @property
    def bytes_to_copy(self) -> int:
        return self.log_bytes * len(set(self.target) - set(self.current))


MovePlan = dict[TopicPartition, Move]


# Plan


async def plan_moves(admin: Admin, targets: Targets) -> MovePlan:
    """Returns the moves of those partitions that do not have their target replicas yet, and changes nothing.

    Raises NotFoundError if a node or partition does not exist, and KafkaError if a topic does not.
    """
    await _check_nodes(admin, {node for replicas in targets.values() for node in replicas})
    ongoing = await admin.list_reassignments(targets)
    partitions = await find_partitions(admin, list(targets))
    changing: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, target in targets.items():
        if partition in ongoing or partitions[partition].replicas != tuple(target):
            changing[partition] = tuple(target)
    sizes = await _replica_sizes(admin, changing, {partitions[each].leader for each in changing})
    plan: MovePlan = {}
    for partition, target in sorted(changing.items()):
        info, reassignment = partitions[partition], ongoing.get(partition)
        current = info.replicas if reassignment is None else original_replicas(reassignment)
        moving_to = None if reassignment is None else target_replicas(reassignment)
        is_started = moving_to == target
        replaced = None if is_started else moving_to
        plan[partition] = Move(current, target, sizes.get((partition, info.leader), 0), is_started, replaced)
    return plan


def target_replicas(ongoing: OngoingReassignment) -> tuple[int, ...]:
    """Returns the replicas that a partition has when its reassignment is complete."""
    return tuple(each for each in ongoing.replicas if each not in ongoing.removing)


def original_replicas(ongoing: OngoingReassignment) -> tuple[int, ...]:
    """Returns the replicas that a partition has if its reassignment is cancelled."""
    return tuple(each for each in ongoing.replicas if each not in ongoing.adding)


async def find_partitions(admin: Admin, wanted: Collection[TopicPartition]) -> dict[TopicPartition, PartitionInfo]:
    """Returns the metadata of partitions. Raises KafkaError for a missing topic, NotFoundError for a partition."""
    topics = await admin.describe_topics(dict.fromkeys(each.topic for each in wanted))
    found: dict[TopicPartition, PartitionInfo] = {}
    for partition in wanted:
        topic = topics[partition.topic]
        if isinstance(topic, KafkaError):
            raise topic
        found[partition] = _partition_of(topic, partition)
    return found


def _partition_of(topic: TopicInfo, partition: TopicPartition) -> PartitionInfo:
    info = topic.partition(partition.partition)
    if info is None:
        raise NotFoundError(
            f"Partition {partition} does not exist: {topic.name} has {pluralize(len(topic.partitions), 'partition')}."
        )
    return info


async def _check_nodes(admin: Admin, nodes: Collection[int]) -> None:
    cluster = await admin.describe_cluster(fenced_too=True)
    missing = sorted(set(nodes) - {each.node_id for each in cluster.brokers + cluster.fenced})
    if missing:
        raise NotFoundError(f"Node {missing[0]} does not exist. Run `moldau cluster status` to see the nodes.")
    for each in cluster.fenced:
        if each.node_id in nodes:
            print_notice(f"Node {each.node_id} is down. Its replicas are copied when it is back.")


async def _replica_sizes(admin: Admin, partitions: Collection[TopicPartition], nodes: Collection[int]) -> ReplicaSizes:
    """Returns the size of each replica on these nodes. Nodes that do not return it are left out."""
    asked = sorted(each for each in nodes if each != NO_LEADER)
    if not partitions or not asked:
        return {}
    sizes: ReplicaSizes = {}
    impatient = Admin(admin.cluster, timeout_ms=SIZES_TIMEOUT_MS)
    for node, result in (await impatient.describe_log_dirs(asked, partitions=partitions)).items():
        log_dirs: list[LogDir] = [] if isinstance(result, KafkaError) else result
        for log_dir in log_dirs:
            for partition, replica in log_dir.replicas.items():
                if not replica.is_future:
                    sizes[partition, node] = replica.size
    return sizes


def print_plan(plan: MovePlan) -> None:
    rows = make_table("partition", "from", "to", "to copy", numbers=("to copy",))
    for partition, move in plan.items():
        size = decimal(move.bytes_to_copy) if move.bytes_to_copy else "-"
        note = " (moving)" if move.is_started else ""
        if move.replaced is not None:
            note = f" (replaces the move to {nodes_text(move.replaced)})"
        rows.add_row(str(partition), nodes_text(move.current), nodes_text(move.target), f"{size}{note}")
    print_table(rows)
    out_console.print()
    total = decimal(sum(each.bytes_to_copy for each in plan.values()))
    out_console.print(f"{pluralize(len(plan), 'partition')} to move, {total} to copy.")


def plan_to_json(plan: MovePlan) -> list[dict[str, Any]]:
    return [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": move.current,
            "new_replicas": move.target,
            "bytes_to_copy": move.bytes_to_copy,
            "is_started": move.is_started,
            "replaced_replicas": move.replaced,
        }
        for partition, move in plan.items()
    ]


def plan_to_kafka_json(plan: MovePlan) -> str:
    """Returns the current replicas in the format of Kafka's reassignment files, to undo the plan."""
    partitions = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": move.current}
        for partition, move in plan.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}, indent=2) + "\n"


def nodes_text(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


# Start, wait and cancel


async def alter_reassignments(
    admin: Admin, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError]:
    """Requests reassignments (None: cancels them). Returns those that the controller rejects, with the reasons."""
    rejected: dict[TopicPartition, KafkaError] = {}
    requests = list(wanted.items())
    for first in range(0, len(requests), PARTITIONS_PER_REQUEST):
        results = await admin.alter_reassignments(dict(requests[first : first + PARTITIONS_PER_REQUEST]))
        rejected |= {each: result for each, result in results.items() if isinstance(result, KafkaError)}
    return rejected


class StallWatch:
    """Prints why moves cannot make progress, and notices if none has made any for STALLED_POLLS_MAX polls."""

    def __init__(self) -> None:
        self._printed: dict[TopicPartition, str] = {}
        self._polls = 0

    def is_stuck(self, stalled: Mapping[TopicPartition, str], remaining_count: int) -> bool:
        """Must be called once per poll with the reasons of the stalled moves and the number of remaining moves."""
        for partition, reason in stalled.items():
            if self._printed.get(partition) != reason:
                print_notice(f"{partition} cannot be moved yet: {reason}")
        self._printed |= stalled
        self._polls = self._polls + 1 if len(stalled) == remaining_count else 0
        return self._polls >= STALLED_POLLS_MAX


async def wait_for_moves(admin: Admin, plan: MovePlan) -> dict[TopicPartition, Exception]:
    """Waits until no move is in progress, with a progress bar. Returns errors of partitions that have other replicas.

    Raises CommandError if none of the remaining moves can complete.
    """
    stalls = StallWatch()
    sizes: ReplicaSizes = {}
    bytes_max = 0
    try:
        with progress_bar("moving") as bar:
            while ongoing := await admin.list_reassignments(plan):
                leaders = await _leaders(admin, ongoing)
                running = {each.node_id for each in (await admin.describe_cluster()).brokers}
                nodes = {*leaders.values(), *(node for each in ongoing.values() for node in each.adding)}
                # A node that does not respond keeps its last known sizes.
                sizes |= await _replica_sizes(admin, ongoing, nodes & running)
                bytes_left = _bytes_left(ongoing, leaders, sizes)
                bytes_max = max(bytes_max, bytes_left)
                moved = len(plan) - len(ongoing)
                bar.update(
                    # A partition counts as one byte, so that the bar also moves if there is nothing to copy.
                    bytes_max - bytes_left + moved,
                    bytes_max + len(plan),
                    f"{moved} of {pluralize(len(plan), 'partition')}, {decimal(bytes_left)} left",
                )
                reasons = {
                    each: stall_reason(leaders.get(each, NO_LEADER), move, running) for each, move in ongoing.items()
                }
                stalled = {each: reason for each, reason in reasons.items() if reason is not None}
                if stalls.is_stuck(stalled, len(ongoing)):
                    raise CommandError(
                        f"{pluralize(len(stalled), 'partition')} cannot be moved for the reasons above. The moves "
                        "continue when the nodes are back: run the command again to wait for them, or with --cancel "
                        "to cancel them."
                    )
                await asyncio.sleep(POLL_INTERVAL_S)
    except asyncio.CancelledError:
        print_notice("The moves continue. Run the command again to see the progress, or with --cancel to cancel them.")
        raise
    return await _check_moved(admin, plan)


def stall_reason(leader: int, move: OngoingReassignment | None, running: Collection[int]) -> str | None:
    """Returns why a reassignment makes no progress now, or None if it can.

    It completes when all replicas of its target are in the ISR, also those that are not new.
    """
    if leader == NO_LEADER:
        return "it has no leader to copy records from"
    down = [] if move is None else sorted({*target_replicas(move)}.difference(running))
    if move is None or not down:
        return None
    return f"its {'new ' if down[0] in move.adding else ''}replica on node {down[0]} is down"


async def _leaders(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the leaders of partitions, without partitions that were deleted."""
    topics = await admin.describe_topics(dict.fromkeys(each.topic for each in partitions))
    leaders: dict[TopicPartition, int] = {}
    for partition in partitions:
        topic = topics[partition.topic]
        info = None if isinstance(topic, KafkaError) else topic.partition(partition.partition)
        if info is not None:
            leaders[partition] = info.leader
    return leaders


def _bytes_left(
    ongoing: Mapping[TopicPartition, OngoingReassignment], leaders: Mapping[TopicPartition, int], sizes: ReplicaSizes
) -> int:
    """Returns how many bytes the new replicas lack of the logs of their leaders."""
    return sum(
        max(0, sizes.get((partition, leaders.get(partition, NO_LEADER)), 0) - sizes.get((partition, node), 0))
        for partition, reassignment in ongoing.items()
        for node in reassignment.adding
    )


async def _check_moved(admin: Admin, plan: MovePlan) -> dict[TopicPartition, Exception]:
    """Returns errors of the partitions that do not have their target replicas. Waits for nodes that lag behind."""
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
    while True:
        topics = await admin.describe_topics(dict.fromkeys(each.topic for each in plan))
        errors: dict[TopicPartition, Exception] = {}
        for partition, move in plan.items():
            topic = topics[partition.topic]
            if isinstance(topic, KafkaError):
                errors[partition] = topic
                continue
            info = topic.partition(partition.partition)
            if info is None:
                errors[partition] = NotFoundError(f"{partition} does not exist any more.")
            elif info.replicas != move.target:
                errors[partition] = CommandError(
                    f"the move was cancelled or replaced; the replicas are {nodes_text(info.replicas)}."
                )
        if not errors or asyncio.get_running_loop().time() >= deadline:
            return errors
        await asyncio.sleep(POLL_INTERVAL_S)
