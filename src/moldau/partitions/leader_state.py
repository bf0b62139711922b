"""What the leader of a partition decides: where the high watermark stands, who is in sync, what a caller's epoch is
worth. Pure.

On one node the in-sync set is the node itself, so the high watermark is its own durable offset: no special
case, and nobody reads what a power cut could take back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from moldau.partitions.follower_progress import UNKNOWN, FollowerProgress

NO_EPOCH = -1


def check_epoch(current_leader_epoch: int, leader_epoch: int) -> None:
    """Refuses a caller that knows another leader epoch; NO_EPOCH is a caller that does not check."""
    if current_leader_epoch < 0 or current_leader_epoch == leader_epoch:
        return
    if current_leader_epoch < leader_epoch:
        raise FencedLeaderEpochError(f"leader epoch {current_leader_epoch} is over: it is {leader_epoch} now")
    raise UnknownLeaderEpochError(f"leader epoch {current_leader_epoch} is not known here yet")


class FollowerFetch(NamedTuple):
    """What a follower says when it fetches."""

    replica_id: int
    broker_epoch: int
    offset: int
    """Everything below it is durable there."""
    last_fetched_epoch: int
    """The leader epoch of its last record; NO_EPOCH where it has none."""
    current_leader_epoch: int
    """The leader epoch it follows."""
    start_offset: int


class IsrProposal(NamedTuple):
    """An in-sync set that was asked of the controller. Until it is known what became of it, it may be in force."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """The life of each member that the leader has seen to be in sync: one that starts anew is not the same member."""
    partition_epoch: int
    """Of the state it was thought up on."""


@dataclass(slots=True)
class LeaderState:
    replica_id: int
    image: PartitionRegistration
    """The partition as committed, as far as this leader knows."""
    brokers: Mapping[int, BrokerRegistration]
    min_isr: int = 1
    """Fewer replicas than these commit nothing."""
    high_watermark: int = 0
    """Never falls within an epoch; everything below it is durable on every member of the maximal in-sync set."""
    epoch_start: int = 0
    """Where the leader's log ended when its epoch began."""
    end_offset: int = 0
    durable_offset: int = 0
    """How far the leader's own log is on disk."""
    proposal: IsrProposal | None = None
    rejected_proposal: IsrProposal | None = None
    """One that the controller refused for what a member was then. A copy of it may still be on its way, and would be
    taken once that has passed, as long as the partition epoch is the same."""
    departing_replicas: tuple[int, ...] = ()
    """Whom an answer of the controller has taken out of the in-sync set. Whether they are eligible leaders now is not
    in the answer: until the metadata shows it, they are waited for as before."""
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    """Those who have fetched in this epoch, and those it began in sync with."""

    @classmethod
    def begin(
        cls,
        replica_id: int,
        image: PartitionRegistration,
        brokers: Mapping[int, BrokerRegistration],
        *,
        min_isr: int,
        high_watermark: int,
        end_offset: int,
        now_ms: int,
    ) -> "LeaderState":
        """A new epoch: of followers nothing is known but who was in sync. They get a whole lag time to show up."""
        followers = {each: FollowerProgress(caught_up_ms=now_ms) for each in image.isr if each != replica_id}
        return cls(
            replica_id,
            image,
            brokers,
            min_isr=min_isr,
            high_watermark=high_watermark,
            epoch_start=end_offset,
            end_offset=end_offset,
            followers=followers,
        )

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed in-sync set."""
        return self.image.isr

    def check_epoch(self, current_leader_epoch: int) -> None:
        check_epoch(current_leader_epoch, self.image.leader_epoch)

    # The high watermark

    def maximal_isr(self) -> tuple[int, ...]:
        """Whoever may be in the in-sync set, now or once a proposal is committed: any of them can be the next leader,
        so all of them must have what is committed."""
        members = dict.fromkeys((*self.image.isr, *self.departing_replicas))
        for proposal in (self.proposal, self.rejected_proposal):
            if proposal is not None:
                members.update(dict.fromkeys(proposal.isr))
        return tuple(members)

    def on_append(self, end_offset: int, now_ms: int) -> None:
        for follower in self.followers.values():
            follower.on_append(self.end_offset, now_ms)
        self.end_offset = end_offset

    def on_durable(self, offset: int) -> bool:
        """The leader's own log is on disk below `offset`; True where the high watermark moved."""
        self.durable_offset = offset
        return self.advance_high_watermark()

    def on_fetch(self, fetch: FollowerFetch, now_ms: int) -> bool:
        """A follower asks: below its offset it has everything on disk. True where the high watermark moved."""
        follower = self.followers.get(fetch.replica_id)
        if follower is None:
            follower = self.followers[fetch.replica_id] = FollowerProgress()
        follower.on_fetch(fetch.offset, fetch.start_offset, fetch.broker_epoch, self.end_offset, now_ms)
        return self.advance_high_watermark()

    def on_repeated_fetch(self, replica: int, broker_epoch: int, now_ms: int) -> bool:
        """A follower asks for the same as before; False where that says nothing, or not enough."""
        follower = self.followers.get(replica)
        if follower is None or follower.broker_epoch != broker_epoch or replica not in self.image.isr:
            return False
        follower.fetched_ms = now_ms
        return True

    def on_image(
        self, image: PartitionRegistration, brokers: Mapping[int, BrokerRegistration], min_isr: int
    ) -> bool:
        """A newer state of the same epoch. What was proposed on an older one is in it, or never will be."""
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

    def on_min_isr(self, min_isr: int) -> bool:
        self.min_isr = min_isr
        return self.advance_high_watermark()

    def on_brokers(self, brokers: Mapping[int, BrokerRegistration]) -> bool:
        self.brokers = brokers
        return self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """True where the high watermark moved."""
        if not self._can_advance():
            return False
        reached = min(self._durable_offset_of(each) for each in self._high_watermark_replicas())
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def _can_advance(self) -> bool:
        """While fewer are in sync than min.insync.replicas, those who left last are eligible leaders (KIP-966): they
        have all that is committed because nothing more is.

        Who is eligible is decided by the controller, with the min.insync.replicas that it knows. That may be another
        one than is known here, where a change of it is on its way or the nodes' files differ. If it is higher there,
        members become eligible which are not needed here, and nothing is committed while the metadata names any; if it
        is lower, nobody is eligible, and nothing is committed for want of members all the same.
        """
        return self.has_min_isr

    @property
    def has_min_isr(self) -> bool:
        return len(self.image.isr) >= self.min_isr and not self.image.elr

    def _high_watermark_replicas(self) -> list[int]:
        """Also who keeps up and is about to join: it could never reach a high watermark that does not wait for it."""
        waited_for = dict.fromkeys((self.replica_id, *self.maximal_isr()))
        for each, follower in self.followers.items():
            if each not in waited_for and follower.is_keeping_up and self._is_isr_eligible(each):
                waited_for[each] = None
        return list(waited_for)

    def _durable_offset_of(self, replica: int) -> int:
        if replica == self.replica_id:
            return self.durable_offset
        follower = self.followers.get(replica)
        return 0 if follower is None else follower.durable_offset

    def low_watermark(self, start_offset: int) -> int:
        """Where the log begins on every living replica, given where it does here; UNKNOWN while one has not said so in
        this epoch."""
        starts = [start_offset]
        for each in self.image.replicas:
            broker = self.brokers.get(each)
            if each != self.replica_id and broker is not None and not broker.fenced:
                follower = self.followers.get(each)
                starts.append(UNKNOWN if follower is None else follower.start_offset)
        return min(starts)

    # The in-sync set

    def wanted_isr(self, now_ms: int, lag_ms: int) -> tuple[int, ...] | None:
        """What the in-sync set should be, where it should be another one; None while a proposal is under way. Called
        from time to time."""
        for follower in self.followers.values():
            if now_ms - follower.fetched_ms > lag_ms:
                follower.is_keeping_up = False
        if self.proposal is not None:
            return None
        wanted = tuple(each for each in self.image.replicas if self._belongs_in_isr(each, now_ms, lag_ms))
        is_other = sorted(wanted) != sorted(self.image.isr)
        if is_other or self.image.is_recovering or self.rejected_proposal is not None:
            # A withdrawn one is done with when any change is made, be it from a set to the same.
            return wanted
        return None

    def propose(self, isr: tuple[int, ...]) -> IsrProposal:
        """From now on the high watermark waits for all of these too."""
        assert self.proposal is None, "one proposal at a time"
        epochs = tuple(self._broker_epoch(each) for each in isr)
        self.proposal = IsrProposal(isr, epochs, self.image.partition_epoch)
        return self.proposal

    def _broker_epoch(self, replica: int) -> int:
        """Of the broker that its fetches come from; UNKNOWN where none has come in this epoch."""
        if replica == self.replica_id:
            return self.brokers[replica].epoch if replica in self.brokers else UNKNOWN
        follower = self.followers.get(replica)
        return UNKNOWN if follower is None else follower.broker_epoch

    def on_alter_partition_response(self, result: IsrChangeResult) -> bool:
        """True where the high watermark moved. After most errors the proposal stays: it may have been committed, or
        another change was, and the metadata will tell which."""
        if result.error is not None:
            if isinstance(result.error, IneligibleReplicaError) and self.proposal is not None:
                self.rejected_proposal, self.proposal = self._merge_rejected(self.proposal), None
            return False
        if result.leader_epoch != self.leader_epoch or result.partition_epoch <= self.image.partition_epoch:
            # The metadata was quicker, and what is proposed by now is another change.
            return False
        self._discard_older_proposals(result.partition_epoch)
        gone = (each for each in (*self.image.isr, *self.departing_replicas) if each not in result.isr)
        self.departing_replicas = tuple(dict.fromkeys(gone))
        self.image = replace(
            self.image,
            isr=result.isr,
            partition_epoch=result.partition_epoch,
            is_recovering=result.is_recovering,
        )
        return self.advance_high_watermark()

    def _discard_older_proposals(self, partition_epoch: int) -> None:
        """What was proposed on an older state than this was made by now, or never will be."""
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
        """Whether a fetch has just brought it far enough to be in sync again."""
        follower = self.followers.get(replica)
        if follower is None or self.proposal is not None or replica in self.image.isr:
            return False
        return follower.is_keeping_up and self._has_committed_records(replica)

    def _has_committed_records(self, replica: int) -> bool:
        """It has all that is committed, and all that this leader began with; more may be committed than that says."""
        enough = max(self.high_watermark, self.epoch_start)
        return self._is_isr_eligible(replica) and self.followers[replica].durable_offset >= enough

    def _is_isr_eligible(self, replica: int) -> bool:
        """Whether it may be in sync: its broker is alive, and is the one that fetches."""
        broker = self.brokers.get(replica)
        follower = self.followers[replica]
        return broker is not None and broker.is_active and broker.epoch == follower.broker_epoch

    # Who may ask

    def check_min_isr(self) -> None:
        """Refuses a write that fewer replicas would have than it needs."""
        if not self.has_min_isr:
            raise NotEnoughReplicasError(
                f"{len(self.image.isr)} replicas are in sync where {self.min_isr} are needed"
                + (" here, and more at the controller" if len(self.image.isr) >= self.min_isr else "")
            )

    def check_follower_fetch(self, fetch: FollowerFetch) -> None:
        """Refuses whoever only says it is a follower, and followers of another epoch or a former life."""
        if fetch.current_leader_epoch < 0:
            raise FencedLeaderEpochError("a follower must say which leader epoch it follows")
        self.check_epoch(fetch.current_leader_epoch)
        if fetch.replica_id not in self.image.replicas or fetch.replica_id == self.replica_id:
            raise UnknownLeaderEpochError(f"node {fetch.replica_id} is not known here as a follower")
        broker = self.brokers.get(fetch.replica_id)
        if broker is None or fetch.broker_epoch > broker.epoch:
            raise UnknownLeaderEpochError(
                f"node {fetch.replica_id} is not known here with broker epoch {fetch.broker_epoch}"
            )
        if fetch.broker_epoch < broker.epoch:
            raise StaleBrokerEpochError(
                f"broker epoch {fetch.broker_epoch} of node {fetch.replica_id} is over: it is {broker.epoch} now"
            )
