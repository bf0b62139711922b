"""The leader side of a partition: updates `PartitionLeaderState`, then completes or fails delayed operations."""

from collections.abc import Mapping
from uuid import UUID

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import NotEnoughReplicasAfterAppendError
from moldau.logs.store import LogName
from moldau.metadata.image import BrokerRegistration, PartitionRegistration
from moldau.metrics.component_metrics import IsrMetrics
from moldau.partitions.delayed_operations import DelayedOperations
from moldau.partitions.guarded_log import GuardedLog
from moldau.partitions.leader_state import FollowerFetch, PartitionLeaderState
from moldau.platform.clock import Clock


class LeaderReplica:
    state: PartitionLeaderState | None = None
    """None while this broker does not lead the partition."""

    def __init__(
        self,
        name: LogName,
        topic_id: UUID,
        guarded_log: GuardedLog,
        delayed: DelayedOperations,
        clock: Clock,
        isr_metrics: IsrMetrics,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self._guarded_log = guarded_log
        self._log = guarded_log.log
        self._delayed = delayed
        self._clock = clock
        self._isr_metrics = isr_metrics

    # The high watermark

    def on_flushed(self, offset: int) -> None:
        if self.state is not None and self.state.on_durable(offset):
            self._delayed.complete_commits(self.state.high_watermark)

    def on_brokers(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Applies changed broker registrations while the partition itself is unchanged."""
        if self.state is not None:
            self.state.brokers = brokers
            if self.state.advance_high_watermark():
                self._delayed.complete_commits(self.state.high_watermark)
            self._complete_deletions(self.state)

    def on_image(self, image: PartitionRegistration, brokers: Mapping[int, BrokerRegistration], min_isr: int) -> None:
        """Applies a new state of the partition in the current leader epoch."""
        if self.state is not None:
            self._isr_metrics.record(self.state.isr, image.isr)
            self._on_isr_changed(self.state, self.state.on_image(image, brokers, min_isr))

    def on_min_insync_replicas(self, min_insync_replicas: int) -> None:
        if self.state is not None:
            self.state.min_isr = self.state.image.min_isr(min_insync_replicas)
            self._on_isr_changed(self.state, self.state.advance_high_watermark())

    def on_follower_fetch(self, state: PartitionLeaderState, fetch: FollowerFetch) -> None:
        if state.on_fetch(fetch, self._clock.monotonic_ms()):
            self._delayed.complete_commits(state.high_watermark)
        if self._delayed.deletions:
            self._complete_deletions(state)

    def on_repeated_fetch(self, replica_id: int, broker_epoch: int) -> bool:
        """Records an in-sync follower's fetch from the same offset as before. Returns False if the fetch needs
        `on_follower_fetch` instead."""
        if self.state is None or self._guarded_log.failure is not None:
            return False
        return self.state.on_repeated_fetch(replica_id, broker_epoch, self._clock.monotonic_ms())

    def _complete_deletions(self, state: PartitionLeaderState) -> None:
        self._delayed.deletions.complete_up_to(state.low_watermark(self._log.start_offset))

    # The ISR

    def can_join_isr(self, replica_id: int) -> bool:
        """Returns whether this follower can be added to the ISR: it has caught up, and no proposal is pending."""
        return self.state is not None and self.state.can_join_isr(replica_id)

    def propose_isr_change(self, lag_ms: int) -> IsrChange | None:
        """Returns the ISR change to request from the controller; None if the ISR should not change."""
        state = self.state
        if state is None or self._guarded_log.failure is not None:
            return None
        wanted = state.wanted_isr(self._clock.monotonic_ms(), lag_ms)
        if wanted is not None:
            state.propose(wanted)
        if state.advance_high_watermark():
            # The high watermark can advance if `wanted_isr` found that a joining follower no longer keeps up.
            self._delayed.complete_commits(state.high_watermark)
        return None if wanted is None else self.pending_isr_change

    @property
    def pending_isr_change(self) -> IsrChange | None:
        """The proposed change until a response or newer metadata shows its outcome."""
        state = self.state
        if state is None or state.proposal is None:
            return None
        return IsrChange(
            topic_id=self.topic_id,
            partition=self.name.partition,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.proposal.partition_epoch,
            isr=tuple(zip(state.proposal.isr, state.proposal.broker_epochs, strict=True)),
        )

    def on_alter_partition_response(self, result: IsrChangeResult) -> None:
        if self.state is not None and result.topic_id == self.topic_id:
            previous = self.state.isr
            has_advanced = self.state.on_alter_partition_response(result)
            self._isr_metrics.record(previous, self.state.isr)
            self._on_isr_changed(self.state, has_advanced)

    def _on_isr_changed(self, state: PartitionLeaderState, has_high_watermark_advanced: bool) -> None:
        if not state.has_min_isr:
            self._delayed.acks_all.fail_all(
                NotEnoughReplicasAfterAppendError(
                    f"the ISR of {self.name} shrank to {len(state.isr)} replicas after the records were appended: "
                    "they may or may not be kept"
                )
            )
        if has_high_watermark_advanced:
            self._delayed.complete_commits(state.high_watermark)
