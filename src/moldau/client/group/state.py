"""A consumer's side of its group: find the coordinator, join, assign if it leads, sync, and stay by heartbeats.

A pure state machine: `step` takes what happened and says what to do. Partitions change hands only in answer to
`UserPoll`, that is while the user is in the client's hands and not in the middle of a record; everything else goes on
behind their back. `consumer.py` performs the effects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moldau.client.errors import COORDINATOR_ERRORS, ErrorCode, KafkaError
from moldau.client.group.assignment_user_data import NO_USER_DATA, decode_user_data
from moldau.client.group.assignors import (
    NO_ASSIGNMENT,
    ConsumerPartitionAssignor,
    PreviousAssignment,
    SubscribedMember,
)
from moldau.client.group.events import (
    AssignPartitions,
    Closed,
    CommitFailed,
    CommitOffsets,
    CoordinatorFound,
    CoordinatorNotFound,
    Effect,
    Event,
    FetchMetadata,
    FindCoordinator,
    HeartbeatResponse,
    HeartbeatTick,
    JoinResponse,
    LogWarning,
    LosePartitions,
    MetadataChanged,
    MetadataFetchCompleted,
    RaiseError,
    RevokeAll,
    RevokePartitions,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SubscriptionChanged,
    SyncResponse,
    Unsubscribed,
    UserPoll,
)
from moldau.client.group.heartbeat import Heartbeat, RetrySchedule
from moldau.client.group.leader_assignment import decode_members, perform_assignment, subscribed_topics
from moldau.client.group.member_state import NO_GENERATION, Generation, GroupRebalanceConfig, MemberState
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import Partition, Subscription, decode_assignment, encode_subscription

JOIN_GROUP_TIMEOUT_LAPSE_MS = 5_000
"""How much longer than the rebalance timeout a join waits: its answer has to travel, too."""

_MEMBERSHIP_ERRORS = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)


class MembershipManager:
    def __init__(self, config: GroupRebalanceConfig) -> None:
        self.config = config
        self.state = MemberState.UNJOINED
        self.coordinator: int | None = None
        self.generation = NO_GENERATION
        self.owned_partitions: tuple[Partition, ...] = ()
        """What the user has, or has been offered with the last `AssignPartitions`."""
        self.is_leader = False
        self.leave_reason = ""
        """Why this consumer is out of the group, where it is its own doing."""
        self._is_cooperative = all(each.is_cooperative for each in config.assignors)
        self._heartbeat = Heartbeat(
            interval_ms=config.heartbeat_interval_ms,
            session_timeout_ms=config.session_timeout_ms,
            poll_interval_max_ms=config.poll_interval_max_ms,
            retry_backoff_ms=config.retry_backoff_ms,
        )
        self._topics: tuple[str, ...] | None = None
        """None while there is no subscription; one that no topic fits, so far, joins the group all the same."""
        self._joined_topics: tuple[str, ...] | None = None
        self._rejoin_reason = ""
        self._is_join_prepared = False
        """Whether the user has been told of the rebalance that the next join begins or takes part in."""
        self._join_attempt = 0
        self._join_retry = self._retry_schedule()
        self._find_retry = self._retry_schedule()
        self._is_finding_coordinator = False
        self._previous_assignment: PreviousAssignment = NO_ASSIGNMENT
        self._members: Sequence[SubscribedMember] = ()
        self._skip_assignment = False
        self._pending_assignment: tuple[Partition, ...] = ()
        self._pending_user_data = NO_USER_DATA
        """What came with the offer."""
        self._assignment_snapshot: dict[str, int] | None = None
        """The leader's: the group's topics, with the partition counts it assigned by."""
        self._metadata_snapshot: dict[str, int] | None = None
        """The same topics, with the partition counts they have now."""
        self._pending_error: KafkaError | None = None
        self._handlers: Mapping[type, Callable[[int, Any], list[Effect]]] = {
            UserPoll: self._on_poll,
            HeartbeatTick: self._on_heartbeat_tick,
            SubscriptionChanged: self._on_subscription_changed,
            RevokeAll: self._on_revoke_all,
            Unsubscribed: self._on_unsubscribed,
            Closed: self._on_closed,
            CoordinatorFound: self._on_coordinator_found,
            CoordinatorNotFound: self._on_coordinator_not_found,
            JoinResponse: self._on_join_response,
            MetadataFetchCompleted: self._on_metadata_fetched,
            MetadataChanged: self._on_metadata_changed,
            SyncResponse: self._on_sync_response,
            HeartbeatResponse: self._on_heartbeat_response,
            CommitFailed: self._on_commit_failed,
        }

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        if self.state is MemberState.CLOSED:
            return []
        return self._handlers[type(event)](now_ms, event)

    @property
    def is_rebalancing(self) -> bool:
        """Whether a commit would come between two generations."""
        return self.state in (MemberState.JOINING, MemberState.ASSIGNING, MemberState.SYNCING)

    def next_heartbeat_at_ms(self) -> int | None:
        """When to step a Tick at the latest; None while there is nothing to beat for."""
        if not self._sends_heartbeats():
            return None
        if self.coordinator is None:
            return None if self._is_finding_coordinator else self._find_retry.next_at_ms
        return self._heartbeat.next_at_ms()

    def next_poll_at_ms(self) -> int | None:
        """When to step a Poll at the latest, for a user who is polling; None while only answers bring news."""
        if self._topics is None or self._is_finding_coordinator or self.state is MemberState.FENCED:
            return None
        if self.coordinator is None:
            return self._find_retry.next_at_ms
        return self._join_retry.next_at_ms if self._needs_join() else None

    # The user

    def _on_poll(self, now_ms: int, _: UserPoll) -> list[Effect]:
        self._heartbeat.record_poll(now_ms)
        if self._pending_error is not None:
            failure = self._pending_error
            if self.state is not MemberState.FENCED:
                self._pending_error = None
            return [*self._lose_partitions(), RaiseError(failure)]
        if self._topics is None:
            return []
        if self.state is MemberState.JOINED:
            return self._on_join_complete()
        if self.coordinator is None:
            return self._find_coordinator(now_ms)
        if self._needs_join() and now_ms >= self._join_retry.next_at_ms:
            return self._on_join_prepare() or self._send_join(self.coordinator)
        return []

    def _on_subscription_changed(self, now_ms: int, event: SubscriptionChanged) -> list[Effect]:
        self._topics = tuple(sorted(event.topics))
        return []

    def _on_revoke_all(self, now_ms: int, event: RevokeAll) -> list[Effect]:
        if not self.generation.is_member:
            return self._lose_partitions()
        owned_partitions, self.owned_partitions = self.owned_partitions, ()
        return self._revoke_partitions(owned_partitions, event.commit)

    def _on_unsubscribed(self, now_ms: int, _: Unsubscribed) -> list[Effect]:
        self._topics = self._joined_topics = None
        return self._leave("the consumer unsubscribed")

    def _on_closed(self, now_ms: int, _: Closed) -> list[Effect]:
        effects = self._leave("the consumer was closed")
        self.state = MemberState.CLOSED
        return effects

    def _leave(self, reason: str) -> list[Effect]:
        """A static member stays in its group until its session is over: it may be back before that."""
        generation = self.generation
        self._reset_generation("", keep_member_id=False)
        if self.config.instance_id is not None or self.coordinator is None or not generation.member_id:
            return []
        return [SendLeave(self.coordinator, generation.member_id, reason)]

    # Rejoining

    def _needs_join(self) -> bool:
        if self.state is MemberState.UNJOINED:
            return True
        return self.state is MemberState.STABLE and self._current_rejoin_reason() != ""

    def _current_rejoin_reason(self) -> str:
        if self._rejoin_reason:
            return self._rejoin_reason
        if self._joined_topics is not None and self._topics != self._joined_topics:
            return "the subscription has changed"
        return (
            "partitions of the group's topics have come or gone"
            if self._metadata_snapshot != self._assignment_snapshot
            else ""
        )

    def _on_join_prepare(self) -> list[Effect]:
        """What the user must be told and let do before the join goes out."""
        if self._is_join_prepared:
            return []
        self._is_join_prepared = True
        if not self.owned_partitions:
            return []
        if not self.generation.is_member:
            return self._lose_partitions()
        kept = [
            each for each in self.owned_partitions if self._is_cooperative and each[0] in (self._topics or ())
        ]
        revoked = _subtract(self.owned_partitions, kept)
        self.owned_partitions = tuple(kept)
        return self._revoke_partitions(revoked)

    def _revoke_partitions(self, partitions: tuple[Partition, ...], commit: bool = True) -> list[Effect]:
        if not partitions:
            return []
        commits: list[Effect] = [CommitOffsets()] if commit and self.config.auto_commit else []
        return [*commits, RevokePartitions(partitions)]

    def _lose_partitions(self) -> list[Effect]:
        if not self.owned_partitions or self.generation.is_member:
            return []
        lost, self.owned_partitions = self.owned_partitions, ()
        return [LosePartitions(lost)]

    def _send_join(self, coordinator: int) -> list[Effect]:
        reason = self._current_rejoin_reason()
        self.state = MemberState.JOINING
        self._clear_leadership()
        self._rejoin_reason = ""
        topics = self._joined_topics = self._topics or ()
        self._join_attempt += 1
        protocols = tuple((each.name, self._subscription_for(each, topics)) for each in self.config.assignors)
        timeout_ms = self.config.poll_interval_max_ms + JOIN_GROUP_TIMEOUT_LAPSE_MS
        return [
            SendJoin(
                self._join_attempt, coordinator, self.generation.member_id, protocols, reason, timeout_ms
            )
        ]

    def _subscription_for(self, assignor: ConsumerPartitionAssignor, topics: tuple[str, ...]) -> bytes:
        user_data = assignor.user_data(self._previous_assignment)
        return encode_subscription(
            Subscription(topics, user_data, self.owned_partitions, self.generation.generation_id)
        )

    def _on_join_response(self, now_ms: int, answer: JoinResponse) -> list[Effect]:
        if self.state is not MemberState.JOINING or answer.attempt != self._join_attempt:
            return []
        if answer.code == ErrorCode.member_id_required:
            # The coordinator knows the id now: members that vanish before they have one leave no trace.
            self.generation = Generation(member_id=answer.member_id)
            self.state = MemberState.UNJOINED
            assert self.coordinator is not None
            return self._send_join(self.coordinator)
        if answer.code != ErrorCode.none:
            return self._on_join_failed(now_ms, answer.code, answer.message, "join")
        self.generation = Generation(answer.generation_id, answer.member_id, answer.protocol)
        self.is_leader = answer.leader_id == answer.member_id
        self.leave_reason = ""
        self._heartbeat.reset_timeouts(now_ms)
        if not self.is_leader:
            return self._send_sync(())
        self.state = MemberState.ASSIGNING
        self._skip_assignment = answer.skip_assignment
        try:
            self._members = decode_members(answer.members)
        except DecodeError as error:
            return self._on_assignment_failed(now_ms, str(error))
        return [FetchMetadata(self._join_attempt, subscribed_topics(self._members))]

    # Assigning and syncing

    def _on_metadata_fetched(self, now_ms: int, event: MetadataFetchCompleted) -> list[Effect]:
        if self.state is not MemberState.ASSIGNING or event.attempt != self._join_attempt:
            return []
        if event.partition_counts is None:
            return self._request_rejoin(now_ms, "the leader could not fetch metadata")
        topics = subscribed_topics(self._members)
        self._assignment_snapshot = {topic: event.partition_counts.get(topic, 0) for topic in topics}
        self._metadata_snapshot = self._assignment_snapshot
        if self._skip_assignment:
            return self._send_sync(())
        chosen = [each for each in self.config.assignors if each.name == self.generation.protocol]
        if not chosen:
            return self._on_assignment_failed(
                now_ms, f"the coordinator chose the assignor {self.generation.protocol!r}, which is not ours"
            )
        shares = perform_assignment(
            chosen[0], self._assignment_snapshot, self._members, self.generation.member_id
        )
        return self._send_sync(shares)

    def _on_assignment_failed(self, now_ms: int, message: str) -> list[Effect]:
        self._pending_error = KafkaError(ErrorCode.inconsistent_group_protocol, message)
        return self._request_rejoin(now_ms, message)

    def _send_sync(self, assignments: Sequence[tuple[str, bytes]]) -> list[Effect]:
        if self.coordinator is None:
            # Lost while the metadata was on its way; the next poll looks for it and joins again.
            self.state = MemberState.UNJOINED
            return []
        self.state = MemberState.SYNCING
        return [SendSync(self._join_attempt, self.coordinator, self.generation, tuple(assignments))]

    def _on_sync_response(self, now_ms: int, answer: SyncResponse) -> list[Effect]:
        if self.state is not MemberState.SYNCING or answer.attempt != self._join_attempt:
            return []
        if answer.code != ErrorCode.none:
            return self._on_join_failed(now_ms, answer.code, answer.message, "sync")
        try:
            assignment = decode_assignment(answer.assignment)
        except DecodeError as error:
            return self._on_assignment_failed(now_ms, f"the assignment cannot be read: {error}")
        if any(topic not in (self._topics or ()) for topic, _ in assignment.partitions):
            return self._request_rejoin(now_ms, "the assignment has topics that are not subscribed to")
        self.state = MemberState.JOINED
        self._pending_assignment = tuple(sorted(assignment.partitions))
        self._pending_user_data = decode_user_data(assignment.user_data)
        if self.is_leader and self._pending_user_data.partition_counts is not None:
            # One that came back did not share out the partitions itself.
            self._assignment_snapshot = dict(self._pending_user_data.partition_counts)
        self._join_retry.succeeded()
        self._find_retry.succeeded()
        return []

    def _on_join_complete(self) -> list[Effect]:
        self.state = MemberState.STABLE
        self._is_join_prepared = False
        added, revoked = (
            _subtract(self._pending_assignment, self.owned_partitions),
            _subtract(self.owned_partitions, self._pending_assignment),
        )
        if revoked or self._pending_user_data.hands_over:
            self._rejoin_reason = "partitions were given up for others to have"
        self.owned_partitions = self._pending_assignment
        self._previous_assignment = PreviousAssignment(self.owned_partitions, self.generation.generation_id)
        return [*self._revoke_partitions(revoked), AssignPartitions(self.owned_partitions, added)]

    # What goes wrong on the way in

    def _on_join_failed(self, now_ms: int, code: ErrorCode, message: str, what: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._on_fenced()
        if code in _MEMBERSHIP_ERRORS:
            self._reset_generation(
                f"the {what} was refused: {code.name}", code == ErrorCode.illegal_generation
            )
            self._join_retry.failed(now_ms)
            return []
        if code in COORDINATOR_ERRORS:
            self.coordinator = None
            return self._request_rejoin(now_ms, f"the coordinator was lost in the {what}")
        if not code.retriable and code != ErrorCode.rebalance_in_progress:
            self._pending_error = KafkaError(
                code, message or f"the group {self.config.group_id!r} refused a {what}"
            )
        return self._request_rejoin(now_ms, f"the {what} failed: {code.name}")

    def _request_rejoin(self, now_ms: int, reason: str) -> list[Effect]:
        """Out of this round, with the member id and without the user being told again."""
        self.state = MemberState.UNJOINED
        self._rejoin_reason = reason
        self._join_retry.failed(now_ms)
        return []

    def _reset_generation(self, reason: str, keep_member_id: bool) -> None:
        """Out of the generation: what the user has is lost, unless it is handed back first."""
        self.generation = Generation(member_id=self.generation.member_id if keep_member_id else "")
        self.state = MemberState.UNJOINED
        self._clear_leadership()
        self._is_join_prepared = False
        self._rejoin_reason = reason

    def _clear_leadership(self) -> None:
        self.is_leader = False
        self._assignment_snapshot = self._metadata_snapshot = None

    def _on_fenced(self) -> list[Effect]:
        instance_id = self.config.instance_id
        self._reset_generation("", keep_member_id=False)
        self.state = MemberState.FENCED
        self._pending_error = KafkaError(
            ErrorCode.fenced_instance_id,
            f"another consumer of the group {self.config.group_id!r} has taken the instance id "
            f"{instance_id!r}; close this one",
        )
        return [LogWarning(self._pending_error.message)]

    # The coordinator

    def _find_coordinator(self, now_ms: int) -> list[Effect]:
        if self._is_finding_coordinator or now_ms < self._find_retry.next_at_ms:
            return []
        self._is_finding_coordinator = True
        return [FindCoordinator()]

    def _on_coordinator_found(self, now_ms: int, event: CoordinatorFound) -> list[Effect]:
        self._is_finding_coordinator = False
        self.coordinator = event.node_id
        self._heartbeat.reset_for_coordinator(now_ms)
        return []

    def _on_coordinator_not_found(self, now_ms: int, event: CoordinatorNotFound) -> list[Effect]:
        self._is_finding_coordinator = False
        self._find_retry.failed(now_ms)
        if not event.code.retriable:
            self._pending_error = KafkaError(event.code, event.message)
        return []

    def _retry_schedule(self) -> RetrySchedule:
        return RetrySchedule(
            backoff_ms=self.config.retry_backoff_ms, backoff_max_ms=self.config.retry_backoff_max_ms
        )

    # Staying

    def _sends_heartbeats(self) -> bool:
        return self.generation.is_member and self.state not in (
            MemberState.UNJOINED,
            MemberState.JOINING,
            MemberState.CLOSED,
        )

    def _on_heartbeat_tick(self, now_ms: int, _: HeartbeatTick) -> list[Effect]:
        if not self._sends_heartbeats():
            return []
        if self.coordinator is None:
            return self._find_coordinator(now_ms)
        if self._heartbeat.is_session_expired(now_ms):
            self.coordinator = None
            timeout_ms = self.config.session_timeout_ms
            return [
                LogWarning(f"no heartbeat was answered for {timeout_ms} ms"),
                *self._find_coordinator(now_ms),
            ]
        if self._heartbeat.is_poll_expired(now_ms):
            return self._leave_on_poll_timeout()
        if self._heartbeat.should_heartbeat(now_ms):
            return [SendHeartbeat(self._heartbeat.send_heartbeat(now_ms), self.coordinator, self.generation)]
        return []

    def _leave_on_poll_timeout(self) -> list[Effect]:
        self.leave_reason = (
            f"more than max_poll_interval_ms ({self.config.poll_interval_max_ms} ms) passed between two polls, "
            "so the consumer left the group: raise it, or have less to do between polls with max_poll_records"
        )
        return [LogWarning(self.leave_reason), *self._leave("no poll within max.poll.interval.ms")]

    def _on_heartbeat_response(self, now_ms: int, answer: HeartbeatResponse) -> list[Effect]:
        if not self._heartbeat.is_in_flight(answer.heartbeat_id) or not self._sends_heartbeats():
            return []
        if answer.code == ErrorCode.none:
            self._on_heartbeat_accepted(now_ms)
        elif answer.code == ErrorCode.rebalance_in_progress:
            self._on_heartbeat_accepted(now_ms)
            if self.state in (MemberState.STABLE, MemberState.JOINED):
                self._rejoin_reason = "the group is rebalancing"
        else:
            self._heartbeat.failed(now_ms)
            return self._handle_error(now_ms, answer.code, "heartbeat")
        return []

    def _on_heartbeat_accepted(self, now_ms: int) -> None:
        self._heartbeat.answered(now_ms)
        self._find_retry.succeeded()

    def _on_commit_failed(self, now_ms: int, answer: CommitFailed) -> list[Effect]:
        if answer.generation != self.generation:
            return []
        if answer.code == ErrorCode.rebalance_in_progress:
            if self.state is MemberState.STABLE:
                self._rejoin_reason = "a commit met a rebalance"
            return []
        return self._handle_error(now_ms, answer.code, "commit")

    def _handle_error(self, now_ms: int, code: ErrorCode, what: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._on_fenced()
        if code in _MEMBERSHIP_ERRORS:
            self._reset_generation(f"a {what} was refused: {code.name}", code == ErrorCode.illegal_generation)
            return [
                LogWarning(f"the group has gone on without this consumer: {code.name} in answer to a {what}")
            ]
        if code in COORDINATOR_ERRORS:
            self.coordinator = None
            # The same one may be found again, as long as the cluster has no other: it is not asked without end.
            self._find_retry.failed(now_ms)
            return self._find_coordinator(now_ms)
        if not code.retriable:
            self._pending_error = KafkaError(code, f"in answer to a {what}")
        return []

    def _on_metadata_changed(self, now_ms: int, event: MetadataChanged) -> list[Effect]:
        """The leader answers for the whole group: a topic that grew, came or went is shared out anew."""
        if self._assignment_snapshot is not None:
            self._metadata_snapshot = {
                topic: event.partition_counts.get(topic, 0) for topic in self._assignment_snapshot
            }
        return []


def _subtract(partitions: Sequence[Partition], others: Sequence[Partition]) -> tuple[Partition, ...]:
    gone = set(others)
    return tuple(each for each in partitions if each not in gone)
