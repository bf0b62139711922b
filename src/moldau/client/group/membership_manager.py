"""The consumer's group membership as a pure state machine: find the coordinator, join, assign, sync and heartbeat.

`step` takes an event and returns effects, which `driver.py` and the consumer perform. Partitions change only in
response to `UserPoll` or `RevokeAll`, so never while the user processes records.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.client.errors import COORDINATOR_ERRORS, ErrorCode, KafkaError
from moldau.client.group import events
from moldau.client.group.assignors import (
    NO_ASSIGNMENT,
    NO_USER_DATA,
    PreviousAssignment,
    decode_members,
    decode_user_data,
    perform_assignment,
    subscribed_topics,
)
from moldau.client.group.events import Effect, Event
from moldau.client.group.member_state import (
    NO_GENERATION,
    Generation,
    GroupRebalanceConfig,
    Heartbeat,
    MemberState,
    RetrySchedule,
)
from moldau.client.group.sticky_assignment import SubscribedMember
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import Partition, Subscription, decode_assignment, encode_subscription

JOIN_GROUP_TIMEOUT_LAPSE_MS = 5_000
"""How much the request timeout of JoinGroup exceeds the rebalance timeout, so that the response can arrive."""

_MEMBERSHIP_ERRORS = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)


@dataclass(slots=True)
class LeaderState:
    """State that only the group leader has."""

    members: Sequence[SubscribedMember] = ()
    skip_assignment: bool = False
    assignment_snapshot: dict[str, int] | None = None
    """The partition counts of the group's topics on which the assignment is based."""
    metadata_snapshot: dict[str, int] | None = None
    """The current partition counts of the topics in `assignment_snapshot`."""


