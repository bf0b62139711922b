"""Who leads a partition when brokers come and go, and when somebody asks for an election.

A new leader is the first of the replicas that is in sync, else eligible, on an active broker. An unclean
election takes the longest log among the live replicas; the controller's driver asks them for it beforehand.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType

from moldau.controller.index import PartitionName
from moldau.controller.partition_change import (
    Kept,
    PartitionChange,
    active_brokers,
    settings_as_decided,
)
from moldau.controller.requests import ElectionType, PartitionResult
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState, bounded
from moldau.coordinator import Decision
from moldau.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    MoldauError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import NO_LEADER, PartitionImage
from moldau.metadata.records import PartitionChangeRecord, Record
from moldau.raft.messages import LogEnd
from moldau.settings.effective import EffectiveSettings

LogEnds = Mapping[PartitionName, Mapping[int, LogEnd]]
"""By partition, what its live replicas say of their logs."""

_NOT_ASKED: LogEnds = MappingProxyType({})


def leave_in_sync(
    state: ControllerState, settings: EffectiveSettings, broker_id: int, kept: Kept = Kept.EVERYTHING
) -> list[Record]:
    """A broker is fenced, shuts down, or registers anew: others lead in its place and nobody waits for it.

    If it came back with less than it vouched for, it is not counted on any more. With what was synced it has all that
    is committed, save where write.caching commits without that: there it is counted on only if nobody else is left.
    """
    active = active_brokers(state) - {broker_id}
    decided = settings_as_decided(state, settings)
    records: list[Record] = []
    for name in state.index.partitions_of(broker_id):
        partition = state.image.topics[name.topic].partitions[name.partition]
        has_everything = kept is Kept.EVERYTHING or (
            kept is Kept.SYNCED and not decided.topic(name.topic).write_caching
        )
        if broker_id not in partition.in_sync and (has_everything or broker_id not in partition.eligible):
            continue
        change = _change(state, decided, name, active)
        change.in_sync = tuple(replica for replica in partition.in_sync if replica != broker_id)
        if not has_everything:
            change.restarted_uncleanly = broker_id
            change.has_lost_everything = kept is Kept.NOTHING
        record = change.record()
        if record is not None:
            records.append(record)
    return records


def become_available(state: ControllerState, settings: EffectiveSettings, broker_id: int) -> list[Record]:
    """A broker is unfenced: it leads the leaderless partitions that it has everything committed of."""
    active = active_brokers(state)
    if not state.image.brokers[broker_id].in_controlled_shutdown:
        active.add(broker_id)
    decided = settings_as_decided(state, settings)
    records: list[Record] = []
    for name in state.index.leaderless():
        if broker_id in state.image.topics[name.topic].partitions[name.partition].replicas:
            record = _change(state, decided, name, active).record()
            if record is not None:
                records.append(record)
    return records


def elect_leaders(
    state: ControllerState,
    settings: EffectiveSettings,
    election: ElectionType,
    partitions: Sequence[tuple[str, int]] | None,
    log_ends: LogEnds = _NOT_ASKED,
    *,
    at_most: int | None = None,
) -> Decision[Record, list[PartitionResult]]:
    """As an administrator asks for it, partition by partition; of all partitions (None) those that need no
    election are not mentioned. An unclean one needs `log_ends` for what `unclean_candidates` named. After `at_most`
    elections the rest is left for another decision."""
    active = active_brokers(state)
    decided = settings_as_decided(state, settings)
    records: list[Record] = []
    results: list[PartitionResult] = []
    for name in _asked(state, partitions):
        if len(records) == at_most:
            break
        try:
            records.append(_elect(state, decided, election, name, active, log_ends.get(name)))
        except ElectionNotNeededError as error:
            if partitions is not None:
                results.append(PartitionResult(name.topic, name.partition, error))
        except MoldauError as error:
            results.append(PartitionResult(name.topic, name.partition, error))
        else:
            results.append(PartitionResult(name.topic, name.partition))
    return Decision(bounded(records), results)


def unclean_candidates(
    state: ControllerState, settings: EffectiveSettings, partitions: Sequence[tuple[str, int]] | None = None
) -> dict[PartitionName, tuple[int, ...]]:
    """Leaderless partitions that only an unclean election can help, with the live replicas to be asked for the
    end of their log. `partitions` are an administrator's wish; without, only topics that allow it count."""
    active = active_brokers(state)
    decided = settings_as_decided(state, settings)
    wanted = None if partitions is None else {PartitionName(*each) for each in partitions}
    found = {}
    for name in state.index.leaderless():
        if wanted is None:
            if not decided.topic(name.topic).unclean_leader_election_enable:
                continue
        elif name not in wanted:
            continue
        partition = state.image.topics[name.topic].partitions[name.partition]
        usable = state.without_failed(active, state.image.topics[name.topic].topic_id, name.partition)
        live = tuple(replica for replica in partition.replicas if replica in usable)
        if live and not any(
            replica in partition.in_sync or replica in partition.eligible for replica in live
        ):
            found[name] = live
    return found


