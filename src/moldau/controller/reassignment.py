"""Partition reassignment: adds replicas on other brokers, and removes the old replicas when the new ones are in the
ISR.

During a reassignment, the replica list has the target replicas in their order, followed by the replicas to remove. The
reassignment is complete when the ISR contains all target replicas (see `partition_change_builder.py`).
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from moldau.controller.partition_change_builder import PartitionChangeBuilder, change_builder
from moldau.controller.partition_index import PartitionName
from moldau.controller.placement import validate_manual_assignment
from moldau.controller.requests import OngoingReassignment, PartitionResult, Reassignment
from moldau.controller.state import ControllerState, check_batch_size
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    MoldauError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import MetadataImage, PartitionRegistration
from moldau.metadata.records import Record


def alter_partition_reassignments(
    state: ControllerState, reassignments: Sequence[Reassignment], *, allow_rf_change: bool
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """Starts, changes or cancels reassignments. One whose target replicas are all in the ISR completes at once."""
    active = state.active_brokers()
    leaderless = _topics_without_common_broker(state, reassignments)
    times_named = Counter((each.topic, each.partition) for each in reassignments)
    records: list[Record] = []
    results: dict[PartitionName, PartitionResult] = {}
    for requested in reassignments:
        name = PartitionName(requested.topic, requested.partition)
        try:
            if times_named[name] > 1:
                raise InvalidRequestError("Duplicate partition.")
            partition = state.image.partition(*name)
            if partition is None:
                raise UnknownTopicOrPartitionError(f"Unable to find partition {name.topic}:{name.partition}.")
            change = change_builder(state, name, active)
            if requested.replicas is None:
                _cancel_reassignment(change, partition)
            else:
                validate_manual_assignment(requested.replicas, state.image.brokers, None)
                if name.topic in leaderless:
                    raise InvalidReplicaAssignmentError(
                        f"No broker would have a replica of all these partitions of {name.topic}, but with "
                        "leader.follows.controller one broker leads them all."
                    )
                if not allow_rf_change:
                    _check_replication_factor(partition, len(requested.replicas))
                _start_reassignment(change, partition, tuple(requested.replicas))
        except MoldauError as error:
            results[name] = PartitionResult(name.topic, name.partition, error)
        else:
            record = change.build()
            if record is not None:
                records.append(record)
            results[name] = PartitionResult(name.topic, name.partition)
    return CoordinatorResult(check_batch_size(records), list(results.values()))


def _topics_without_common_broker(state: ControllerState, reassignments: Iterable[Reassignment]) -> set[str]:
    """Returns the topics with leader.follows.controller that no broker could lead after these reassignments, because
    none would have a replica of all their partitions."""
    common: dict[str, frozenset[int]] = {}
    for each in reassignments:
        if each.replicas is not None and each.topic in state.controller_led_topics:
            common[each.topic] = common.get(each.topic, frozenset(each.replicas)).intersection(each.replicas)
    return {topic for topic, brokers in common.items() if not brokers}


def _check_replication_factor(partition: PartitionRegistration, requested: int) -> None:
    count = len(partition.replicas) - len(partition.removing_replicas)
    if requested != count:
        raise InvalidReplicationFactorError(f"The replication factor is changed from {count} to {requested}")


def _start_reassignment(
    change: PartitionChangeBuilder, partition: PartitionRegistration, target: tuple[int, ...]
) -> None:
    """Starts a reassignment to `target`.

    An ongoing reassignment is replaced, and a later cancellation restores the replicas from before both. A replica that
    only the ongoing reassignment was adding is removed at once.
    """
    _set_target(change, partition, target)
    _restrict_isr(change, partition)


def _set_target(change: PartitionChangeBuilder, partition: PartitionRegistration, target: tuple[int, ...]) -> None:
    original = _original_replicas(partition)
    change.adding_replicas = tuple(replica for replica in target if replica not in original)
    change.removing_replicas = tuple(replica for replica in original if replica not in target)
    change.replicas = target + change.removing_replicas


def _cancel_reassignment(change: PartitionChangeBuilder, partition: PartitionRegistration) -> None:
    if not partition.is_reassigning:
        raise NoReassignmentInProgressError("No partition reassignment is in progress.")
    change.replicas = _original_replicas(partition)
    change.adding_replicas = change.removing_replicas = ()
    _restrict_isr(change, partition)


def _original_replicas(partition: PartitionRegistration) -> tuple[int, ...]:
    return tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)


def _restrict_isr(change: PartitionChangeBuilder, partition: PartitionRegistration) -> None:
    if not partition.isr:
        raise InvalidReplicaAssignmentError(
            "The ISR is empty: no replica is known to have all records. Run an unclean election first."
        )
    change.isr = tuple(replica for replica in partition.isr if replica in change.replicas)
    if not change.isr:
        raise InvalidReplicaAssignmentError(
            f"The ISR has only {list(partition.isr)}, which would be removed: records would be lost. Try again when "
            "a remaining replica is in the ISR; if those brokers cannot be restarted, run an unclean election."
        )


def add_replicas(state: ControllerState, topics: Iterable[str], brokers: Collection[int]) -> list[Record]:
    """Starts reassignments that add replicas on the brokers to all partitions of topics with
    leader.follows.controller.

    An ongoing reassignment continues with the additional replicas. Partitions without leader are included, because no
    replica is removed.
    """
    active = state.active_brokers()
    records: list[Record] = []
    for topic in sorted(topics):
        for partition in state.image.topics[topic].partitions:
            staying = tuple(each for each in partition.replicas if each not in partition.removing_replicas)
            added = tuple(each for each in sorted(brokers) if each not in staying)
            if added:
                change = change_builder(state, PartitionName(topic, partition.index), active)
                _set_target(change, partition, staying + added)
                record = change.build()
                if record is not None:
                    records.append(record)
    return records


def list_partition_reassignments(
    image: MetadataImage, partitions: Sequence[tuple[str, int]] | None
) -> list[OngoingReassignment]:
    """Returns the ongoing reassignments of these partitions, or of all partitions if `partitions` is None."""
    if partitions is None:
        names = [
            PartitionName(topic.name, partition.index)
            for topic in image.topics.values()
            for partition in topic.partitions
        ]
    else:
        names = [PartitionName(*each) for each in dict.fromkeys(partitions)]
    ongoing = []
    for name in names:
        partition = image.partition(*name)
        if partition is not None and partition.is_reassigning:
            ongoing.append(
                OngoingReassignment(*name, partition.replicas, partition.adding_replicas, partition.removing_replicas)
            )
    return ongoing


def plan_drain(
    replicas: Mapping[tuple[str, int], Sequence[int]],
    racks: Mapping[int, str | None],
    broker_id: int,
    controller_led_topics: Container[str] = (),
) -> list[Reassignment]:
    """Returns the reassignments that move all replicas off a broker.

    Each replica moves to a rack without a replica of the partition if possible, and to the broker with the fewest
    replicas. If the drained broker was the preferred leader, the new preferred leader is the replica whose broker is
    preferred for the fewest partitions.

    `replicas` contains the replicas of all partitions, the preferred one first. `racks` contains the rack of each
    broker that may take replicas. Replicas of `controller_led_topics` (leader.follows.controller) are removed without a
    replacement, because all other brokers of the topic have one already.
    """
    held = Counter(replica for members in replicas.values() for replica in members)
    preferred = Counter(members[0] for members in replicas.values())
    moves = []
    for (topic, index), members in sorted(replicas.items()):
        if broker_id not in members:
            continue
        staying = [replica for replica in members if replica != broker_id]
        if topic in controller_led_topics and staying:
            moves.append(Reassignment(topic, index, tuple(staying)))
            continue
        others = [each for each in racks if each != broker_id and each not in members]
        if not others:
            raise InvalidReplicationFactorError(
                f"Partition {topic}-{index} has {len(members)} replica(s), and no other broker can take the replica "
                f"on {broker_id}: add a broker, or reduce the replication factor."
            )
        taken = {racks.get(replica) for replica in staying}
        chosen = min(others, key=lambda each: (racks[each] in taken, held[each], each))
        held[chosen] += 1
        target = [chosen if replica == broker_id else replica for replica in members]
        if members[0] == broker_id:
            first = min(target, key=lambda replica: (preferred[replica], target.index(replica)))
            preferred[first] += 1
            target.remove(first)
            target.insert(0, first)
        moves.append(Reassignment(topic, index, tuple(target)))
    return moves


def plan_replication_factor(
    replicas: Mapping[tuple[str, int], Sequence[int]],
    in_sync: Mapping[tuple[str, int], Collection[int]],
    racks: Mapping[int, str | None],
    held: Mapping[int, int],
    factor: int,
) -> list[Reassignment]:
    """Returns the reassignments that give each partition `factor` replicas, without partitions that have as many.

    New replicas go to racks without a replica of the partition if possible, and to the brokers with the fewest
    replicas. Replicas that are not in sync are removed first, then those in a rack with another one, then those on the
    brokers with the most replicas. The preferred leader stays unless it is not in sync.

    `replicas` contains the replicas of the partitions to change, the preferred one first. `racks` contains the rack of
    each broker that may take replicas, and `held` the number of replicas of all topics on each broker.
    """
    if factor > len(racks):
        raise InvalidReplicationFactorError(
            f"Replication factor {factor} needs {factor} running nodes, but there are {len(racks)}."
        )
    load = Counter(held)
    moves = []
    for (topic, index), members in sorted(replicas.items()):
        if len(members) == factor:
            continue
        target = list(members)
        while len(target) > factor:
            racks_taken = Counter(racks.get(each) for each in target)
            removed = max(
                target,
                key=lambda each: (
                    each not in in_sync[topic, index],
                    each != target[0],
                    racks_taken[racks.get(each)] > 1,
                    load[each],
                    each,
                ),
            )
            target.remove(removed)
            load[removed] -= 1
        while len(target) < factor:
            taken = {racks.get(each) for each in target}
            # There are others, because the target has fewer replicas than there are brokers.
            others = [each for each in racks if each not in target]
            chosen = min(others, key=lambda each: (racks[each] in taken, load[each], each))
            target.append(chosen)
            load[chosen] += 1
        moves.append(Reassignment(topic, index, tuple(target)))
    return moves
