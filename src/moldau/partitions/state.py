"""What the leader of a partition decides: where the high watermark stands, who is in sync, what a caller's epoch is
worth. Pure.

On one node the in-sync set is the node itself, so the high watermark is its own durable offset: no special
case, and nobody reads what a power cut could take back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moldau.controller.requests import InSyncResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    NotEnoughReplicasError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from moldau.metadata.image import BrokerImage, PartitionImage
from moldau.partitions.progress import UNKNOWN, Progress

NO_EPOCH = -1


def check_epoch(known_epoch: int, leader_epoch: int) -> None:
    """Refuses a caller that knows another leader epoch; NO_EPOCH is a caller that does not check."""
    if known_epoch < 0 or known_epoch == leader_epoch:
        return
    if known_epoch < leader_epoch:
        raise FencedLeaderEpochError(f"leader epoch {known_epoch} is over: it is {leader_epoch} now")
    raise UnknownLeaderEpochError(f"leader epoch {known_epoch} is not known here yet")


class ReplicaFetch(NamedTuple):
    """What a follower says when it fetches."""

    replica_id: int
    broker_epoch: int
    offset: int
    """Everything below it is durable there."""
    last_fetched_epoch: int
    """The leader epoch of its last record; NO_EPOCH where it has none."""
    known_epoch: int
    """The leader epoch it follows."""
    start_offset: int


class Proposal(NamedTuple):
    """An in-sync set that was asked of the controller. Until it is known what became of it, it may be in force."""

    in_sync: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """The life of each member that the leader has seen to be in sync: one that starts anew is not the same member."""
    partition_epoch: int
    """Of the state it was thought up on."""


@dataclass(slots=True)
class LeaderState:
    replica_id: int
    image: PartitionImage
    """The partition as committed, as far as this leader knows."""
    brokers: Mapping[int, BrokerImage]
    min_in_sync: int = 1
    """Fewer replicas than these commit nothing."""
    high_watermark: int = 0
    """Never falls within an epoch; everything below it is durable on every member of the maximal in-sync set."""
    epoch_start: int = 0
    """Where the leader's log ended when its epoch began."""
    end_offset: int = 0
    durable_offset: int = 0
    """How far the leader's own log is on disk."""
    proposal: Proposal | None = None
    withdrawn: Proposal | None = None
    """One that the controller refused for what a member was then. A copy of it may still be on its way, and would be
    taken once that has passed, as long as the partition epoch is the same."""
    leaving: tuple[int, ...] = ()
    """Whom an answer of the controller has taken out of the in-sync set. Whether they are eligible leaders now is not
    in the answer: until the metadata shows it, they are waited for as before."""
    followers: dict[int, Progress] = field(default_factory=dict)
    """Those who have fetched in this epoch, and those it began in sync with."""

    @classmethod
    def begin(
        cls,
        replica_id: int,
        image: PartitionImage,
        brokers: Mapping[int, BrokerImage],
        *,
        min_in_sync: int,
        high_watermark: int,
        end_offset: int,
        now_ms: int,
    ) -> "LeaderState":
        """A new epoch: of followers nothing is known but who was in sync. They get a whole lag time to show up."""
        followers = {each: Progress(caught_up_ms=now_ms) for each in image.in_sync if each != replica_id}
        return cls(
            replica_id,
            image,
            brokers,
            min_in_sync=min_in_sync,
            high_watermark=high_watermark,
            epoch_start=end_offset,
            end_offset=end_offset,
            followers=followers,
        )

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The committed in-sync set."""
        return self.image.in_sync

    def check_epoch(self, known_epoch: int) -> None:
        check_epoch(known_epoch, self.image.leader_epoch)

    # The high watermark

    def maximal_in_sync(self) -> tuple[int, ...]:
        """Whoever may be in the in-sync set, now or once a proposal is committed: any of them can be the next leader,
        so all of them must have what is committed."""
        members = dict.fromkeys((*self.image.in_sync, *self.leaving))
        for proposal in (self.proposal, self.withdrawn):
            if proposal is not None:
                members.update(dict.fromkeys(proposal.in_sync))
        return tuple(members)

    def on_appended(self, end_offset: int, now_ms: int) -> None:
        for follower in self.followers.values():
            follower.on_append(self.end_offset, now_ms)
        self.end_offset = end_offset

    def on_durable(self, offset: int) -> bool:
        """The leader's own log is on disk below `offset`; True where the high watermark moved."""
        self.durable_offset = offset
        return self.advance()

    def on_fetch(self, fetch: ReplicaFetch, now_ms: int) -> bool:
        """A follower asks: below its offset it has everything on disk. True where the high watermark moved."""
        follower = self.followers.get(fetch.replica_id)
        if follower is None:
            follower = self.followers[fetch.replica_id] = Progress()
        follower.on_fetch(fetch.offset, fetch.start_offset, fetch.broker_epoch, self.end_offset, now_ms)
        return self.advance()

    def on_same_fetch(self, replica: int, broker_epoch: int, now_ms: int) -> bool:
        """A follower asks for the same as before; False where that says nothing, or not enough."""
        follower = self.followers.get(replica)
        if follower is None or follower.broker_epoch != broker_epoch or replica not in self.image.in_sync:
            return False
        follower.fetched_ms = now_ms
        return True

    def on_image(self, image: PartitionImage, brokers: Mapping[int, BrokerImage], min_in_sync: int) -> bool:
        """A newer state of the same epoch. What was proposed on an older one is in it, or never will be."""
        self._settle(image.partition_epoch)
        for each in [each for each in self.followers if each not in image.replicas]:
            del self.followers[each]
        for each in self.image.in_sync:
            if each not in image.in_sync and each in self.followers:
                self.followers[each].put_out()
        self.image = image
        self.leaving = ()
        self.brokers = brokers
        self.min_in_sync = min_in_sync
        return self.advance()

    def on_min_in_sync(self, min_in_sync: int) -> bool:
        self.min_in_sync = min_in_sync
        return self.advance()

    def on_brokers(self, brokers: Mapping[int, BrokerImage]) -> bool:
        self.brokers = brokers
        return self.advance()

    def advance(self) -> bool:
        """True where the high watermark moved."""
        if not self._may_advance():
            return False
        reached = min(self._safe_offset(each) for each in self._waited_for())
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def _may_advance(self) -> bool:
        """While fewer are in sync than min.insync.replicas, those who left last are eligible leaders (KIP-966): they
        have all that is committed because nothing more is.

        Who is eligible is decided by the controller, with the min.insync.replicas that it knows. That may be another
        one than is known here, where a change of it is on its way or the nodes' files differ. If it is higher there,
        members become eligible which are not needed here, and nothing is committed while the metadata names any; if it
        is lower, nobody is eligible, and nothing is committed for want of members all the same.
        """
        return self.has_enough_in_sync

    @property
    def has_enough_in_sync(self) -> bool:
        return len(self.image.in_sync) >= self.min_in_sync and not self.image.eligible

    def _waited_for(self) -> list[int]:
        """Also who keeps up and is about to join: it could never reach a high watermark that does not wait for it."""
        waited_for = dict.fromkeys((self.replica_id, *self.maximal_in_sync()))
        for each, follower in self.followers.items():
            if each not in waited_for and follower.is_keeping_up and self._is_eligible(each):
                waited_for[each] = None
        return list(waited_for)

    def _safe_offset(self, replica: int) -> int:
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

    def wanted_in_sync(self, now_ms: int, lag_ms: int) -> tuple[int, ...] | None:
        """What the in-sync set should be, where it should be another one; None while a proposal is under way. Called
        from time to time."""
        for follower in self.followers.values():
            if now_ms - follower.fetched_ms > lag_ms:
                follower.is_keeping_up = False
        if self.proposal is not None:
            return None
        wanted = tuple(each for each in self.image.replicas if self._belongs_in_sync(each, now_ms, lag_ms))
        is_other = sorted(wanted) != sorted(self.image.in_sync)
        if is_other or self.image.is_recovering or self.withdrawn is not None:
            # A withdrawn one is done with when any change is made, be it from a set to the same.
            return wanted
        return None

    def propose(self, in_sync: tuple[int, ...]) -> Proposal:
        """From now on the high watermark waits for all of these too."""
        assert self.proposal is None, "one proposal at a time"
        epochs = tuple(self._broker_epoch_of(each) for each in in_sync)
        self.proposal = Proposal(in_sync, epochs, self.image.partition_epoch)
        return self.proposal

    def _broker_epoch_of(self, replica: int) -> int:
        """Of the broker that its fetches come from; UNKNOWN where none has come in this epoch."""
        if replica == self.replica_id:
            return self.brokers[replica].epoch if replica in self.brokers else UNKNOWN
        follower = self.followers.get(replica)
        return UNKNOWN if follower is None else follower.broker_epoch

    def on_in_sync_answer(self, result: InSyncResult) -> bool:
        """True where the high watermark moved. After most errors the proposal stays: it may have been committed, or
        another change was, and the metadata will tell which."""
        if result.error is not None:
            if isinstance(result.error, IneligibleReplicaError) and self.proposal is not None:
                self.withdrawn, self.proposal = self._withdraw(self.proposal), None
            return False
        if result.leader_epoch != self.leader_epoch or result.partition_epoch <= self.image.partition_epoch:
            # The metadata was quicker, and what is proposed by now is another change.
            return False
        self._settle(result.partition_epoch)
        gone = (each for each in (*self.image.in_sync, *self.leaving) if each not in result.in_sync)
        self.leaving = tuple(dict.fromkeys(gone))
        self.image = replace(
            self.image,
            in_sync=result.in_sync,
            partition_epoch=result.partition_epoch,
            is_recovering=result.is_recovering,
        )
        return self.advance()

    def _settle(self, partition_epoch: int) -> None:
        """What was proposed on an older state than this was made by now, or never will be."""
        if self.proposal is not None and self.proposal.partition_epoch < partition_epoch:
            self.proposal = None
        if self.withdrawn is not None and self.withdrawn.partition_epoch < partition_epoch:
            self.withdrawn = None

    def _withdraw(self, proposal: Proposal) -> Proposal:
        if self.withdrawn is None:
            return proposal
        members = dict(zip(self.withdrawn.in_sync, self.withdrawn.broker_epochs, strict=True))
        members.update(zip(proposal.in_sync, proposal.broker_epochs, strict=True))
        return Proposal(tuple(members), tuple(members.values()), proposal.partition_epoch)

    def _belongs_in_sync(self, replica: int, now_ms: int, lag_ms: int) -> bool:
        if replica == self.replica_id:
            return True
        follower = self.followers.get(replica)
        if follower is None or not follower.is_caught_up(self.end_offset, now_ms, lag_ms):
            return False
        if replica in self.image.in_sync:
            return True
        return now_ms - follower.fetched_ms <= lag_ms and self._may_be_in_sync(replica)

    def may_join(self, replica: int) -> bool:
        """Whether a fetch has just brought it far enough to be in sync again."""
        follower = self.followers.get(replica)
        if follower is None or self.proposal is not None or replica in self.image.in_sync:
            return False
        return follower.is_keeping_up and self._may_be_in_sync(replica)

    def _may_be_in_sync(self, replica: int) -> bool:
        """It has all that is committed, and all that this leader began with; more may be committed than that says."""
        enough = max(self.high_watermark, self.epoch_start)
        return self._is_eligible(replica) and self.followers[replica].durable_offset >= enough

    def _is_eligible(self, replica: int) -> bool:
        """Whether it may be in sync: its broker is alive, and is the one that fetches."""
        broker = self.brokers.get(replica)
        follower = self.followers[replica]
        return broker is not None and broker.is_active and broker.epoch == follower.broker_epoch

    # Who may ask

    def check_in_sync(self) -> None:
        """Refuses a write that fewer replicas would have than it needs."""
        if not self.has_enough_in_sync:
            raise NotEnoughReplicasError(
                f"{len(self.image.in_sync)} replicas are in sync where {self.min_in_sync} are needed"
                + (" here, and more at the controller" if len(self.image.in_sync) >= self.min_in_sync else "")
            )

    def check_replica(self, fetch: ReplicaFetch) -> None:
        """Refuses whoever only says it is a follower, and followers of another epoch or a former life."""
        if fetch.known_epoch < 0:
            raise FencedLeaderEpochError("a follower must say which leader epoch it follows")
        self.check_epoch(fetch.known_epoch)
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
