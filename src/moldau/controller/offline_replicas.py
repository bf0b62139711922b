"""Offline replicas: replicas on a live broker that have a failed log or a full disk.

Brokers report offline replicas in heartbeats (`ControllerState.update_offline_replicas`). An offline replica leaves the
ISR and cannot lead until the broker reports the replica as online.

A replica is transiently offline if only its disk is full. It can still be read, so it leaves the ISR only if another
ISR member is online.
"""

from moldau.controller.elections import elect_leaderless_partitions
from moldau.controller.partition_change_builder import change_builder
from moldau.controller.partition_index import PartitionName
from moldau.controller.requests import BrokerHeartbeat
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.metadata.records import Record


def remove_offline_replicas(state: ControllerState, beat: BrokerHeartbeat) -> CoordinatorResult[Record, bool]:
    """Removes the broker's offline replicas from the ISRs. Then elects the broker for leaderless partitions that it can
    lead.

    An offline replica that is not transiently offline is treated as if it had lost records. The only ISR member stays
    in the ISR. If that member is transiently offline, it stays the leader; otherwise the partition has no leader.

    The response is True if the caller has to submit the decision again.
    """
    broker = state.image.brokers.get(beat.broker_id)
    if broker is None or broker.epoch != beat.broker_epoch or not broker.is_active:
        return CoordinatorResult([], False)
    records = _isr_removals(state, beat) or elect_leaderless_partitions(state, beat.broker_id)
    return CoordinatorResult(records[:RECORDS_PER_DECISION_MAX], bool(records))


def _isr_removals(state: ControllerState, beat: BrokerHeartbeat) -> list[Record]:
    records: list[Record] = []
    active = state.active_brokers()
    for each in beat.not_ready:
        topic = state.image.topic_by_id(each.topic_id)
        if topic is None or not 0 <= each.partition < len(topic.partitions):
            continue
        partition = topic.partitions[each.partition]
        if beat.broker_id not in partition.isr and beat.broker_id not in partition.elr:
            continue
        if beat.broker_id in state.exclude_offline(active, topic.topic_id, each.partition):
            continue
        change = change_builder(state, PartitionName(topic.name, each.partition), active)
        change.isr = tuple(member for member in partition.isr if member != beat.broker_id)
        if not each.is_transient:
            change.unclean_shutdown_replica = beat.broker_id
        record = change.build()
        if record is not None:
            records.append(record)
    return records
