"""Transaction ablations. Each disables one safeguard of transactions in the code under test.

Some run in schedules, the others in a cluster in whose fault profile the safeguard matters. The simulation must then
report a violation.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from moldau.coordinator import runtime
from moldau.coordinator.result import CoordinatorResult
from moldau.coordinator.state_partition import TransactionalState
from moldau.errors import InvalidProducerEpochError
from moldau.groups import group_shard
from moldau.groups.shard import GroupCoordinatorShard
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.store import Log
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.logs.unstable_transactions import UnstableTransactions
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.records.batch import Batch
from moldau.server.late_requests import LateRequestFilter
from moldau.testing.simulation.ablations.cluster import Ablation, replacing, returning
from moldau.transactions import shard
from moldau.transactions.marker_sender import MarkerSender, PendingMarkers
from moldau.transactions.records import TransactionRecord
from moldau.transactions.requests import (
    AddPartitionsRequest,
    EndTransactionRequest,
    PartitionErrors,
    TransactionMarkers,
)
from moldau.transactions.shard import TransactionCoordinatorShard
from moldau.transactions.transaction_metadata import TV0, TopicPartition, TransactionMetadata, TransactionState

STALE_S = 2.0

# The coordinator

_take_markers = TransactionCoordinatorShard.take_markers


def _take_uncommitted_markers(shard_: TransactionCoordinatorShard, high_watermark: int) -> list[TransactionMarkers]:
    return _take_markers(shard_, 1 << 62)


_prepared = TransactionMetadata.prepared


def _prepared_in_same_epoch(metadata: TransactionMetadata, **arguments: Any) -> TransactionMetadata:
    return _prepared(metadata, **arguments)._replace(producer_epoch=metadata.producer_epoch, client_version=TV0)


def _fenced_in_same_epoch(metadata: TransactionMetadata, *, now_ms: int, **_: Any) -> TransactionMetadata:
    return metadata.prepared(commit=False, client_version=TV0, next_producer_id=-1, now_ms=now_ms)


def _is_complete(metadata: TransactionMetadata, request: EndTransactionRequest) -> bool:
    return metadata.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def _verify_nothing(
    shard_: TransactionCoordinatorShard, request: AddPartitionsRequest
) -> CoordinatorResult[TransactionRecord, PartitionErrors]:
    return CoordinatorResult((), dict.fromkeys(request.partitions))


_park = runtime.CoordinatorRuntime._park


def _complete_at_once(decisions: runtime.CoordinatorRuntime[Any, Any], parked: runtime._ParkedResponse) -> None:
    if isinstance(decisions._state, TransactionCoordinatorShard):
        runtime._complete(parked)
    else:
        _park(decisions, parked)


_publish = MarkerSender.publish


def _publish_later(sender: MarkerSender, delta: MetadataDelta, image: MetadataImage) -> None:
    asyncio.get_running_loop().call_later(STALE_S, _publish, sender, delta, image)


_on_written = MarkerSender._on_written


def _on_first_written(sender: MarkerSender, pending: PendingMarkers, partition: TopicPartition) -> None:
    pending.remaining.clear()
    _on_written(sender, pending, partition)


# Offsets of groups


def _replay_as_committed(state: TransactionalState[Any], batch: Batch, records: Sequence[Any]) -> None:
    if not batch.is_control:
        state.apply(records, batch.next_offset)


_fetch_offsets = GroupCoordinatorShard.fetch_offsets


def _fetch_unstable_offsets(
    shard_: GroupCoordinatorShard, group_id: str, partitions: Any, request_id: Any, **_: Any
) -> Any:
    return _fetch_offsets(shard_, group_id, partitions, request_id)


# Partitions

_check_marker = ProducerStateManager.check_marker


def _check_marker_without_version(
    producers: ProducerStateManager, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
) -> None:
    _check_marker(producers, producer_id, epoch, coordinator_epoch, TV0)


def _check_marker_without_coordinator_epoch(
    producers: ProducerStateManager, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
) -> None:
    _check_marker(producers, producer_id, epoch, 1 << 30, transaction_version)


def _refuse_equal_marker(
    producers: ProducerStateManager, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
) -> None:
    state = producers.get(producer_id)
    if state is not None and epoch == state.epoch and transaction_version > TV0:
        raise InvalidProducerEpochError("a marker needs a higher epoch")
    _check_marker(producers, producer_id, epoch, coordinator_epoch, transaction_version)


def _first_open_offset(unstable: UnstableTransactions, high_watermark: int) -> int | None:
    return next(iter(unstable._open), None)


_last_stable_offset = Log.last_stable_offset


def _one_offset_too_far(log: Log, high_watermark: int) -> int:
    return min(_last_stable_offset(log, high_watermark) + 1, high_watermark)


def _find_ended_before(index: TransactionIndex, start: int, end: int, found: list[AbortedTransaction]) -> bool:
    found += [each for each in index if start <= each.last_offset < end]
    return True


_restore = ProducerStateManager.restore


def _restore_without_transactions(producers: ProducerStateManager, data: bytes) -> None:
    _restore(producers, data)
    for state in producers:
        state.transaction_first_offset = None
    producers.unstable.clear()


@dataclass(frozen=True, slots=True)
class ScheduleAblation:
    switch: Callable[[], AbstractContextManager[object]]
    frequencies: Mapping[str, float]
    """Frequencies of the schedule with which the safeguard matters; see ScheduleFrequencies."""


def _patching(owner: object, name: str, replacement: object, **frequencies: float) -> ScheduleAblation:
    return ScheduleAblation(partial(mock.patch.object, owner, name, replacement), frequencies)


# Each comment in the mappings describes the wrong behaviour that the replacement causes.
SCHEDULE_ABLATIONS: Mapping[str, ScheduleAblation] = {
    # The coordinator sends markers before its decision is committed.
    "marker-before-commit": _patching(
        TransactionCoordinatorShard, "take_markers", _take_uncommitted_markers, replication=3, failover=1.5, crash=0.3
    ),
    # The epoch stays the same from transaction to transaction.
    "transaction-epoch": _patching(TransactionMetadata, "prepared", _prepared_in_same_epoch),
    # A timeout does not fence the producer.
    "timeout-epoch": _patching(TransactionMetadata, "fenced", _fenced_in_same_epoch),
    # Every EndTxn after the end of a transaction counts as a repetition of the one that ended it.
    "end-retry": _patching(
        shard, "_is_retry", _is_complete, start=0.4, late_chance=0.12, late_delivery=3, replication=14, tv1_chance=0
    ),
    # The coordinator confirms every transaction that a leader asks about.
    "verification": _patching(TransactionCoordinatorShard, "verify_partitions", _verify_nothing, tv1_chance=0.8),
    # A batch that waits for its verification is appended even if its transaction has ended meanwhile.
    "verification-guard": _patching(ProducerStateManager, "_invalidate_guards", returning(None), tv1_chance=0.8),
    # A marker ends a transaction that has the epoch of the marker, which is a later one than its own.
    "marker-epoch": _patching(ProducerStateManager, "check_marker", _check_marker_without_version),
    # A repeated marker is refused.
    "repeated-marker": _patching(ProducerStateManager, "check_marker", _refuse_equal_marker),
    # Markers of earlier coordinators are accepted.
    "coordinator-epoch": _patching(
        ProducerStateManager,
        "check_marker",
        _check_marker_without_coordinator_epoch,
        tv1_chance=1,
        failover=1.5,
        late_chance=0.12,
        crash=0,
        start=0.1,
        replication=14,
    ),
    # Requests without TV2 are executed even if they were repeated on a newer connection.
    "late-requests": _patching(LateRequestFilter, "check", returning(None), tv1_chance=0.8),
    # The last stable offset passes a transaction whose marker is not replicated.
    "unreplicated-markers": _patching(UnstableTransactions, "first_offset", _first_open_offset),
    # Consumers with read_committed get the first record of an open transaction.
    "last-stable-offset": _patching(Log, "last_stable_offset", _one_offset_too_far),
    # Fetch returns only the aborted transactions that have ended within the returned records.
    "aborted-search": _patching(TransactionIndex, "find", _find_ended_before),
}

ABLATIONS: Mapping[str, Ablation] = {
    # Producer snapshots have no open transactions.
    "transactions-in-snapshots": replacing(ProducerStateManager, "restore", _restore_without_transactions, "kills"),
    # The transaction coordinator responds when its records are written, before they are committed.
    "transaction-before-durable": replacing(runtime.CoordinatorRuntime, "_park", _complete_at_once, "power cuts"),
    # The coordinator sends markers with an image that is older than its transactions.
    "stale-image": replacing(MarkerSender, "publish", _publish_later, "kills"),
    # A transaction is complete when one partition has its marker.
    "all-markers": replacing(MarkerSender, "_on_written", _on_first_written, "network"),
    # A group coordinator takes offsets of open transactions for committed ones when it loads its groups.
    "pending-offsets": replacing(group_shard, "replay_batch", _replay_as_committed, "kills"),
    # OffsetFetch ignores require_stable: it returns the offset from before an open transaction that commits another.
    "require-stable": replacing(GroupCoordinatorShard, "fetch_offsets", _fetch_unstable_offsets, "rejoins"),
}
