"""The part of the quorum's state machine that leads: serves fetches, counts what is durable, changes voters. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from moldau.errors import (
    DuplicateVoterError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    VoterNotFoundError,
)
from moldau.raft.events import Answer, AppendVoters, BeginEpoch, Election, FellBack, Role, Send, Serve
from moldau.raft.following import Following
from moldau.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    QuorumFetch,
    QuorumFetched,
    ReplicaKey,
    SnapshotFetch,
    SnapshotFetched,
    Voter,
)
from moldau.raft.replicas import NEVER, Leadership, Replica
from moldau.raft.voters import find, is_same


@dataclass(slots=True)
class Leading(Following):
    @property
    def has_committed_in_epoch(self) -> bool:
        """Only then does a leader know all that is committed, and so who votes."""
        return self.leadership is not None and self.high_watermark > self.leadership.epoch_start_offset

    @property
    def announced_high_watermark(self) -> int:
        """What others are told: none, as long as more may be committed than this leader knows."""
        return self.high_watermark if self.has_committed_in_epoch else -1

    def confirmed_ms(self, now_ms: int) -> int | None:
        """The newest time at which a majority is known to have had this leader; None for a node that does not
        lead."""
        return None if self.leadership is None else self.leadership.confirmed_ms(self.voters, now_ms)

    def _lead(self) -> None:
        self.role = Role.LEADER
        self.election_ms = None
        election = self.election
        self._set_election(Election(self.epoch, self.node_id, election.voted_for, election.voted_directory))
        self.leadership = Leadership(
            self.key,
            since_ms=self.round_ms,
            epoch_start_offset=self.log.end_offset,
            begin_ms=self._now_ms,
            silent_ms=self.silent_ms,
        )
        voters = self._learned_voters()
        granting = tuple(sorted(self.granted))
        names_voters = not self.log.voters.is_in_log
        self._effects.append(BeginEpoch(self.node_id, self.epoch, voters, granting, names_voters))
        self._announce(self.leadership)

    def _announce(self, leadership: Leadership) -> None:
        """Tells those who do not fetch, again and again: the news may be lost, or a voter may have been away."""
        half_timeout_ms = self.settings.fetch_timeout_ms // 2
        own = find(self.voters, self.key)
        endpoints = own.endpoints if own is not None else ()
        for voter in leadership.silent(self.voters, self._now_ms, half_timeout_ms):
            request = BeginEpochRequest(self.node_id, self.epoch, voter.key, endpoints)
            self._effects.append(Send(voter.node_id, request))
        leadership.begin_ms = self._after(self.settings.fetch_timeout_ms / 3)

    def _tick_as_leader(self, leadership: Leadership) -> None:
        if not self._others():
            return
        confirmed_ms = leadership.confirmed_ms(self.voters, self._now_ms)
        if self._now_ms - confirmed_ms >= self.settings.check_quorum_ms:
            self._resign()
        elif self._now_ms >= leadership.begin_ms:
            self._announce(leadership)

    def _resign(self) -> None:
        if self.leadership is None:
            return
        successors = self.leadership.successors(self.voters)
        self._end_leadership()
        self.role = Role.RESIGNED
        self._stand_at(self._election_timeout())
        self._say_goodbye(successors)
        if not self.is_voter:
            self._leader_left(self._election_timeout())

    def _say_goodbye(self, successors: Sequence[ReplicaKey]) -> None:
        for key in successors:
            self._effects.append(
                Send(key.node_id, EndEpochRequest(self.node_id, self.epoch, tuple(successors)))
            )

    # Serving

    def _fetch_received(self, request: QuorumFetch) -> None:
        leadership = self.leadership
        if leadership is None or request.epoch != self.epoch:
            self._effects.append(Answer(QuorumFetched(self.epoch, self.leader_id, is_leader=False)))
            return
        log, last = self.log, request.last
        replica = leadership.heard(request.replica, self._now_ms, request.heard_ms)
        if request.heard_ms == NEVER and last.offset < replica.end_offset:
            self._fell_back(replica, last.offset)
        found = log.end_of(last.epoch) if last.offset >= log.start_offset else None
        reply = QuorumFetched(
            self.epoch,
            self.node_id,
            is_leader=True,
            high_watermark=self.announced_high_watermark,
            log_start_offset=log.start_offset,
            sent_ms=self._now_ms,
        )
        if found is None and log.snapshot is not None:
            self._effects.append(Answer(replace(reply, snapshot=log.snapshot)))
        elif found is None or found.epoch != last.epoch or found.offset < last.offset:
            diverging = found if found is not None else log.last._replace(epoch=log.base_epoch, offset=0)
            self._effects.append(Answer(replace(reply, diverging=diverging)))
        else:
            leadership.fetched(replica, last.offset, log.end_offset, self._now_ms)
            self._count_durable()
            self._effects.append(Serve(request))

    def _fell_back(self, replica: Replica, end_offset: int) -> None:
        """A replica that has begun anew, and heard nothing of this leader yet, has less on disk than it had. What it
        once confirmed counts no more; what was committed by it stays so, for others rely on that."""
        if replica.key.directory_id is not None and find(self.voters, replica.key) is not None:
            self._effects.append(FellBack(replica.key, replica.end_offset, end_offset))
        replica.end_offset = NEVER

    def _snapshot_fetch_received(self, request: SnapshotFetch) -> None:
        if self.leadership is None or request.epoch != self.epoch:
            self._effects.append(Answer(SnapshotFetched(self.epoch, self.leader_id, is_leader=False)))
            return
        self.leadership.heard(request.replica, self._now_ms, request.heard_ms)
        self._effects.append(Serve(request))

    def _count_durable(self) -> None:
        leadership = self.leadership
        assert leadership is not None
        reached = leadership.durable_on_majority(self.voters, self.log.durable_offset)
        # Records of earlier epochs may be on a majority and still be lost to another leader (Raft, 5.4.2):
        # they are committed only together with a record of this epoch behind them.
        if reached > leadership.epoch_start_offset:
            self._commit(reached)
            if self.current_from is None:
                self.current_from = self.high_watermark
        if self.has_committed_in_epoch and self.log.voters.newest.offset < self.high_watermark:
            if not self.is_voter:
                # It has done its last duty: its removal is agreed on.
                self._resign()
            else:
                self._learn()

    # Voters

    def _learn(self) -> None:
        """The first voters come from settings, which know no directories. Once a voter's directory is in the log,
        a node that comes back with an empty disk is not taken for it."""
        voters = self._learned_voters()
        if voters != self.voters:
            self._effects.append(AppendVoters(voters))

    def _learned_voters(self) -> tuple[Voter, ...]:
        """With directories where they have become known, and this node where it is now."""
        return tuple(
            replace(
                voter,
                directory_id=self._directory_of(voter),
                endpoints=(voter.node_id == self.node_id and self.endpoints) or voter.endpoints,
            )
            for voter in self.voters
        )

    def _directory_of(self, voter: Voter) -> UUID | None:
        if voter.directory_id is not None:
            return voter.directory_id
        if voter.node_id == self.node_id:
            return self.key.directory_id
        replica = None if self.leadership is None else self.leadership.of(voter)
        return None if replica is None else replica.key.directory_id

    def with_voter(self, now_ms: int, new: Voter) -> tuple[Voter, ...]:
        """The voters with another one. Raises where it may not be added (yet)."""
        leadership = self._check_may_change()
        if any(voter.node_id == new.node_id for voter in self.voters):
            raise DuplicateVoterError(f"node {new.node_id} is a voter already; remove it first")
        if new.directory_id is None:
            raise InvalidRequestError(f"the directory id of node {new.node_id} must be named")
        if self.key.directory_id is None or leadership.is_diskless(new.node_id):
            raise InvalidRequestError(
                "a node that keeps its metadata in memory (store=memory) would forget its votes: it cannot vote "
                "together with others"
            )
        replica = leadership.of(new)
        oldest_ms = now_ms - self.settings.fetch_timeout_ms
        if replica is None or replica.last_caught_up_ms == NEVER or replica.last_caught_up_ms < oldest_ms:
            raise RequestTimedOutError(
                f"node {new.node_id} with directory {new.directory_id} has not caught up with the metadata log; "
                "is it running, and does it reach the leader?"
            )
        return (*self.voters, new)

    def without_voter(self, key: ReplicaKey) -> tuple[Voter, ...]:
        self._check_may_change()
        left = tuple(voter for voter in self.voters if not is_same(voter.key, key))
        if len(left) == len(self.voters):
            raise VoterNotFoundError(f"node {key.node_id} with directory {key.directory_id} is no voter")
        if not left:
            raise InvalidRequestError(f"node {key.node_id} is the only voter; add another one first")
        return left

    def with_updated_voter(self, changed: Voter) -> tuple[Voter, ...]:
        self._check_may_change()
        if find(self.voters, changed.key) is None:
            raise VoterNotFoundError(
                f"node {changed.node_id} with directory {changed.directory_id} is no voter"
            )
        return tuple(changed if is_same(voter.key, changed.key) else voter for voter in self.voters)

    def _check_may_change(self) -> Leadership:
        """One change at a time, and none before the leader knows all that is committed: else two majorities could
        be found that have nobody in common."""
        if self.leadership is None:
            raise NotControllerError("this node does not lead the metadata quorum")
        if not self.has_committed_in_epoch:
            raise RequestTimedOutError("the leader of the metadata quorum has just begun; try again")
        if self.log.voters.newest.offset >= self.high_watermark:
            raise RequestTimedOutError("another change of the voters is under way; try again when it is done")
        return self.leadership
