"""Replicas move to other brokers: new ones are added and catch up, then those that are to go are removed.

While that lasts a partition's replicas are the wanted ones, in their order, and behind them those that leave. It
ends with the in-sync set that has all of the wanted ones (`partition_change.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from moldau.controller.index import PartitionName
from moldau.controller.partition_change import PartitionChange, active_brokers, settings_as_decided
from moldau.controller.placement import check_manual
from moldau.controller.requests import OngoingReassignment, PartitionResult, Reassignment
from moldau.controller.state import ControllerState, bounded
from moldau.coordinator import Decision
from moldau.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    MoldauError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import ClusterImage, PartitionImage
from moldau.metadata.records import Record
from moldau.settings.effective import EffectiveSettings


def alter_reassignments(
    state: ControllerState,
    settings: EffectiveSettings,
    reassignments: Sequence[Reassignment],
    *,
    allow_rf_change: bool,
) -> Decision[Record, list[PartitionResult]]:
    """Begins, changes or cancels reassignments, partition by partition. What adds nothing is done at once."""
    active = active_brokers(state)
    decided = settings_as_decided(state, settings)
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
            change = PartitionChange(
                topic_id,
                partition,
                min_in_sync=decided.topic(name.topic).min_insync_replicas,
                active=state.without_failed(active, topic_id, name.partition),
            )
            if wanted.replicas is None:
                _cancel(change, partition)
            else:
                check_manual(wanted.replicas, state.image.brokers, None)
                if not allow_rf_change:
                    _check_count(partition, len(wanted.replicas))
                _begin(change, partition, tuple(wanted.replicas))
        except MoldauError as error:
            results[name] = PartitionResult(name.topic, name.partition, error)
        else:
            record = change.record()
            if record is not None:
                records.append(record)
            results[name] = PartitionResult(name.topic, name.partition)
    return Decision(bounded(records), list(results.values()))


def _check_count(partition: PartitionImage, wanted: int) -> None:
    count = len(partition.replicas) - len(partition.removing)
    if wanted != count:
        raise InvalidReplicationFactorError(f"The replication factor is changed from {count} to {wanted}")


def _begin(change: PartitionChange, partition: PartitionImage, target: tuple[int, ...]) -> None:
    """Towards `target` from where the partition was before any reassignment, so that this one can be cancelled too.
    What a former one was adding and nobody wants any more goes at once."""
    before = _before_reassignment(partition)
    change.adding = tuple(replica for replica in target if replica not in before)
    change.removing = tuple(replica for replica in before if replica not in target)
    change.replicas = target + change.removing
    _leave_out_of_sync(change, partition)


def _cancel(change: PartitionChange, partition: PartitionImage) -> None:
    if not partition.is_reassigning:
        raise NoReassignmentInProgressError("No partition reassignment is in progress.")
    change.replicas = _before_reassignment(partition)
    change.adding = change.removing = ()
    _leave_out_of_sync(change, partition)


def _before_reassignment(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def _leave_out_of_sync(change: PartitionChange, partition: PartitionImage) -> None:
    if not partition.in_sync:
        raise InvalidReplicaAssignmentError(
            "No replica is known to have all records, so that none can be copied. Elect a leader uncleanly first."
        )
    change.in_sync = tuple(replica for replica in partition.in_sync if replica in change.replicas)
    if not change.in_sync:
        raise InvalidReplicaAssignmentError(
            f"Only {list(partition.in_sync)}, which would go, are in sync: records would be lost. "
            "Try again when a replica that stays has caught up; if those are gone for good, elect one uncleanly."
        )


def list_reassignments(
    image: ClusterImage, partitions: Sequence[tuple[str, int]] | None
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
            found.append(OngoingReassignment(*name, partition.replicas, partition.adding, partition.removing))
    return found


def drain(
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
