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
from moldau.raft.events import (
    AppendLeaderChange,
    AppendVoters,
    ElectionState,
    ReplicaOffsetRegressed,
    Role,
    SendRequest,
    SendResponse,
    ServeFetch,
)
from moldau.raft.following import Following
from moldau.raft.leader_state import NEVER, Leadership, ReplicaState
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    VoterNode,
)
from moldau.raft.voter_set import find_voter, is_same_replica


@dataclass(slots=True)
class Leading(Following):
    @property
    def has_committed_in_epoch(self) -> bool:
        """Only then does a leader know all that is committed, and so who votes."""
        return self.leader_state is not None and self.high_watermark > self.leader_state.epoch_start_offset

    @property
    def announced_high_watermark(self) -> int:
        """What others are told: none, as long as more may be committed than this leader knows."""
        return self.high_watermark if self.has_committed_in_epoch else -1

    def majority_confirmed_ms(self, now_ms: int) -> int | None:
        """The newest time at which a majority is known to have had this leader; None for a node that does not
        lead."""
        return (
            None
            if self.leader_state is None
            else self.leader_state.majority_confirmed_ms(self.voters, now_ms)
        )

    def _transition_to_leader(self) -> None:
        self.role = Role.LEADER
        self.election_deadline_ms = None
        election = self.election
        self._persist_election(
            ElectionState(self.epoch, self.node_id, election.voted_for, election.voted_directory_id)
        )
        self.leader_state = Leadership(
            self.key,
            elected_since_ms=self.election_start_ms,
            epoch_start_offset=self.log.end_offset,
            next_announcement_ms=self._now_ms,
            leader_silence_ms=self.leader_silence_ms,
        )
        voters = self._voters_with_learned_directories()
        granting_voters = tuple(sorted(self.granting_voters))
        includes_voters = not self.log.voters.has_voters_record
        self._effects.append(
            AppendLeaderChange(self.node_id, self.epoch, voters, granting_voters, includes_voters)
        )
        self._send_begin_quorum_epoch(self.leader_state)

    def _send_begin_quorum_epoch(self, leader_state: Leadership) -> None:
        """Tells those who do not fetch, again and again: the news may be lost, or a voter may have been away."""
        half_timeout_ms = self.settings.fetch_timeout_ms // 2
        own = find_voter(self.voters, self.key)
        endpoints = own.endpoints if own is not None else ()
        for voter in leader_state.voters_not_fetching(self.voters, self._now_ms, half_timeout_ms):
            request = BeginQuorumEpochRequest(self.node_id, self.epoch, voter.key, endpoints)
            self._effects.append(SendRequest(voter.node_id, request))
        leader_state.next_announcement_ms = self._deadline_in(self.settings.fetch_timeout_ms / 3)

    def _on_leader_timer(self, leader_state: Leadership) -> None:
        if not self._other_voters():
            return
        majority_confirmed_ms = leader_state.majority_confirmed_ms(self.voters, self._now_ms)
        if self._now_ms - majority_confirmed_ms >= self.settings.check_quorum_ms:
            self._resign()
        elif self._now_ms >= leader_state.next_announcement_ms:
            self._send_begin_quorum_epoch(leader_state)

    def _resign(self) -> None:
        if self.leader_state is None:
            return
        preferred_candidates = self.leader_state.preferred_candidates(self.voters)
        self._end_leadership()
        self.role = Role.RESIGNED
        self._schedule_election(self._random_election_deadline())
        self._send_end_quorum_epoch(preferred_candidates)
        if not self.is_voter:
            self._on_leader_resigned(self._random_election_deadline())

    def _send_end_quorum_epoch(self, preferred_candidates: Sequence[ReplicaKey]) -> None:
        for key in preferred_candidates:
            self._effects.append(
                SendRequest(
                    key.node_id, EndQuorumEpochRequest(self.node_id, self.epoch, tuple(preferred_candidates))
                )
            )

    # Serving

    def _handle_fetch(self, request: QuorumFetchRequest) -> None:
        leader_state = self.leader_state
        if leader_state is None or request.epoch != self.epoch:
            self._effects.append(
                SendResponse(QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False))
            )
            return
        log, log_end = self.log, request.log_end
        replica = leader_state.record_contact(request.replica, self._now_ms, request.heard_ms)
        if request.heard_ms == NEVER and log_end.offset < replica.end_offset:
            self._on_offset_regression(replica, log_end.offset)
        found = log.end_offset_for_epoch(log_end.epoch) if log_end.offset >= log.start_offset else None
        reply = QuorumFetchResponse(
            self.epoch,
            self.node_id,
            is_leader=True,
            high_watermark=self.announced_high_watermark,
            log_start_offset=log.start_offset,
            sent_ms=self._now_ms,
        )
        if found is None and log.snapshot is not None:
            self._effects.append(SendResponse(replace(reply, snapshot=log.snapshot)))
        elif found is None or found.epoch != log_end.epoch or found.offset < log_end.offset:
            diverging_epoch = (
                found if found is not None else log.log_end._replace(epoch=log.base_epoch, offset=0)
            )
            self._effects.append(SendResponse(replace(reply, diverging_epoch=diverging_epoch)))
        else:
            leader_state.record_fetch(replica, log_end.offset, log.end_offset, self._now_ms)
            self._maybe_advance_high_watermark()
            self._effects.append(ServeFetch(request))

    def _on_offset_regression(self, replica: ReplicaState, end_offset: int) -> None:
        """A replica that has begun anew, and heard nothing of this leader yet, has less on disk than it had. What it
        once confirmed counts no more; what was committed by it stays so, for others rely on that."""
        if replica.key.directory_id is not None and find_voter(self.voters, replica.key) is not None:
            self._effects.append(ReplicaOffsetRegressed(replica.key, replica.end_offset, end_offset))
        replica.end_offset = NEVER

    def _handle_fetch_snapshot(self, request: FetchSnapshotRequest) -> None:
        if self.leader_state is None or request.epoch != self.epoch:
            self._effects.append(
                SendResponse(FetchSnapshotResponse(self.epoch, self.leader_id, is_leader=False))
            )
            return
        self.leader_state.record_contact(request.replica, self._now_ms, request.heard_ms)
        self._effects.append(ServeFetch(request))

    def _maybe_advance_high_watermark(self) -> None:
        leader_state = self.leader_state
        assert leader_state is not None
        reached = leader_state.majority_end_offset(self.voters, self.log.durable_offset)
        # Records of earlier epochs may be on a majority and still be lost to another leader (Raft, 5.4.2):
        # they are committed only together with a record of this epoch behind them.
        if reached > leader_state.epoch_start_offset:
            self._commit(reached)
            if self.catch_up_offset is None:
                self.catch_up_offset = self.high_watermark
        if self.has_committed_in_epoch and self.log.voters.last_entry.offset < self.high_watermark:
            if not self.is_voter:
                # It has done its last duty: its removal is agreed on.
                self._resign()
            else:
                self._learn()

    # Voters

    def _learn(self) -> None:
        """The first voters come from settings, which know no directories. Once a voter's directory is in the log,
        a node that comes back with an empty disk is not taken for it."""
        voters = self._voters_with_learned_directories()
        if voters != self.voters:
            self._effects.append(AppendVoters(voters))

    def _voters_with_learned_directories(self) -> tuple[VoterNode, ...]:
        """With directories where they have become known, and this node where it is now."""
        return tuple(
            replace(
                voter,
                directory_id=self._learned_directory(voter),
                endpoints=(voter.node_id == self.node_id and self.endpoints) or voter.endpoints,
            )
            for voter in self.voters
        )

    def _learned_directory(self, voter: VoterNode) -> UUID | None:
        if voter.directory_id is not None:
            return voter.directory_id
        if voter.node_id == self.node_id:
            return self.key.directory_id
        replica = None if self.leader_state is None else self.leader_state.of(voter)
        return None if replica is None else replica.key.directory_id

    def with_voter(self, now_ms: int, new: VoterNode) -> tuple[VoterNode, ...]:
        """The voters with another one. Raises where it may not be added (yet)."""
        leader_state = self._check_can_change_voters()
        if any(voter.node_id == new.node_id for voter in self.voters):
            raise DuplicateVoterError(f"node {new.node_id} is a voter already; remove it first")
        if new.directory_id is None:
            raise InvalidRequestError(f"the directory id of node {new.node_id} must be named")
        if self.key.directory_id is None or leader_state.is_diskless(new.node_id):
            raise InvalidRequestError(
                "a node that keeps its metadata in memory (store=memory) would forget its votes: it cannot vote "
                "together with others"
            )
        replica = leader_state.of(new)
        oldest_ms = now_ms - self.settings.fetch_timeout_ms
        if replica is None or replica.last_caught_up_ms == NEVER or replica.last_caught_up_ms < oldest_ms:
            raise RequestTimedOutError(
                f"node {new.node_id} with directory {new.directory_id} has not caught up with the metadata log; "
                "is it running, and does it reach the leader?"
            )
        return (*self.voters, new)

    def without_voter(self, key: ReplicaKey) -> tuple[VoterNode, ...]:
        self._check_can_change_voters()
        left = tuple(voter for voter in self.voters if not is_same_replica(voter.key, key))
        if len(left) == len(self.voters):
            raise VoterNotFoundError(f"node {key.node_id} with directory {key.directory_id} is no voter")
        if not left:
            raise InvalidRequestError(f"node {key.node_id} is the only voter; add another one first")
        return left

    def with_updated_voter(self, changed: VoterNode) -> tuple[VoterNode, ...]:
        self._check_can_change_voters()
        if find_voter(self.voters, changed.key) is None:
            raise VoterNotFoundError(
                f"node {changed.node_id} with directory {changed.directory_id} is no voter"
            )
        return tuple(changed if is_same_replica(voter.key, changed.key) else voter for voter in self.voters)

    def _check_can_change_voters(self) -> Leadership:
        """One change at a time, and none before the leader knows all that is committed: else two majorities could
        be found that have nobody in common."""
        if self.leader_state is None:
            raise NotControllerError("this node does not lead the metadata quorum")
        if not self.has_committed_in_epoch:
            raise RequestTimedOutError("the leader of the metadata quorum has just begun; try again")
        if self.log.voters.last_entry.offset >= self.high_watermark:
            raise RequestTimedOutError("another change of the voters is under way; try again when it is done")
        return self.leader_state
