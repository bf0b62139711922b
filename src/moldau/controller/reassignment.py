"""Replicas move to other brokers: new ones are added and catch up, then those that are to go are removed.

While that lasts a partition's replicas are the wanted ones, in their order, and behind them those that leave. It
ends with the in-sync set that has all of the wanted ones (`partition_change.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from moldau.controller.index import PartitionName
from moldau.controller.partition_change_builder import (
    PartitionChangeBuilder,
    active_brokers,
    speculative_settings,
)
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
from moldau.settings.effective import EffectiveSettings


def alter_partition_reassignments(
    state: ControllerState,
    settings: EffectiveSettings,
    reassignments: Sequence[Reassignment],
    *,
    allow_rf_change: bool,
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """Begins, changes or cancels reassignments, partition by partition. What adds nothing is done at once."""
    active = active_brokers(state)
    decided = speculative_settings(state, settings)
    times_named = Counter((wanted.topic, wanted.partition) for wanted in reassignments)
    records: list[Record] = []
    results: dict[PartitionName, PartitionResult] = {}
    for wanted in reassignments:
        name = PartitionName(wanted.topic, wanted.partition)
        try:
            if times_named[name] > 1:
                raise InvalidRequestError("A partition is named twice.")
            partition = state.image.partition(*name)
            if partition is None:
                raise UnknownTopicOrPartitionError(f"Unable to find partition {name.topic}:{name.partition}.")
            topic_id = state.image.topics[name.topic].topic_id
            change = PartitionChangeBuilder(
                topic_id,
                partition,
                min_isr=decided.topic(name.topic).min_insync_replicas,
                active=state.exclude_offline(active, topic_id, name.partition),
            )
            if wanted.replicas is None:
                _cancel_reassignment(change, partition)
            else:
                validate_manual_assignment(wanted.replicas, state.image.brokers, None)
                if not allow_rf_change:
                    _check_replication_factor(partition, len(wanted.replicas))
                _start_reassignment(change, partition, tuple(wanted.replicas))
        except MoldauError as error:
            results[name] = PartitionResult(name.topic, name.partition, error)
        else:
            record = change.build()
            if record is not None:
                records.append(record)
            results[name] = PartitionResult(name.topic, name.partition)
    return CoordinatorResult(check_batch_size(records), list(results.values()))


def _check_replication_factor(partition: PartitionRegistration, wanted: int) -> None:
    count = len(partition.replicas) - len(partition.removing_replicas)
    if wanted != count:
        raise InvalidReplicationFactorError(f"The replication factor is changed from {count} to {wanted}")


def _start_reassignment(
    change: PartitionChangeBuilder, partition: PartitionRegistration, target: tuple[int, ...]
) -> None:
    """Towards `target` from where the partition was before any reassignment, so that this one can be cancelled too.
    What a former one was adding and nobody wants any more goes at once."""
    before = _original_replicas(partition)
    change.adding_replicas = tuple(replica for replica in target if replica not in before)
    change.removing_replicas = tuple(replica for replica in before if replica not in target)
    change.replicas = target + change.removing_replicas
    _restrict_isr(change, partition)


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
            "No replica is known to have all records, so that none can be copied. Elect a leader uncleanly first."
        )
    change.isr = tuple(replica for replica in partition.isr if replica in change.replicas)
    if not change.isr:
        raise InvalidReplicaAssignmentError(
            f"Only {list(partition.isr)}, which would go, are in sync: records would be lost. "
            "Try again when a replica that stays has caught up; if those are gone for good, elect one uncleanly."
        )


def list_partition_reassignments(
    image: MetadataImage, partitions: Sequence[tuple[str, int]] | None
) -> list[OngoingReassignment]:
    """Those under way, of all partitions or of these; who is not being reassigned is not mentioned."""
    if partitions is None:
        asked = [
            PartitionName(topic.name, partition.index)
            for topic in image.topics.values()
            for partition in topic.partitions
        ]
    else:
        asked = [PartitionName(*each) for each in dict.fromkeys(partitions)]
    found = []
    for name in asked:
        partition = image.partition(*name)
        if partition is not None and partition.is_reassigning:
            found.append(
                OngoingReassignment(
                    *name, partition.replicas, partition.adding_replicas, partition.removing_replicas
                )
            )
    return found


def plan_drain(
    replicas: Mapping[tuple[str, int], Sequence[int]],
    racks: Mapping[int, str | None],
    broker_id: int,
) -> list[Reassignment]:
    """What moves every replica off a broker: each to the broker that has fewest, in a rack that has none if there
    is one. Where the broker was preferred to lead, whoever of the rest is preferred least often takes that.

    `replicas` are those of all partitions by topic and index, the first preferred; `racks` are the brokers that may
    take replicas. The same input gives the same moves.
    """
    held = Counter(replica for members in replicas.values() for replica in members)
    preferred = Counter(members[0] for members in replicas.values())
    moves = []
    for (topic, index), members in sorted(replicas.items()):
        if broker_id not in members:
            continue
        staying = [replica for replica in members if replica != broker_id]
        others = [each for each in racks if each != broker_id and each not in members]
        if not others:
            raise InvalidReplicationFactorError(
                f"Partition {topic}-{index} has {len(members)} replica(s), and no broker is left to take the one "
                f"on {broker_id}: add a broker, or give the topic fewer replicas."
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
