"""Who leads a partition when brokers come and go, and when somebody asks for an election.

A new leader is the first of the replicas that is in sync, else eligible, on an active broker. An unclean
election takes the longest log among the live replicas; the controller's driver asks them for it beforehand.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType

from moldau.controller.index import PartitionName
from moldau.controller.partition_change_builder import (
    PartitionChangeBuilder,
    RetainedData,
    active_brokers,
    speculative_settings,
)
from moldau.controller.requests import ElectionType, PartitionResult
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState, check_batch_size
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    MoldauError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.metadata.records import PartitionChangeRecord, Record
from moldau.raft.messages import EpochEndOffset
from moldau.settings.effective import EffectiveSettings

LogEnds = Mapping[PartitionName, Mapping[int, EpochEndOffset]]
"""By partition, what its live replicas say of their logs."""

_NO_LOG_ENDS: LogEnds = MappingProxyType({})


def remove_broker_from_isrs(
    state: ControllerState, settings: EffectiveSettings, broker_id: int, kept: RetainedData = RetainedData.ALL
) -> list[Record]:
    """A broker is fenced, shuts down, or registers anew: others lead in its place and nobody waits for it.

    If it came back with less than it vouched for, it is not counted on any more. With what was synced it has all that
    is committed, save where write.caching commits without that: there it is counted on only if nobody else is left.
    """
    active = active_brokers(state) - {broker_id}
    decided = speculative_settings(state, settings)
    records: list[Record] = []
    for name in state.index.partitions_on(broker_id):
        partition = state.image.topics[name.topic].partitions[name.partition]
        has_everything = kept is RetainedData.ALL or (
            kept is RetainedData.SYNCED and not decided.topic(name.topic).write_caching
        )
        if broker_id not in partition.isr and (has_everything or broker_id not in partition.elr):
            continue
        change = _change_builder(state, decided, name, active)
        change.isr = tuple(replica for replica in partition.isr if replica != broker_id)
        if not has_everything:
            change.unclean_shutdown_replica = broker_id
            change.has_lost_all_records = kept is RetainedData.NONE
        record = change.build()
        if record is not None:
            records.append(record)
    return records


def elect_leaderless_partitions(
    state: ControllerState, settings: EffectiveSettings, broker_id: int
) -> list[Record]:
    """A broker is unfenced: it leads the leaderless partitions that it has everything committed of."""
    active = active_brokers(state)
    if not state.image.brokers[broker_id].in_controlled_shutdown:
        active.add(broker_id)
    decided = speculative_settings(state, settings)
    records: list[Record] = []
    for name in state.index.leaderless_partitions():
        if broker_id in state.image.topics[name.topic].partitions[name.partition].replicas:
            record = _change_builder(state, decided, name, active).build()
            if record is not None:
                records.append(record)
    return records


def elect_leaders(
    state: ControllerState,
    settings: EffectiveSettings,
    election: ElectionType,
    partitions: Sequence[tuple[str, int]] | None,
    log_ends: LogEnds = _NO_LOG_ENDS,
    *,
    elections_max: int | None = None,
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """As an administrator asks for it, partition by partition; of all partitions (None) those that need no
    election are not mentioned. An unclean one needs `log_ends` for what `unclean_election_candidates` named.
    After `elections_max`
    elections the rest is left for another decision."""
    active = active_brokers(state)
    decided = speculative_settings(state, settings)
    records: list[Record] = []
    results: list[PartitionResult] = []
    for name in _requested_partitions(state, partitions):
        if len(records) == elections_max:
            break
        try:
            records.append(_elect_leader(state, decided, election, name, active, log_ends.get(name)))
        except ElectionNotNeededError as error:
            if partitions is not None:
                results.append(PartitionResult(name.topic, name.partition, error))
        except MoldauError as error:
            results.append(PartitionResult(name.topic, name.partition, error))
        else:
            results.append(PartitionResult(name.topic, name.partition))
    return CoordinatorResult(check_batch_size(records), results)


def unclean_election_candidates(
    state: ControllerState, settings: EffectiveSettings, partitions: Sequence[tuple[str, int]] | None = None
) -> dict[PartitionName, tuple[int, ...]]:
    """Leaderless partitions that only an unclean election can help, with the live replicas to be asked for the
    end of their log. `partitions` are an administrator's wish; without, only topics that allow it count."""
    active = active_brokers(state)
    decided = speculative_settings(state, settings)
    wanted = None if partitions is None else {PartitionName(*each) for each in partitions}
    found = {}
    for name in state.index.leaderless_partitions():
        if wanted is None:
            if not decided.topic(name.topic).unclean_leader_election_enable:
                continue
        elif name not in wanted:
            continue
        partition = state.image.topics[name.topic].partitions[name.partition]
        usable = state.exclude_offline(active, state.image.topics[name.topic].topic_id, name.partition)
        live = tuple(replica for replica in partition.replicas if replica in usable)
        if live and not any(replica in partition.isr or replica in partition.elr for replica in live):
            found[name] = live
    return found


