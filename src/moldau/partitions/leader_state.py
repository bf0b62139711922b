"""The state of a partition leader: the high watermark, the ISR, and checks of callers. Pure."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from moldau.controller.requests import IsrChangeResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    NotEnoughReplicasError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from moldau.metadata.image import BrokerRegistration, PartitionRegistration
from moldau.partitions.append_times import NOTE_INTERVAL_MS, AppendTimes
from moldau.partitions.follower_progress import UNKNOWN, FollowerProgress

NO_EPOCH = -1


def check_epoch(current_leader_epoch: int, partition: PartitionRegistration) -> None:
    """Raises FencedLeaderEpochError if the caller's epoch is too old, UnknownLeaderEpochError if it is too new."""
    leader_epoch = partition.leader_epoch
    if current_leader_epoch < 0 or current_leader_epoch == leader_epoch:
        return
    if current_leader_epoch < leader_epoch:
        raise FencedLeaderEpochError(
            f"leader epoch {current_leader_epoch} is fenced: the current one is {leader_epoch}",
            partition.leader,
            leader_epoch,
        )
    raise UnknownLeaderEpochError(f"leader epoch {current_leader_epoch} is not known to this broker yet")


class FollowerFetch(NamedTuple):
    replica_id: int
    broker_epoch: int
    offset: int
    """All records below this offset are durable on the follower."""
    last_fetched_epoch: int
    """The leader epoch of the follower's last record; NO_EPOCH if there is none."""
    current_leader_epoch: int
    start_offset: int