class MembershipManager:
    """The state of one member; `step` returns the effects of an event."""

    def __init__(self, config: GroupRebalanceConfig) -> None:
        self.config = config
        self.state = MemberState.UNJOINED
        self.coordinator: int | None = None
        self.generation = NO_GENERATION
        self.owned_partitions: tuple[Partition, ...] = ()
        """The partitions that the user owns, including those of the last `AssignPartitions` effect."""
        self.is_leader = False
        self.leave_reason = ""
        """Why this consumer left the group by itself, because the user did not poll in time; empty if it did not."""
        self._is_cooperative = all(each.is_cooperative for each in config.assignors)
        self._heartbeat = Heartbeat(config)
        self._topics: tuple[str, ...] | None = None
        """The subscribed topics; None without a subscription. A pattern may match no topics yet."""
        self._joined_topics: tuple[str, ...] | None = None
        self._rejoin_reason = ""
        self._is_join_prepared = False
        """Whether the partitions that must be revoked before the next join have been revoked."""
        self._join_attempt = 0
        self._join_retry = RetrySchedule(config)
        self._find_retry = RetrySchedule(config)
        self._is_finding_coordinator = False
        self._previous_assignment: PreviousAssignment = NO_ASSIGNMENT
        self._leader = LeaderState()
        self._pending_assignment: tuple[Partition, ...] = ()
        self._pending_user_data = NO_USER_DATA
        self._pending_error: KafkaError | None = None
        self._handlers: Mapping[type, Callable[[int, Any], list[Effect]]] = {
            events.UserPoll: self._on_poll,
            events.HeartbeatTick: self._on_heartbeat_tick,
            events.SubscriptionChanged: self._on_subscription_changed,
            events.RevokeAll: self._on_revoke_all,
            events.Unsubscribed: self._on_unsubscribed,
            events.Closed: self._on_closed,
            events.CoordinatorFound: self._on_coordinator_found,
            events.CoordinatorNotFound: self._on_coordinator_not_found,
            events.JoinResponse: self._on_join_response,
            events.MetadataFetchCompleted: self._on_metadata_fetched,
            events.MetadataChanged: self._on_metadata_changed,
            events.SyncResponse: self._on_sync_response,
            events.HeartbeatResponse: self._on_heartbeat_response,
            events.CommitFailed: self._on_commit_failed,
        }

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        if self.state is MemberState.CLOSED:
            return []
        return self._handlers[type(event)](now_ms, event)

    @property
    def is_rebalancing(self) -> bool:
        """Whether the member is between two generations and cannot commit."""
        return self.state in (MemberState.JOINING, MemberState.ASSIGNING, MemberState.SYNCING)

    def next_heartbeat_at_ms(self) -> int | None:
        """Returns when the next HeartbeatTick is due; None while the member sends no heartbeats."""
        if not self._sends_heartbeats():
            return None
        if self.coordinator is None:
            return None if self._is_finding_coordinator else self._find_retry.next_at_ms
        return self._heartbeat.next_at_ms()

    def next_poll_at_ms(self) -> int | None:
        """Returns when the next UserPoll is due; None if only a response can make progress."""
        if self._topics is None or self._is_finding_coordinator or self.state is MemberState.FENCED:
            return None
        if self.coordinator is None:
            return self._find_retry.next_at_ms
        return self._join_retry.next_at_ms if self._needs_join() else None

    # The user

    def _on_poll(self, now_ms: int, _: events.UserPoll) -> list[Effect]:
        self._heartbeat.poll_deadline_ms = now_ms + self.config.poll_interval_max_ms
        if self._pending_error is not None:
            error = self._pending_error
            if self.state is not MemberState.FENCED:
                self._pending_error = None
            return [*self._lose_partitions(), events.RaiseError(error)]
        if self._topics is None:
            return []
        if self.state is MemberState.JOINED:
            return self._on_join_complete()
        if self.coordinator is None:
            return self._find_coordinator(now_ms)
        if self._needs_join() and now_ms >= self._join_retry.next_at_ms:
            return self._on_join_prepare() or self._send_join(self.coordinator)
        return []

    def _on_subscription_changed(self, now_ms: int, event: events.SubscriptionChanged) -> list[Effect]:
        self._topics = tuple(sorted(event.topics))
        return []

    def _on_revoke_all(self, now_ms: int, event: events.RevokeAll) -> list[Effect]:
        if not self.generation.is_member:
            return self._lose_partitions()
        owned, self.owned_partitions = self.owned_partitions, ()
        return self._revoke_partitions(owned, event.commit)

    def _on_unsubscribed(self, now_ms: int, _: events.Unsubscribed) -> list[Effect]:
        self._topics = self._joined_topics = None
        return self._leave("the consumer unsubscribed")

    def _on_closed(self, now_ms: int, _: events.Closed) -> list[Effect]:
        effects = self._leave("the consumer was closed")
        self.state = MemberState.CLOSED
        return effects

    def _leave(self, reason: str) -> list[Effect]:
        """Leaves the group. A static member sends no LeaveGroup, because it may return before its session expires."""
        generation = self.generation
        self._reset_generation("", keep_member_id=False)
        if self.config.instance_id is not None or self.coordinator is None or not generation.member_id:
            return []
        return [events.SendLeave(self.coordinator, generation.member_id, reason)]

    # Joining

    def _needs_join(self) -> bool:
        if self.state is MemberState.UNJOINED:
            return True
        return self.state is MemberState.STABLE and self._current_rejoin_reason() != ""

    def _current_rejoin_reason(self) -> str:
        if self._rejoin_reason:
            return self._rejoin_reason
        if self._joined_topics is not None and self._topics != self._joined_topics:
            return "the subscription has changed"
        is_outdated = self._leader.metadata_snapshot != self._leader.assignment_snapshot
        return "the partition counts of the group's topics changed" if is_outdated else ""

    def _on_join_prepare(self) -> list[Effect]:
        """Revokes the partitions that the user must give up before the join, once per rebalance."""
        if self._is_join_prepared:
            return []
        self._is_join_prepared = True
        if not self.owned_partitions:
            return []
        if not self.generation.is_member:
            return self._lose_partitions()
        kept = [each for each in self.owned_partitions if self._is_cooperative and each[0] in (self._topics or ())]
        revoked = _subtract(self.owned_partitions, kept)
        self.owned_partitions = tuple(kept)
        return self._revoke_partitions(revoked)

    def _revoke_partitions(self, partitions: tuple[Partition, ...], commit: bool = True) -> list[Effect]:
        if not partitions:
            return []
        commits: list[Effect] = [events.CommitOffsets()] if commit and self.config.auto_commit else []
        return [*commits, events.RevokePartitions(partitions)]

    def _lose_partitions(self) -> list[Effect]:
        if not self.owned_partitions or self.generation.is_member:
            return []
        lost, self.owned_partitions = self.owned_partitions, ()
        return [events.LosePartitions(lost)]

    def _send_join(self, coordinator: int) -> list[Effect]:
        topics = self._topics or ()
        protocols = []
        # The assignor may be the user's, so call it before the state changes.
        for each in self.config.assignors:
            user_data = each.user_data(self._previous_assignment)
            subscription = Subscription(topics, user_data, self.owned_partitions, self.generation.generation_id)
            protocols.append((each.name, encode_subscription(subscription)))
        reason = self._current_rejoin_reason()
        self.state = MemberState.JOINING
        self._clear_leadership()
        self._rejoin_reason = ""
        self._joined_topics = topics
        self._join_attempt += 1
        timeout_ms = self.config.poll_interval_max_ms + JOIN_GROUP_TIMEOUT_LAPSE_MS
        member_id = self.generation.member_id
        return [events.SendJoin(self._join_attempt, coordinator, member_id, tuple(protocols), reason, timeout_ms)]

    def _on_join_response(self, now_ms: int, response: events.JoinResponse) -> list[Effect]:
        if self.state is not MemberState.JOINING or response.attempt != self._join_attempt:
            return []
        if response.code == ErrorCode.member_id_required:
            # Join again with the member id that the coordinator allocated. A client that crashes before the second join
            # does not become a member.
            self.generation = Generation(member_id=response.member_id)
            self.state = MemberState.UNJOINED
            assert self.coordinator is not None
            return self._send_join(self.coordinator)
        if response.code != ErrorCode.none:
            return self._on_join_failed(now_ms, response.code, response.message, "join")
        self.generation = Generation(response.generation_id, response.member_id, response.protocol)
        self.is_leader = response.leader_id == response.member_id
        self.leave_reason = ""
        self._heartbeat.restart(now_ms, now_ms + self.config.heartbeat_interval_ms)
        if not self.is_leader:
            return self._send_sync(())
        self.state = MemberState.ASSIGNING
        self._leader.skip_assignment = response.skip_assignment
        try:
            self._leader.members = decode_members(response.members)
        except DecodeError as error:
            return self._on_assignment_failed(now_ms, str(error))
        return [events.FetchMetadata(self._join_attempt, subscribed_topics(self._leader.members))]

    # Assigning and syncing

    def _on_metadata_fetched(self, now_ms: int, event: events.MetadataFetchCompleted) -> list[Effect]:
        if self.state is not MemberState.ASSIGNING or event.attempt != self._join_attempt:
            return []
        if event.partition_counts is None:
            return self._request_rejoin(now_ms, "the leader could not fetch metadata")
        counts = _counts_of(subscribed_topics(self._leader.members), event.partition_counts)
        self._leader.assignment_snapshot = self._leader.metadata_snapshot = counts
        if self._leader.skip_assignment:
            return self._send_sync(())
        selected = [each for each in self.config.assignors if each.name == self.generation.protocol]
        if not selected:
            return self._on_assignment_failed(
                now_ms, f"the coordinator selected the unknown assignor {self.generation.protocol!r}"
            )
        try:
            assignments = perform_assignment(selected[0], counts, self._leader.members, self.generation.member_id)
        except Exception as error:
            # The assignor may be the user's. The next poll raises the error.
            return self._on_assignment_failed(now_ms, f"the assignor {selected[0].name!r} failed: {error!r}", error)
        return self._send_sync(assignments)

    def _on_assignment_failed(self, now_ms: int, message: str, cause: Exception | None = None) -> list[Effect]:
        self._pending_error = KafkaError(ErrorCode.inconsistent_group_protocol, message)
        self._pending_error.__cause__ = cause
        return self._request_rejoin(now_ms, message)

    def _send_sync(self, assignments: Sequence[tuple[str, bytes]]) -> list[Effect]:
        if self.coordinator is None:
            # The coordinator was lost during the metadata fetch. The next poll finds the coordinator and joins again.
            self.state = MemberState.UNJOINED
            return []
        self.state = MemberState.SYNCING
        return [events.SendSync(self._join_attempt, self.coordinator, self.generation, tuple(assignments))]

    def _on_sync_response(self, now_ms: int, response: events.SyncResponse) -> list[Effect]:
        if self.state is not MemberState.SYNCING or response.attempt != self._join_attempt:
            return []
        if response.code != ErrorCode.none:
            return self._on_join_failed(now_ms, response.code, response.message, "sync")
        try:
            assignment = decode_assignment(response.assignment)
        except DecodeError as error:
            return self._on_assignment_failed(now_ms, f"the assignment cannot be decoded: {error}")
        if any(topic not in (self._topics or ()) for topic, _ in assignment.partitions):
            return self._request_rejoin(now_ms, "the assignment has topics that are not subscribed to")
        self.state = MemberState.JOINED
        self._pending_assignment = tuple(sorted(assignment.partitions))
        self._pending_user_data = decode_user_data(assignment.user_data)
        if self.is_leader and self._pending_user_data.partition_counts is not None:
            # A restarted static leader did not compute this assignment. So take the partition counts from the
            # assignment's user data, to notice later changes of them.
            self._leader.assignment_snapshot = dict(self._pending_user_data.partition_counts)
        self._join_retry.record_success()
        self._find_retry.record_success()
        return []

    def _on_join_complete(self) -> list[Effect]:
        """Applies the pending assignment in the user's poll."""
        self.state = MemberState.STABLE
        self._is_join_prepared = False
        added = _subtract(self._pending_assignment, self.owned_partitions)
        revoked = _subtract(self.owned_partitions, self._pending_assignment)
        if revoked or self._pending_user_data.hands_over:
            self._rejoin_reason = "partitions were revoked for other consumers"
        self.owned_partitions = self._pending_assignment
        self._previous_assignment = PreviousAssignment(self.owned_partitions, self.generation.generation_id)
        return [*self._revoke_partitions(revoked), events.AssignPartitions(self.owned_partitions, added)]

    def _on_join_failed(self, now_ms: int, code: ErrorCode, message: str, request: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._on_fenced()
        if code in _MEMBERSHIP_ERRORS:
            self._reset_generation(f"the {request} was refused: {code.name}", code == ErrorCode.illegal_generation)
            self._join_retry.record_failure(now_ms)
            return []
        if code in COORDINATOR_ERRORS:
            self.coordinator = None
            return self._request_rejoin(now_ms, f"the coordinator was lost in the {request}")
        if not code.retriable and code != ErrorCode.rebalance_in_progress:
            self._pending_error = KafkaError(
                code, message or f"the group {self.config.group_id!r} rejected a {request}"
            )
        return self._request_rejoin(now_ms, f"the {request} failed: {code.name}")

    def _request_rejoin(self, now_ms: int, reason: str) -> list[Effect]:
        """Abandons this rebalance and joins again with the same member id and without another revocation."""
        self.state = MemberState.UNJOINED
        self._rejoin_reason = reason
        self._join_retry.record_failure(now_ms)
        return []

    def _reset_generation(self, reason: str, keep_member_id: bool) -> None:
        """Leaves the generation. Partitions that the user still owns are reported as lost in a later poll."""
        self.generation = Generation(member_id=self.generation.member_id if keep_member_id else "")
        self.state = MemberState.UNJOINED
        self._clear_leadership()
        self._is_join_prepared = False
        self._rejoin_reason = reason

    def _clear_leadership(self) -> None:
        self.is_leader = False
        self._leader = LeaderState()

    def _on_fenced(self) -> list[Effect]:
        self._reset_generation("", keep_member_id=False)
        self.state = MemberState.FENCED
        self._pending_error = KafkaError(
            ErrorCode.fenced_instance_id,
            f"another consumer of the group {self.config.group_id!r} uses the instance id "
            f"{self.config.instance_id!r}; close this one",
        )
        return [events.LogWarning(self._pending_error.message)]

    # The coordinator

    def _find_coordinator(self, now_ms: int) -> list[Effect]:
        if self._is_finding_coordinator or now_ms < self._find_retry.next_at_ms:
            return []
        self._is_finding_coordinator = True
        return [events.FindCoordinator()]

    def _on_coordinator_found(self, now_ms: int, event: events.CoordinatorFound) -> list[Effect]:
        self._is_finding_coordinator = False
        self.coordinator = event.node_id
        # Start a new session and send a heartbeat now, because the session deadline may have passed during the lookup.
        self._heartbeat.restart(now_ms, now_ms)
        return []

    def _on_coordinator_not_found(self, now_ms: int, event: events.CoordinatorNotFound) -> list[Effect]:
        self._is_finding_coordinator = False
        self._find_retry.record_failure(now_ms)
        if not event.code.retriable:
            self._pending_error = KafkaError(event.code, event.message)
        return []

    # Heartbeats

    def _sends_heartbeats(self) -> bool:
        return self.generation.is_member and self.state not in (
            MemberState.UNJOINED,
            MemberState.JOINING,
            MemberState.CLOSED,
        )

    def _on_heartbeat_tick(self, now_ms: int, _: events.HeartbeatTick) -> list[Effect]:
        if not self._sends_heartbeats():
            return []
        if self.coordinator is None:
            return self._find_coordinator(now_ms)
        if now_ms >= self._heartbeat.session_deadline_ms:
            self.coordinator = None
            timeout_ms = self.config.session_timeout_ms
            return [events.LogWarning(f"no heartbeat response for {timeout_ms} ms"), *self._find_coordinator(now_ms)]
        if now_ms >= self._heartbeat.poll_deadline_ms:
            return self._leave_on_poll_timeout()
        if self._heartbeat.should_send(now_ms):
            return [events.SendHeartbeat(self._heartbeat.send(now_ms), self.coordinator, self.generation)]
        return []

    def _leave_on_poll_timeout(self) -> list[Effect]:
        self.leave_reason = (
            f"the time between polls exceeded max_poll_interval_ms ({self.config.poll_interval_max_ms} ms), so the "
            "consumer left the group: raise it, or process fewer records per poll with max_poll_records"
        )
        return [events.LogWarning(self.leave_reason), *self._leave("no poll within max.poll.interval.ms")]

    def _on_heartbeat_response(self, now_ms: int, response: events.HeartbeatResponse) -> list[Effect]:
        if response.heartbeat_id != self._heartbeat.in_flight_id or not self._sends_heartbeats():
            return []
        if response.code not in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            self._heartbeat.record_failure(now_ms)
            return self._handle_error(now_ms, response.code, "heartbeat")
        self._heartbeat.record_success(now_ms)
        self._find_retry.record_success()
        is_joined = self.state in (MemberState.STABLE, MemberState.JOINED)
        if response.code == ErrorCode.rebalance_in_progress and is_joined:
            self._rejoin_reason = "the group is rebalancing"
        return []

    def _on_commit_failed(self, now_ms: int, event: events.CommitFailed) -> list[Effect]:
        if event.generation != self.generation:
            return []
        if event.code == ErrorCode.rebalance_in_progress:
            if self.state is MemberState.STABLE:
                self._rejoin_reason = "a commit hit a rebalance"
            return []
        return self._handle_error(now_ms, event.code, "commit")

    def _handle_error(self, now_ms: int, code: ErrorCode, request: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._on_fenced()
        if code in _MEMBERSHIP_ERRORS:
            self._reset_generation(f"a {request} was refused: {code.name}", code == ErrorCode.illegal_generation)
            return [
                events.LogWarning(f"the group rebalanced without this consumer: a {request} failed with {code.name}")
            ]
        if code in COORDINATOR_ERRORS:
            self.coordinator = None
            # Repeated lookups back off, because a lookup may return the same failing coordinator again.
            self._find_retry.record_failure(now_ms)
            return self._find_coordinator(now_ms)
        if not code.retriable:
            self._pending_error = KafkaError(code, f"in response to a {request}")
        return []

    def _on_metadata_changed(self, now_ms: int, event: events.MetadataChanged) -> list[Effect]:
        """Updates the partition counts. If they have changed, the leader rejoins, which rebalances the whole group."""
        if self._leader.assignment_snapshot is not None:
            self._leader.metadata_snapshot = _counts_of(self._leader.assignment_snapshot, event.partition_counts)
        return []


def _counts_of(topics: Iterable[str], partition_counts: Mapping[str, int]) -> dict[str, int]:
    return {topic: partition_counts.get(topic, 0) for topic in topics}


def _subtract(partitions: Sequence[Partition], others: Sequence[Partition]) -> tuple[Partition, ...]:
    excluded = set(others)
    return tuple(each for each in partitions if each not in excluded)
