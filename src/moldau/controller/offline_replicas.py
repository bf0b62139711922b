"""Replicas whose logs have failed on a broker that is alive: a disk gave an error, or what is on it is damaged; or they
cannot be written for the moment, because the disk is full.

The broker says so with its heartbeats. Others lead in the place of such a replica and nobody waits for it, until the
broker has it again. One that may pass gives way only to a replica in sync that is well: it can still be read. None of
it is in the log: a new controller hears it anew.
"""

from moldau.controller.elections import elect_leaderless_partitions
from moldau.controller.partition_change_builder import (
    PartitionChangeBuilder,
    active_brokers,
    speculative_settings,
)
from moldau.controller.requests import BrokerHeartbeat
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.metadata.records import Record
from moldau.settings.effective import EffectiveSettings


def update_offline_replicas(state: ControllerState, beat: BrokerHeartbeat) -> bool:
    """From now on these are not elected; whether it is news."""
    broker = state.image.brokers.get(beat.broker_id)
    if broker is None or broker.epoch != beat.broker_epoch:
        return False
    failed = {(each.topic_id, each.partition): each.is_transient for each in beat.not_ready}
    known = state.offline_replicas.get(beat.broker_id)
    if known == (beat.broker_epoch, failed) or (known is None and not failed):
        return False
    state.offline_replicas[beat.broker_id] = (beat.broker_epoch, failed)
    return True


def remove_offline_replicas(
    state: ControllerState, settings: EffectiveSettings, beat: BrokerHeartbeat
) -> CoordinatorResult[Record, bool]:
    """The failed replicas of a broker leave the in-sync sets, as if they had lost records: they may have, unless it may
    pass. One that is in sync alone stays so, without a leader, or with itself where it may pass. What the broker has
    again, and waited for it, it leads. True: there may be more to do."""
    broker = state.image.brokers.get(beat.broker_id)
    if broker is None or broker.epoch != beat.broker_epoch or not broker.is_active:
        return CoordinatorResult([], False)
    records = _isr_removals(state, settings, beat) or elect_leaderless_partitions(
        state, settings, beat.broker_id
    )
    return CoordinatorResult(records[:RECORDS_PER_DECISION_MAX], bool(records))


def _isr_removals(state: ControllerState, settings: EffectiveSettings, beat: BrokerHeartbeat) -> list[Record]:
    records: list[Record] = []
    decided = speculative_settings(state, settings)
    active = active_brokers(state)
    for each in beat.not_ready:
        topic = state.image.topic_by_id(each.topic_id)
        if topic is None or not 0 <= each.partition < len(topic.partitions):
            continue
        partition = topic.partitions[each.partition]
        if beat.broker_id not in partition.isr and beat.broker_id not in partition.elr:
            continue
        usable = state.exclude_offline(active, topic.topic_id, each.partition)
        if beat.broker_id in usable:
            continue
        change = PartitionChangeBuilder(
            topic.topic_id,
            partition,
            min_isr=decided.topic(topic.name).min_insync_replicas,
            active=usable,
        )
        change.isr = tuple(member for member in partition.isr if member != beat.broker_id)
        if not each.is_transient:
            change.unclean_shutdown_replica = beat.broker_id
        record = change.build()
        if record is not None:
            records.append(record)
    return records