def elect_uncleanly(
    state: ControllerState, settings: EffectiveSettings, log_ends: LogEnds
) -> Decision[Record, list[PartitionResult]]:
    """By the controller itself, for what `unclean_candidates` named, if that is still so and still allowed. As many
    as one decision may hold: the rest are candidates still."""
    decided = settings_as_decided(state, settings)
    wanted = [
        (topic, index)
        for topic, index in log_ends
        if topic in state.image.topics and decided.topic(topic).unclean_leader_election_enable
    ]
    return elect_leaders(
        state, settings, ElectionType.UNCLEAN, wanted, log_ends, at_most=RECORDS_PER_DECISION_MAX
    )


def settle_eligible(
    state: ControllerState, decided: EffectiveSettings, topics: Iterable[str]
) -> list[Record]:
    """min.insync.replicas is another one (`decided` has it): where enough are in sync by it, records are committed
    again, and nobody else is eligible."""
    active = active_brokers(state)
    records: list[Record] = []
    for topic in topics:
        for partition in state.image.topics[topic].partitions:
            if partition.eligible:
                record = _change(state, decided, PartitionName(topic, partition.index), active).record()
                if record is not None:
                    records.append(record)
    return records


def finish_eligible(state: ControllerState, settings: EffectiveSettings) -> Decision[Record, bool]:
    """What a controller decides that takes over with another min.insync.replicas in its own settings than the one
    before had. True when nothing is left to be done."""
    records = settle_eligible(state, settings_as_decided(state, settings), list(state.image.topics))
    return Decision(records[:RECORDS_PER_DECISION_MAX], len(records) <= RECORDS_PER_DECISION_MAX)


def _asked(state: ControllerState, partitions: Sequence[tuple[str, int]] | None) -> list[PartitionName]:
    if partitions is not None:
        return [PartitionName(*each) for each in dict.fromkeys(partitions)]
    return [
        PartitionName(topic.name, partition.index)
        for topic in state.image.topics.values()
        for partition in topic.partitions
    ]


def _elect(
    state: ControllerState,
    decided: EffectiveSettings,
    election: ElectionType,
    name: PartitionName,
    active: Container[int],
    log_ends: Mapping[int, LogEnd] | None,
) -> PartitionChangeRecord:
    partition = state.image.partition(*name)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"No such partition as {name.topic}-{name.partition}")
    if election is ElectionType.PREFERRED:
        return _prefer(state, decided, name, partition, active)
    if partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by broker {partition.leader}.")
    record = _change(state, decided, name, active).record(log_ends=log_ends)
    if record is None or record.leader < 0:
        raise EligibleLeadersNotAvailableError(
            f"No broker that has a replica of {name.topic}-{name.partition} is alive, or not all that are say where "
            "their logs end. Try again, or stop those that do not: the log of the controller names them."
        )
    return record


def _prefer(
    state: ControllerState,
    decided: EffectiveSettings,
    name: PartitionName,
    partition: PartitionImage,
    active: Container[int],
) -> PartitionChangeRecord:
    if partition.leader == partition.replicas[0]:
        raise ElectionNotNeededError(f"{name.topic}-{name.partition} is led by its preferred replica.")
    record = preferred_election(state, decided, name, active)
    if record is None:
        raise PreferredLeaderNotAvailableError(
            f"The preferred leader of {name.topic}-{name.partition}, broker {partition.replicas[0]}, "
            "is not alive or not in sync."
        )
    return record


def preferred_election(
    state: ControllerState, decided: EffectiveSettings, name: PartitionName, active: Container[int]
) -> PartitionChangeRecord | None:
    """None where the preferred replica leads already or cannot."""
    partition = state.image.topics[name.topic].partitions[name.partition]
    record = _change(state, decided, name, active).record(prefer_first=True)
    return record if record is not None and record.leader == partition.replicas[0] else None


def _change(
    state: ControllerState, decided: EffectiveSettings, name: PartitionName, active: Container[int]
) -> PartitionChange:
    topic = state.image.topics[name.topic]
    return PartitionChange(
        topic.topic_id,
        topic.partitions[name.partition],
        min_in_sync=decided.topic(name.topic).min_insync_replicas,
        active=state.without_failed(active, topic.topic_id, name.partition),
    )