class IsrProposal(NamedTuple):
    """An ISR that the leader has requested. Before the response arrives, the controller may have committed it."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """The broker epoch of each member; UNKNOWN if the member has not fetched in this leader epoch. The controller
    rejects the proposal if a broker has restarted since, because it may no longer be in sync."""
    partition_epoch: int
    """The partition epoch on which the proposal is based."""


@dataclass(slots=True)
class PartitionLeaderState:
    replica_id: int
    image: PartitionRegistration
    """The latest committed state of the partition that this leader knows."""
    brokers: Mapping[int, BrokerRegistration]
    min_isr: int
    """Records are committed only while the ISR has at least this many members."""
    high_watermark: int
    """All records below it are durable on every member of the maximal ISR. It never falls within a leader epoch."""
    epoch_start: int
    """The end offset of the leader's log when this leader epoch started."""
    now_ms: InitVar[int]
    """When this leader epoch started. From then on each ISR member has replica.lag.time.max.ms for its first fetch."""
    end_offset: int = field(init=False)
    durable_offset: int = 0
    """The durable offset of the leader's own log."""
    proposal: IsrProposal | None = None
    rejected_proposal: IsrProposal | None = None
    """A proposal that the controller rejected because a member is not eligible. A duplicate of the request may still
    succeed later, as long as the partition epoch is unchanged."""
    departing_replicas: tuple[int, ...] = ()
    """Replicas that left the ISR according to the controller's response. They may be in the ELR, which the response
    does not contain, so the high watermark waits for them until newer metadata arrives."""
    high_watermark_updates: int = 0
    """How often the high watermark has advanced in this leader epoch."""
    followers: dict[int, FollowerProgress] = field(init=False)
    """Followers that have fetched in this epoch, or were in the ISR at the start of the epoch."""
    append_times: AppendTimes | None = None
    """Times of appends since this broker became the leader; None before the first append."""
    next_note_ms: int = 0
    """The monotonic time from which the next append is noted in `append_times`."""

    def __post_init__(self, now_ms: int) -> None:
        self.end_offset = self.epoch_start
        members = (each for each in self.image.isr if each != self.replica_id)
        self.followers = {each: FollowerProgress(caught_up_ms=now_ms) for each in members}

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.image.isr

    def log_end_offsets(self) -> dict[int, int]:
        """Returns the log end of each replica. That of a follower is from its latest fetch; UNKNOWN if it has not
        fetched in this leader epoch."""
        fetched = {each: progress.durable_offset for each, progress in self.followers.items()}
        return {each: fetched.get(each, UNKNOWN) for each in self.image.replicas} | {self.replica_id: self.end_offset}

    # The high watermark

    def maximal_isr(self) -> tuple[int, ...]:
        """Returns all replicas that are or may be in the ISR. Each can be the next leader and needs all committed
        records."""
        if self.proposal is None and self.rejected_proposal is None and not self.departing_replicas:
            return self.image.isr
        proposed = [each.isr for each in (self.proposal, self.rejected_proposal) if each is not None]
        return tuple(dict.fromkeys(chain(self.image.isr, self.departing_replicas, *proposed)))

    def on_append(self, end_offset: int, now_ms: int) -> None:
        for follower in self.followers.values():
            follower.on_append(self.end_offset, now_ms)
        self.end_offset = end_offset

    def note_append(self, offset: int, now_ms: int, wall_ms: int) -> None:
        """Notes when the record at `offset` was appended. Called if `next_note_ms` has passed."""
        self.next_note_ms = now_ms + NOTE_INTERVAL_MS
        if self.append_times is None:
            self.append_times = AppendTimes()
        self.append_times.note(offset, wall_ms)

    def on_durable(self, offset: int) -> bool:
        """Sets the durable offset of the leader's log. Returns whether the high watermark advanced."""
        self.durable_offset = offset
        return self.advance_high_watermark()

    def on_fetch(self, fetch: FollowerFetch, now_ms: int) -> bool:
        """Records the progress that a fetch shows. Returns whether the high watermark advanced."""
        follower = self.followers.get(fetch.replica_id)
        if follower is None:
            follower = self.followers[fetch.replica_id] = FollowerProgress()
        follower.on_fetch(fetch.offset, fetch.start_offset, fetch.broker_epoch, self.end_offset, now_ms)
        return self.advance_high_watermark()

    def on_repeated_fetch(self, replica: int, broker_epoch: int, now_ms: int) -> bool:
        """Records a fetch from the same offset as before. Returns False if the fetch needs `on_fetch` instead."""
        follower = self.followers.get(replica)
        if follower is None or follower.broker_epoch != broker_epoch or replica not in self.image.isr:
            return False
        follower.fetched_ms = now_ms
        return True

    def on_image(self, image: PartitionRegistration, brokers: Mapping[int, BrokerRegistration], min_isr: int) -> bool:
        """Applies a newer partition state in the same leader epoch. Returns whether the high watermark advanced."""
        self._discard_older_proposals(image.partition_epoch)
        for each in [each for each in self.followers if each not in image.replicas]:
            del self.followers[each]
        for each in self.image.isr:
            if each not in image.isr and each in self.followers:
                self.followers[each].on_removed_from_isr()
        self.image = image
        self.departing_replicas = ()
        self.brokers = brokers
        self.min_isr = min_isr
        return self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Advances the high watermark if possible. Returns whether it advanced.

        The high watermark waits for the maximal ISR and for followers that are about to join the ISR. If it did not
        wait for the latter, they could never catch up with it.
        """
        if not self.has_min_isr:
            return False
        reached = self.durable_offset
        maximal_isr = self.maximal_isr()
        for each in maximal_isr:
            if each != self.replica_id:
                follower = self.followers.get(each)
                reached = min(reached, 0 if follower is None else follower.durable_offset)
        for each, follower in self.followers.items():
            if follower.is_keeping_up and each not in maximal_isr and self._is_isr_eligible(each):
                reached = min(reached, follower.durable_offset)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        self.high_watermark_updates += 1
        return True

    @property
    def has_min_isr(self) -> bool:
        """Whether records can be committed.

        While the ISR is smaller than min.insync.replicas, the last replicas that left it form the ELR (KIP-966). They
        must not miss committed records, so nothing is committed while the ELR has members. The ELR may have members
        although this ISR is large enough, because the controller may know a higher min.insync.replicas for a while.
        """
        return len(self.image.isr) >= self.min_isr and not self.image.elr

    def low_watermark(self, start_offset: int) -> int:
        """Returns the lowest start offset of all live replicas; UNKNOWN if one of them has not fetched in this epoch.

        `start_offset` is the start offset of the leader's log.
        """
        starts = [start_offset]
        for each in self.image.replicas:
            broker = self.brokers.get(each)
            if each != self.replica_id and broker is not None and not broker.fenced:
                follower = self.followers.get(each)
                starts.append(UNKNOWN if follower is None else follower.start_offset)
        return min(starts)

    # The ISR

    def wanted_isr(self, now_ms: int, lag_ms: int) -> tuple[int, ...] | None:
        """Returns the ISR to propose; None if the ISR should not change, or while a proposal is pending.

        Called regularly, because this call also detects followers that no longer fetch.
        """
        for follower in self.followers.values():
            if now_ms - follower.fetched_ms > lag_ms:
                follower.is_keeping_up = False
        if self.proposal is not None:
            return None
        wanted = tuple(each for each in self.image.replicas if self._belongs_in_isr(each, now_ms, lag_ms))
        is_changed = sorted(wanted) != sorted(self.image.isr)
        if is_changed or self.image.is_recovering or self.rejected_proposal is not None:
            # After a rejected proposal, propose even an unchanged ISR. Any committed change invalidates duplicates of
            # the rejected request.
            return wanted
        return None

    def propose(self, isr: tuple[int, ...]) -> IsrProposal:
        """Creates a proposal. The high watermark also waits for its members until the outcome is known."""
        assert self.proposal is None, "one proposal at a time"
        epochs = {each: follower.broker_epoch for each, follower in self.followers.items()}
        if self.replica_id in self.brokers:
            epochs[self.replica_id] = self.brokers[self.replica_id].epoch
        self.proposal = IsrProposal(isr, tuple(epochs.get(each, UNKNOWN) for each in isr), self.image.partition_epoch)
        return self.proposal

    def on_alter_partition_response(self, result: IsrChangeResult) -> bool:
        """Applies the response. Returns whether the high watermark advanced.

        After most errors the proposal stays pending until newer metadata arrives, because it may be committed.
        """
        if result.error is not None:
            if isinstance(result.error, IneligibleReplicaError) and self.proposal is not None:
                self.rejected_proposal, self.proposal = self._merge_rejected(self.proposal), None
            return False
        if result.leader_epoch != self.leader_epoch or result.partition_epoch <= self.image.partition_epoch:
            # The metadata of this broker is already at least as new as this response.
            return False
        self._discard_older_proposals(result.partition_epoch)
        removed = (each for each in (*self.image.isr, *self.departing_replicas) if each not in result.isr)
        self.departing_replicas = tuple(dict.fromkeys(removed))
        self.image = replace(
            self.image, isr=result.isr, partition_epoch=result.partition_epoch, is_recovering=result.is_recovering
        )
        return self.advance_high_watermark()

    def _discard_older_proposals(self, partition_epoch: int) -> None:
        """Discards proposals of an older partition epoch, which can no longer be committed."""
        if self.proposal is not None and self.proposal.partition_epoch < partition_epoch:
            self.proposal = None
        if self.rejected_proposal is not None and self.rejected_proposal.partition_epoch < partition_epoch:
            self.rejected_proposal = None

    def _merge_rejected(self, proposal: IsrProposal) -> IsrProposal:
        if self.rejected_proposal is None:
            return proposal
        members = dict(zip(self.rejected_proposal.isr, self.rejected_proposal.broker_epochs, strict=True))
        members.update(zip(proposal.isr, proposal.broker_epochs, strict=True))
        return IsrProposal(tuple(members), tuple(members.values()), proposal.partition_epoch)

    def _belongs_in_isr(self, replica: int, now_ms: int, lag_ms: int) -> bool:
        if replica == self.replica_id:
            return True
        follower = self.followers.get(replica)
        if follower is None or not follower.is_caught_up(self.end_offset, now_ms, lag_ms):
            return False
        if replica in self.image.isr:
            return True
        return now_ms - follower.fetched_ms <= lag_ms and self._has_committed_records(replica)

    def can_join_isr(self, replica: int) -> bool:
        """Returns whether the replica can be added to the ISR: it has caught up, and no proposal is pending."""
        follower = self.followers.get(replica)
        if follower is None or self.proposal is not None or replica in self.image.isr:
            return False
        return follower.is_keeping_up and self._has_committed_records(replica)

    def _has_committed_records(self, replica: int) -> bool:
        """Returns whether the replica is eligible for the ISR and has all records that may be committed.

        All records below the start of this epoch may be committed, because a new leader's high watermark may be stale.
        """
        committed_max = max(self.high_watermark, self.epoch_start)
        return self._is_isr_eligible(replica) and self.followers[replica].durable_offset >= committed_max

    def _is_isr_eligible(self, replica: int) -> bool:
        """Returns whether the replica's broker is active and its fetches come from the registered incarnation."""
        broker = self.brokers.get(replica)
        follower = self.followers[replica]
        return broker is not None and broker.is_active and broker.epoch == follower.broker_epoch

    # Checks of produce and fetch requests

    def check_min_isr(self) -> None:
        if not self.has_min_isr:
            raise NotEnoughReplicasError(
                f"the ISR has {len(self.image.isr)} replicas, and min.insync.replicas is {self.min_isr}"
                + (" here and higher on the controller" if len(self.image.isr) >= self.min_isr else "")
            )

    def check_follower_fetch(self, fetch: FollowerFetch) -> None:
        """Raises an error unless the fetch comes from the current incarnation of a follower in this epoch."""
        if fetch.current_leader_epoch < 0:
            raise FencedLeaderEpochError("the fetch of a follower has no leader epoch")
        check_epoch(fetch.current_leader_epoch, self.image)
        if fetch.replica_id not in self.image.replicas or fetch.replica_id == self.replica_id:
            raise UnknownLeaderEpochError(f"broker {fetch.replica_id} is not known as a follower")
        broker = self.brokers.get(fetch.replica_id)
        if broker is None or fetch.broker_epoch > broker.epoch:
            raise UnknownLeaderEpochError(
                f"broker {fetch.replica_id} is not known with broker epoch {fetch.broker_epoch}"
            )
        if fetch.broker_epoch < broker.epoch:
            raise StaleBrokerEpochError(
                f"broker epoch {fetch.broker_epoch} of broker {fetch.replica_id} is stale: it is {broker.epoch} now"
            )
