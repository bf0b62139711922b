"""Fetches from the leader, one at a time, and the lookup of an unknown leader. Pure."""

from dataclasses import dataclass

from moldau.raft.effects import AppendFetchedRecords, FatalError, FetchSnapshot, TruncateLog
from moldau.raft.epoch_roles import FollowerState, UnattachedState
from moldau.raft.messages import EpochEndOffset, QuorumFetchRequest, QuorumFetchResponse, SnapshotId
from moldau.raft.quorum_state import QuorumState
from moldau.raft.step_context import StepContext


@dataclass(slots=True)
class QuorumFetcher:
    """Unattached nodes and followers fetch continuously. A prospective node fetches only to look up the leader."""

    quorum: QuorumState
    bootstrap_ids: tuple[int, ...] = ()
    """The ids of other nodes, besides the voters, that may know the leader."""
    pending: tuple[int, QuorumFetchRequest] | None = None
    """The fetch in flight and its destination. Responses to any other fetch are ignored."""
    fetching_snapshot: SnapshotId | None = None
    next_fetch_ms: int | None = None
    """The time when the next fetch is sent; None if none is scheduled."""
    leader_high_watermark: int = 0
    """The leader's high watermark. Records below this offset may not be durable on this node yet."""
    lookup_count: int = 0
    """The number of leader lookups sent so far. It selects the node for the next lookup."""

    def cancel(self) -> None:
        """Ignores the response to the fetch in flight. A snapshot download goes on, because it stays valid."""
        self.pending = None
        self.next_fetch_ms = None

    def fetch(self, step: StepContext) -> None:
        """Fetches from the leader if it is known; otherwise looks up the leader."""
        state = self.quorum.epoch_state
        if isinstance(state, FollowerState) and not state.is_leader_unreachable:
            self._send(step, self.quorum.leader_id, self.quorum.config.fetch_timeout_ms // 3)
        elif self._fetches_by_itself():
            self.look_up_leader(step)

    def look_up_leader(self, step: StepContext) -> None:
        """Fetches from the next node that may know the leader."""
        ids = self._lookup_ids()
        if ids and self._send(step, ids[self.lookup_count % len(ids)]):
            self.lookup_count += 1
            if isinstance(self.quorum.epoch_state, FollowerState):
                self.quorum.epoch_state.is_leader_unreachable = False

    def schedule(self, step: StepContext, delay_ms: float | None = None) -> None:
        if self._fetches_by_itself() and self.pending is None:
            retry_ms = self.quorum.config.election_timeout_ms / 10
            self.next_fetch_ms = step.deadline_in(retry_ms if delay_ms is None else delay_ms)

    def schedule_after_failure(self, step: StepContext) -> None:
        """Schedules a fetch after a failed append or snapshot download. The delay is that of an idle follower."""
        self.schedule(step, self.quorum.config.fetch_timeout_ms / 3)

    def on_failed(self, step: StepContext, node_id: int) -> None:
        """Handles the failure of the fetch in flight."""
        self.pending = None
        state = self.quorum.epoch_state
        if isinstance(state, FollowerState) and node_id == self.quorum.leader_id:
            state.is_leader_unreachable = state.leader_contact_ms is None and bool(self._lookup_ids())
        self.schedule(step)

    def apply_response(self, step: StepContext, response: QuorumFetchResponse) -> None:
        """Applies a response from the leader of this epoch."""
        quorum = self.quorum
        if response.diverging_epoch is not None:
            self._handle_divergence(step, response.diverging_epoch)
        elif response.snapshot is not None:
            if response.snapshot.end_offset <= quorum.log.high_watermark:
                # This node has committed all records in the snapshot, so the leader sends it only if the logs diverge.
                step.emit(self._divergence_error(response.snapshot.end_offset))
                return
            self.fetching_snapshot = response.snapshot
            step.emit(FetchSnapshot(response.leader_id, response.epoch, response.snapshot))
        else:
            self.leader_high_watermark = max(self.leader_high_watermark, response.high_watermark)
            if quorum.catch_up_offset is None and response.high_watermark >= 0:
                quorum.catch_up_offset = response.high_watermark
            if response.records:
                step.emit(AppendFetchedRecords(response.records))
            else:
                self.on_progress(step)

    def on_progress(self, step: StepContext) -> None:
        """Advances the high watermark up to the leader's, but not beyond the durable offset, and fetches again."""
        log = self.quorum.log
        self.quorum.advance_high_watermark(step, min(self.leader_high_watermark, log.durable_offset))
        self.fetch(step)

    def _fetches_by_itself(self) -> bool:
        return isinstance(self.quorum.epoch_state, UnattachedState | FollowerState)

    def _lookup_ids(self) -> list[int]:
        return [*(voter.node_id for voter in self.quorum.other_voters()), *self.bootstrap_ids]

    def _send(self, step: StepContext, node_id: int, max_wait_ms: int = 0) -> bool:
        """Sends a fetch, which confirms that the whole log is durable. Returns False if none can be sent now."""
        quorum, log = self.quorum, self.quorum.log
        is_busy = self.pending is not None or self.fetching_snapshot is not None
        if is_busy or log.durable_offset < log.end_offset:
            return False
        self.next_fetch_ms = None
        request = QuorumFetchRequest(
            quorum.key, quorum.epoch, log.log_end, log.high_watermark, max_wait_ms, leader_sent_ms=quorum.leader_sent_ms
        )
        self.pending = (node_id, request)
        step.send(node_id, request)
        return True

    def _handle_divergence(self, step: StepContext, leader_end: EpochEndOffset) -> None:
        """Truncates the log to the last offset that may match the leader's log. The next fetch verifies that offset."""
        log = self.quorum.log
        own_end = log.end_offset_for_epoch(leader_end.epoch)
        if own_end is None:
            step.emit(self._divergence_error(leader_end.offset))
            return
        end_offset = own_end.offset
        if own_end.epoch == leader_end.epoch:
            end_offset = min(own_end.offset, leader_end.offset)
        if end_offset < log.high_watermark:
            step.emit(self._divergence_error(end_offset))
        elif end_offset < log.end_offset:
            step.emit(TruncateLog(end_offset))
        else:
            self.schedule(step)

    def _divergence_error(self, offset: int) -> FatalError:
        return FatalError(
            f"the metadata log is committed up to offset {self.quorum.log.high_watermark}, but the leader's log "
            f"differs from offset {offset} on: a majority of the voters has lost committed records. Stop this node, "
            "keep its data directory, and find out which voters restarted with old or empty disks"
        )
