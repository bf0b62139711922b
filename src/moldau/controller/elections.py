"""Leader elections: when brokers are fenced or unfenced, on request, and to restore preferred leaders.

The new leader is the first ISR member on an active broker. If there is none, the new leader is the first ELR member on
an active broker. On topics with leader.follows.controller, the active controller comes before all other replicas.

An unclean election elects the live replica with the longest log. The controller queries the log ends before the
election.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType

from moldau.controller.partition_change_builder import RetainedData, change_builder
from moldau.controller.partition_index import PartitionName
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
"""The log ends of the live replicas of each partition, by broker id."""

_NO_LOG_ENDS: LogEnds = MappingProxyType({})

BALANCE_ELECTIONS_MAX = 1000
"""The maximum number of preferred elections in one decision. It is limited because the clients of all moved partitions
refresh their metadata at the same time."""


def remove_broker_from_isrs(
    state: ControllerState, broker_id: int, retained: RetainedData = RetainedData.ALL
) -> list[Record]:
    """Removes a broker from all ISRs when it is fenced, shuts down or registers. Other replicas become the leaders of
    its partitions.

    `retained` says which committed records the broker still has. With NONE, the broker also leaves all ELRs. With
    SYNCED, the broker also leaves the ELRs of topics with write.caching, because only these topics commit records
    before their fsync. On these topics, the broker stays in the ISR if no other replica has all committed records.
    """
    active = state.active_brokers() - {broker_id}
    records: list[Record] = []
    for name in state.index.partitions_on(broker_id):
        partition = state.image.topics[name.topic].partitions[name.partition]
        has_everything = retained is RetainedData.ALL or (
            retained is RetainedData.SYNCED and not state.settings.topic(name.topic).write_caching
        )
        if broker_id not in partition.isr and (has_everything or broker_id not in partition.elr):
            continue
        change = change_builder(state, name, active)
        change.isr = tuple(replica for replica in partition.isr if replica != broker_id)
        if not has_everything:
            change.unclean_shutdown_replica = broker_id
            change.has_lost_all_records = retained is RetainedData.NONE
        record = change.build()
        if record is not None:
            records.append(record)
    return records


def elect_leaderless_partitions(state: ControllerState, broker_id: int) -> list[Record]:
    """Elects the broker as leader of leaderless partitions, if it has all their committed records."""
    active = state.active_brokers()
    if not state.image.brokers[broker_id].in_controlled_shutdown:
        active.add(broker_id)
    records: list[Record] = []
    for name in state.index.leaderless_partitions():
        if broker_id in state.image.topics[name.topic].partitions[name.partition].replicas:
            record = change_builder(state, name, active).build()
            if record is not None:
                records.append(record)
    return records


def elect_leaders(
    state: ControllerState,
    election: ElectionType,
    partitions: Sequence[tuple[str, int]] | None,
    log_ends: LogEnds = _NO_LOG_ENDS,
    *,
    elections_max: int | None = None,
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """Runs the elections of an ElectLeaders request and returns one result per partition.

    If `partitions` is None, all partitions are tried, and those that need no election have no result. `log_ends`
    are the log ends of the replicas that `unclean_election_candidates` returned. A partition without log ends gets no
    unclean leader. Stops after `elections_max` elections.
    """
    active = state.active_brokers()
    records: list[Record] = []
    results: list[PartitionResult] = []
    for name in _requested_partitions(state, partitions):
        if len(records) == elections_max:
            break
        try:
            records.append(_elect_leader(state, election, name, active, log_ends.get(name)))
        except ElectionNotNeededError as error:
            if partitions is not None:
                results.append(PartitionResult(name.topic, name.partition, error))
        except MoldauError as error:
            results.append(PartitionResult(name.topic, name.partition, error))
        else:
            results.append(PartitionResult(name.topic, name.partition))
    return CoordinatorResult(check_batch_size(records), results)


def unclean_election_candidates(
    state: ControllerState, partitions: Sequence[tuple[str, int]] | None = None
) -> dict[PartitionName, tuple[int, ...]]:
    """Returns the leaderless partitions that need an unclean election, with their live replicas.

    `partitions` are the partitions of an ElectLeaders request. If None, only topics with unclean.leader.election.enable
    are considered.
    """
    active = state.active_brokers()
    requested = None if partitions is None else {PartitionName(*each) for each in partitions}
    candidates = {}
    for name in state.index.leaderless_partitions():
        if requested is None:
            if not state.settings.topic(name.topic).unclean_leader_election_enable:
                continue
        elif name not in requested:
            continue
        partition = state.image.topics[name.topic].partitions[name.partition]
        usable = state.exclude_offline(active, state.image.topics[name.topic].topic_id, name.partition)
        live = tuple(replica for replica in partition.replicas if replica in usable)
        if live and not any(replica in partition.isr or replica in partition.elr for replica in live):
            candidates[name] = live
    return candidates


def elect_unclean_leaders(
    state: ControllerState, log_ends: LogEnds
) -> CoordinatorResult[Record, list[PartitionResult]]:
    """Runs automatic unclean elections, as many as fit into one decision. Skips partitions whose topic was deleted or
    no longer has unclean.leader.election.enable."""
    allowed = [
        (topic, index)
        for topic, index in log_ends
        if topic in state.image.topics and state.settings.topic(topic).unclean_leader_election_enable
    ]
    return elect_leaders(state, ElectionType.UNCLEAN, allowed, log_ends, elections_max=RECORDS_PER_DECISION_MAX)


def balance_partition_leaders(
    state: ControllerState, *, elections_max: int = BALANCE_ELECTIONS_MAX
) -> CoordinatorResult[Record, bool]:
    """Runs preferred elections for brokers whose imbalance exceeds leader.imbalance.per.broker.percentage.

    The imbalance of a broker is the share of the partitions preferring the broker that it does not lead. The response
    is True if more elections may be needed.
    """
    active = state.active_brokers()
    imbalanced = state.index.imbalanced_partitions()
    preferred = {
        name: state.preferred_leader(name.topic, state.image.topics[name.topic].partitions[name.partition])
        for name in imbalanced
    }
    imbalance = Counter(preferred.values())
    allowed = state.settings.broker.leader_imbalance_per_broker_percentage
    records: list[Record] = []
    for name in imbalanced:
        broker_id = preferred[name]
        if imbalance[broker_id] * 100 <= allowed * state.index.preferred_leader_count(broker_id):
            continue
        record = _build_preferred_election(state, name, active)
        if record is not None:
            if len(records) == elections_max:
                return CoordinatorResult(records, True)
            records.append(record)
    return CoordinatorResult(records, False)


def can_controller_lead_more(state: ControllerState) -> bool:
    """Returns whether the active controller is in the ISR of a partition that it should lead, but does not. Quick,
    because it is called after every change of the metadata."""
    broker = state.image.brokers.get(state.image.controller_id)
    return broker is not None and broker.is_active and bool(state.index.partitions_away_from_controller())


def move_leaders_to_controller(
    state: ControllerState, *, elections_max: int = BALANCE_ELECTIONS_MAX
) -> CoordinatorResult[Record, bool]:
    """Elects the active controller as leader of the partitions with leader.follows.controller, if it is active and in
    their ISR. The response is True if more elections may be needed."""
    active = state.active_brokers()
    records: list[Record] = []
    for name in sorted(state.index.partitions_away_from_controller()):
        record = _build_preferred_election(state, name, active)
        if record is not None:
            if len(records) == elections_max:
                return CoordinatorResult(records, True)
            records.append(record)
    return CoordinatorResult(records, False)


def recompute_elrs(state: ControllerState, settings: EffectiveSettings, topics: Iterable[str]) -> list[Record]:
    """Recomputes the ELRs of topics whose min.insync.replicas changed. `settings` contain the new value.

    If the ISR now has enough members, the partition commits again, and its ELR becomes empty.
    """
    active = state.active_brokers()
    records: list[Record] = []
    for topic in topics:
        for partition in state.image.topics[topic].partitions:
            if partition.elr:
                name = PartitionName(topic, partition.index)
                min_isr = settings.topic(topic).min_insync_replicas
                record = change_builder(state, name, active, min_isr=min_isr).build()
                if record is not None:
                    records.append(record)
    return records


def reconcile_elrs(state: ControllerState) -> CoordinatorResult[Record, bool]:
    """Recomputes all ELRs on a new controller, because its configured min.insync.replicas may differ from that of the
    previous controller. The response is False if another call is needed, because the number of records
    per decision is limited."""
    records = recompute_elrs(state, state.settings, list(state.image.topics))
    return CoordinatorResult(records[:RECORDS_PER_DECISION_MAX], len(records) <= RECORDS_PER_DECISION_MAX)


def _requested_partitions(state: ControllerState, partitions: Sequence[tuple[str, int]] | None) -> list[PartitionName]:
    if partitions is not None:
        return [PartitionName(*each) for each in dict.fromkeys(partitions)]
    return [
        PartitionName(topic.name, partition.index)
        for topic in state.image.topics.values()
        for partition in topic.partitions
    ]


def _elect_leader(
    state: ControllerState,
    election: ElectionType,
    name: PartitionName,
    active: Container[int],
    log_ends: Mapping[int, EpochEndOffset] | None,
) -> PartitionChangeRecord:
    partition = state.image.partition(*name)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"Partition {name.topic}-{name.partition} does not exist.")
    if election is ElectionType.PREFERRED:
        return _elect_preferred_leader(state, name, partition, active)
    if partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by broker {partition.leader}.")
    record = change_builder(state, name, active).build(log_ends=log_ends)
    if record is None or record.leader < 0:
        raise EligibleLeadersNotAvailableError(
            f"No replica of {name.topic}-{name.partition} is alive, or a live one did not return its log end. Try "
            "again, or stop the brokers that do not respond: the controller's log names them."
        )
    return record


def _elect_preferred_leader(
    state: ControllerState, name: PartitionName, partition: PartitionRegistration, active: Container[int]
) -> PartitionChangeRecord:
    preferred = state.preferred_leader(name.topic, partition)
    if partition.leader == preferred:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by its preferred replica.")
    record = _build_preferred_election(state, name, active)
    if record is None:
        raise PreferredLeaderNotAvailableError(
            f"The preferred leader of {name.topic}-{name.partition}, broker {preferred}, is not alive or not in sync."
        )
    return record


def _build_preferred_election(
    state: ControllerState, name: PartitionName, active: Container[int]
) -> PartitionChangeRecord | None:
    """Returns the record that elects the preferred replica, or None if that replica already leads or cannot lead."""
    partition = state.image.topics[name.topic].partitions[name.partition]
    record = change_builder(state, name, active).build(elect_preferred=True)
    is_elected = record is not None and record.leader == state.preferred_leader(name.topic, partition)
    return record if is_elected else None
