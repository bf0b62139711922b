"""Batches of the metadata log: building, validating and reading them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.errors import CorruptRecordError
from moldau.raft.effects import AppendLeaderChange
from moldau.raft.messages import EpochEndOffset, VoterNode
from moldau.raft.raft_log_state import BatchSummary
from moldau.raft.snapshot_format import KRAFT_VERSION, control_record, voters_from_record, voters_record
from moldau.records import control_records as control
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    base_offset: int
    last_offset: int
    epoch: int
    """The epoch of the leader that appended the batch."""
    values: tuple[bytes, ...] = ()
    """The encoded metadata records; empty in a control batch."""
    leader_id: int | None = None
    """The new leader, if this is the control batch that starts an epoch; otherwise None."""


def read_committed_batch(batch: Batch) -> CommittedBatch:
    """Raises CorruptRecordError if the checksum is wrong."""
    verify_checksum(batch)
    values: list[bytes] = []
    leader_id = None
    for record in iterate_records(batch):
        if batch.is_control:
            change = control.decode(record)
            if isinstance(change, control.LeaderChange):
                leader_id = change.leader_id
        elif record.value is not None:
            values.append(record.value)
    return CommittedBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, tuple(values), leader_id)


def summarize_batch(batch: Batch) -> BatchSummary:
    """Returns the summary of a batch whose checksum was verified. Decodes no records except control records."""
    voters = None
    if batch.is_control:
        for record in iterate_records(batch):
            change = control.decode(record)
            if isinstance(change, control.Voters):
                voters = voters_from_record(change)
    return BatchSummary(batch.base_offset, batch.next_offset, batch.leader_epoch, voters)


def values_batch(values: Sequence[bytes], *, base_offset: int, epoch: int, timestamp: int) -> Batch:
    records = [Record(timestamp=timestamp, value=value) for value in values]
    return Batch(build_batch(records, base_offset=base_offset, leader_epoch=epoch))


def leader_change_batch(append: AppendLeaderChange, *, base_offset: int, timestamp: int) -> Batch:
    """Returns the first batch of a leader's epoch."""
    # Omit the directory ids, because a record with them has version 1, which Kafka's tools cannot read.
    voters = tuple(control.LeaderChangeVoter(voter.node_id) for voter in append.voters)
    granting_voters = tuple(voter for voter in voters if voter.id in append.granting_voters)
    change = control.LeaderChange(append.leader_id, voters, granting_voters)
    changes: list[control.ControlRecord] = [change]
    if append.includes_voters:
        changes += [control.KRaftVersion(KRAFT_VERSION), voters_record(append.voters)]
    return _control_batch(changes, base_offset, append.epoch, timestamp)


def voters_batch(voters: Sequence[VoterNode], *, base_offset: int, epoch: int, timestamp: int) -> Batch:
    return _control_batch([voters_record(voters)], base_offset, epoch, timestamp)


def batches_from_leader(data: bytes, log_end: EpochEndOffset, epoch: int) -> list[Batch]:
    """Returns the batches that the leader of `epoch` sent. Raises CorruptRecordError if they do not fit the log."""
    batches = list(split(data, allow_partial=True))
    if not batches:
        raise CorruptRecordError(f"the leader sent {len(data)} bytes without a complete batch")
    last_epoch, offset = log_end
    for batch in batches:
        verify_checksum(batch)
        if batch.base_offset != offset or batch.last_offset_delta < 0:
            raise CorruptRecordError(f"the leader sent {batch!r} to follow offset {offset}")
        if not last_epoch <= batch.leader_epoch <= epoch:
            raise CorruptRecordError(
                f"the leader of epoch {epoch} sent {batch!r} of epoch {batch.leader_epoch} after epoch {last_epoch}"
            )
        last_epoch, offset = batch.leader_epoch, batch.next_offset
    return batches


def verify_checksum(batch: Batch) -> Batch:
    if not batch.has_valid_checksum():
        raise CorruptRecordError(f"the checksum of {batch!r} in the metadata log is wrong")
    return batch


def _control_batch(changes: Sequence[control.ControlRecord], base_offset: int, epoch: int, timestamp: int) -> Batch:
    records = [control_record(change, timestamp) for change in changes]
    return Batch(build_batch(records, base_offset=base_offset, leader_epoch=epoch, control=True))