def elect_unclean_leaders(
    state: ControllerState, settings: EffectiveSettings, log_ends: LogEnds
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """By the controller itself, for what `unclean_election_candidates` named, if that is still so and still
    allowed. As many
    as one decision may hold: the rest are candidates still."""
    decided = speculative_settings(state, settings)
    wanted = [
        (topic, index)
        for topic, index in log_ends
        if topic in state.image.topics and decided.topic(topic).unclean_leader_election_enable
    ]
    return elect_leaders(
        state, settings, ElectionType.UNCLEAN, wanted, log_ends, elections_max=RECORDS_PER_DECISION_MAX
    )


def recompute_elrs(state: ControllerState, decided: EffectiveSettings, topics: Iterable[str]) -> list[Record]:
    """min.insync.replicas is another one (`decided` has it): where enough are in sync by it, records are committed
    again, and nobody else is eligible."""
    active = active_brokers(state)
    records: list[Record] = []
    for topic in topics:
        for partition in state.image.topics[topic].partitions:
            if partition.elr:
                record = _change_builder(
                    state, decided, PartitionName(topic, partition.index), active
                ).build()
                if record is not None:
                    records.append(record)
    return records


def reconcile_elrs(state: ControllerState, settings: EffectiveSettings) -> CoordinatorResult[Record, bool]:
    """What a controller decides that takes over with another min.insync.replicas in its own settings than the one
    before had. True when nothing is left to be done."""
    records = recompute_elrs(state, speculative_settings(state, settings), list(state.image.topics))
    return CoordinatorResult(records[:RECORDS_PER_DECISION_MAX], len(records) <= RECORDS_PER_DECISION_MAX)


def _requested_partitions(
    state: ControllerState, partitions: Sequence[tuple[str, int]] | None
) -> list[PartitionName]:
    if partitions is not None:
        return [PartitionName(*each) for each in dict.fromkeys(partitions)]
    return [
        PartitionName(topic.name, partition.index)
        for topic in state.image.topics.values()
        for partition in topic.partitions
    ]


def _elect_leader(
    state: ControllerState,
    decided: EffectiveSettings,
    election: ElectionType,
    name: PartitionName,
    active: Container[int],
    log_ends: Mapping[int, EpochEndOffset] | None,
) -> PartitionChangeRecord:
    partition = state.image.partition(*name)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"No such partition as {name.topic}-{name.partition}")
    if election is ElectionType.PREFERRED:
        return _elect_preferred_leader(state, decided, name, partition, active)
    if partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by broker {partition.leader}.")
    record = _change_builder(state, decided, name, active).build(log_ends=log_ends)
    if record is None or record.leader < 0:
        raise EligibleLeadersNotAvailableError(
            f"No broker that has a replica of {name.topic}-{name.partition} is alive, or not all that are say where "
            "their logs end. Try again, or stop those that do not: the log of the controller names them."
        )
    return record


def _elect_preferred_leader(
    state: ControllerState,
    decided: EffectiveSettings,
    name: PartitionName,
    partition: PartitionRegistration,
    active: Container[int],
) -> PartitionChangeRecord:
    if partition.leader == partition.replicas[0]:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by its preferred replica.")
    record = build_preferred_election(state, decided, name, active)
    if record is None:
        raise PreferredLeaderNotAvailableError(
            f"The preferred leader of {name.topic}-{name.partition}, broker {partition.replicas[0]}, "
            "is not alive or not in sync."
        )
    return record


def build_preferred_election(
    state: ControllerState, decided: EffectiveSettings, name: PartitionName, active: Container[int]
) -> PartitionChangeRecord | None:
    """None where the preferred replica leads already or cannot."""
    partition = state.image.topics[name.topic].partitions[name.partition]
    record = _change_builder(state, decided, name, active).build(elect_preferred=True)
    return record if record is not None and record.leader == partition.replicas[0] else None


def _change_builder(
    state: ControllerState, decided: EffectiveSettings, name: PartitionName, active: Container[int]
) -> PartitionChangeBuilder:
    topic = state.image.topics[name.topic]
    return PartitionChangeBuilder(
        topic.topic_id,
        topic.partitions[name.partition],
        min_isr=decided.topic(name.topic).min_insync_replicas,
        active=state.exclude_offline(active, topic.topic_id, name.partition),
    )
