"""A consumer's side of its group: find the coordinator, join, assign if it leads, sync, and stay by heartbeats.

A pure state machine: `step` takes what happened and says what to do. Partitions change hands only in answer to
`Poll`, that is while the user is in the client's hands and not in the middle of a record; everything else goes on
behind their back. `consumer.py` performs the effects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moldau.client.errors import COORDINATOR_GONE, ErrorCode, KafkaError
from moldau.client.group.assignors import NOTHING, Assignor, Member, Remembered
from moldau.client.group.events import (
    Assign,
    Closed,
    CommitNow,
    CommitRefused,
    CoordinatorFound,
    CoordinatorNotFound,
    Effect,
    Event,
    Fail,
    FetchMetadata,
    FindCoordinator,
    HandBack,
    HeartbeatAnswered,
    JoinAnswered,
    Lose,
    MetadataChanged,
    MetadataFetched,
    Poll,
    Revoke,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    Subscribed,
    SyncAnswered,
    Tick,
    Unsubscribed,
    Warn,
)
from moldau.client.group.leader import read_members, share_out, topics_of
from moldau.client.group.notes import NO_NOTE, decode_note
from moldau.client.group.terms import NO_GENERATION, Generation, MemberSettings, MemberState
from moldau.client.group.timers import Attempts, Heartbeats
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import Partition, Subscription, decode_assignment, encode_subscription

JOIN_LAPSE_MS = 5_000
"""How much longer than the rebalance timeout a join waits: its answer has to travel, too."""

_MEMBERSHIP_GONE = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation)


class Membership:
    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.state = MemberState.UNJOINED
        self.coordinator: int | None = None
        self.generation = NO_GENERATION
        self.owned: tuple[Partition, ...] = ()
        """What the user has, or has been offered with the last `Assign`."""
        self.is_leader = False
        self.left_because = ""
        """Why this consumer is out of the group, where it is its own doing."""
        self._is_cooperative = all(each.is_cooperative for each in settings.assignors)
        self._beats = Heartbeats(
            interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
            poll_interval_max_ms=settings.poll_interval_max_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        self._topics: tuple[str, ...] | None = None
        """None while there is no subscription; one that no topic fits, so far, joins the group all the same."""
        self._joined_topics: tuple[str, ...] | None = None
        self._rejoin_reason = ""
        self._is_prepared = False
        """Whether the user has been told of the rebalance that the next join begins or takes part in."""
        self._attempt = 0
        self._joins = self._attempts()
        self._finds = self._attempts()
        self._is_finding = False
        self._remembered: Remembered = NOTHING
        self._members: Sequence[Member] = ()
        self._skip_assignment = False
        self._offered: tuple[Partition, ...] = ()
        self._note = NO_NOTE
        """What came with the offer."""
        self._watched: dict[str, int] | None = None
        """The leader's: the group's topics, with the partition counts it assigned by."""
        self._counted: dict[str, int] | None = None
        """The same topics, with the partition counts they have now."""
        self._failure: KafkaError | None = None
        self._handlers: Mapping[type, Callable[[int, Any], list[Effect]]] = {
            Poll: self._poll,
            Tick: self._tick,
            Subscribed: self._subscribed,
            HandBack: self._hand_back,
            Unsubscribed: self._unsubscribed,
            Closed: self._closed,
            CoordinatorFound: self._coordinator_found,
            CoordinatorNotFound: self._coordinator_not_found,
            JoinAnswered: self._join_answered,
            MetadataFetched: self._metadata_fetched,
            MetadataChanged: self._metadata_changed,
            SyncAnswered: self._sync_answered,
            HeartbeatAnswered: self._heartbeat_answered,
            CommitRefused: self._commit_refused,
        }

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        if self.state is MemberState.CLOSED:
            return []
        return self._handlers[type(event)](now_ms, event)

    @property
    def is_rebalancing(self) -> bool:
        """Whether a commit would come between two generations."""
        return self.state in (MemberState.JOINING, MemberState.ASSIGNING, MemberState.SYNCING)

    def heartbeat_at_ms(self) -> int | None:
        """When to step a Tick at the latest; None while there is nothing to beat for."""
        if not self._beats_now():
            return None
        if self.coordinator is None:
            return None if self._is_finding else self._finds.next_at_ms
        return self._beats.next_at_ms()

    def retry_at_ms(self) -> int | None:
        """When to step a Poll at the latest, for a user who is polling; None while only answers bring news."""
        if self._topics is None or self._is_finding or self.state is MemberState.FENCED:
            return None
        if self.coordinator is None:
            return self._finds.next_at_ms
        return self._joins.next_at_ms if self._wants_to_join() else None

    # The user

    def _poll(self, now_ms: int, _: Poll) -> list[Effect]:
        self._beats.polled(now_ms)
        if self._failure is not None:
            failure = self._failure
            if self.state is not MemberState.FENCED:
                self._failure = None
            return [*self._give_up_lost(), Fail(failure)]
        if self._topics is None:
            return []
        if self.state is MemberState.JOINED:
            return self._take_offer()
        if self.coordinator is None:
            return self._find(now_ms)
        if self._wants_to_join() and now_ms >= self._joins.next_at_ms:
            return self._prepare() or self._join(self.coordinator)
        return []

    def _subscribed(self, now_ms: int, event: Subscribed) -> list[Effect]:
        self._topics = tuple(sorted(event.topics))
        return []

    def _hand_back(self, now_ms: int, event: HandBack) -> list[Effect]:
        if not self.generation.is_member:
            return self._give_up_lost()
        owned, self.owned = self.owned, ()
        return self._revoke(owned, event.commit)

    def _unsubscribed(self, now_ms: int, _: Unsubscribed) -> list[Effect]:
        self._topics = self._joined_topics = None
        return self._leave("the consumer unsubscribed")

    def _closed(self, now_ms: int, _: Closed) -> list[Effect]:
        effects = self._leave("the consumer was closed")
        self.state = MemberState.CLOSED
        return effects

    def _leave(self, reason: str) -> list[Effect]:
        """A static member stays in its group until its session is over: it may be back before that."""
        generation = self.generation
        self._reset("", keeps_member_id=False)
        if self.settings.instance_id is not None or self.coordinator is None or not generation.member_id:
            return []
        return [SendLeave(self.coordinator, generation.member_id, reason)]

    # Rejoining

    def _wants_to_join(self) -> bool:
        if self.state is MemberState.UNJOINED:
            return True
        return self.state is MemberState.STABLE and self._reason_to_rejoin() != ""

    def _reason_to_rejoin(self) -> str:
        if self._rejoin_reason:
            return self._rejoin_reason
        if self._joined_topics is not None and self._topics != self._joined_topics:
            return "the subscription has changed"
        return "partitions of the group's topics have come or gone" if self._counted != self._watched else ""

    def _prepare(self) -> list[Effect]:
        """What the user must be told and let do before the join goes out."""
        if self._is_prepared:
            return []
        self._is_prepared = True
        if not self.owned:
            return []
        if not self.generation.is_member:
            return self._give_up_lost()
        kept = [each for each in self.owned if self._is_cooperative and each[0] in (self._topics or ())]
        revoked = _without(self.owned, kept)
        self.owned = tuple(kept)
        return self._revoke(revoked)

    def _revoke(self, partitions: tuple[Partition, ...], commit: bool = True) -> list[Effect]:
        if not partitions:
            return []
        commits: list[Effect] = [CommitNow()] if commit and self.settings.auto_commit else []
        return [*commits, Revoke(partitions)]

    def _give_up_lost(self) -> list[Effect]:
        if not self.owned or self.generation.is_member:
            return []
        lost, self.owned = self.owned, ()
        return [Lose(lost)]

    def _join(self, coordinator: int) -> list[Effect]:
        reason = self._reason_to_rejoin()
        self.state = MemberState.JOINING
        self._follow()
        self._rejoin_reason = ""
        topics = self._joined_topics = self._topics or ()
        self._attempt += 1
        protocols = tuple(
            (each.name, self._subscription_for(each, topics)) for each in self.settings.assignors
        )
        timeout_ms = self.settings.poll_interval_max_ms + JOIN_LAPSE_MS
        return [
            SendJoin(self._attempt, coordinator, self.generation.member_id, protocols, reason, timeout_ms)
        ]

    def _subscription_for(self, assignor: Assignor, topics: tuple[str, ...]) -> bytes:
        user_data = assignor.user_data(self._remembered)
        return encode_subscription(Subscription(topics, user_data, self.owned, self.generation.generation_id))

    def _join_answered(self, now_ms: int, answer: JoinAnswered) -> list[Effect]:
        if self.state is not MemberState.JOINING or answer.attempt != self._attempt:
            return []
        if answer.code == ErrorCode.member_id_required:
            # The coordinator knows the id now: members that vanish before they have one leave no trace.
            self.generation = Generation(member_id=answer.member_id)
            self.state = MemberState.UNJOINED
            assert self.coordinator is not None
            return self._join(self.coordinator)
        if answer.code != ErrorCode.none:
            return self._join_failed(now_ms, answer.code, answer.message, "join")
        self.generation = Generation(answer.generation_id, answer.member_id, answer.protocol)
        self.is_leader = answer.leader_id == answer.member_id
        self.left_because = ""
        self._beats.begin(now_ms)
        if not self.is_leader:
            return self._sync(())
        self.state = MemberState.ASSIGNING
        self._skip_assignment = answer.skip_assignment
        try:
            self._members = read_members(answer.members)
        except DecodeError as error:
            return self._assignment_failed(now_ms, str(error))
        return [FetchMetadata(self._attempt, topics_of(self._members))]

    # Assigning and syncing

    def _metadata_fetched(self, now_ms: int, event: MetadataFetched) -> list[Effect]:
        if self.state is not MemberState.ASSIGNING or event.attempt != self._attempt:
            return []
        if event.partition_counts is None:
            return self._join_again(now_ms, "the leader could not fetch metadata")
        topics = topics_of(self._members)
        self._watched = {topic: event.partition_counts.get(topic, 0) for topic in topics}
        self._counted = self._watched
        if self._skip_assignment:
            return self._sync(())
        chosen = [each for each in self.settings.assignors if each.name == self.generation.protocol]
        if not chosen:
            return self._assignment_failed(
                now_ms, f"the coordinator chose the assignor {self.generation.protocol!r}, which is not ours"
            )
        shares = share_out(chosen[0], self._watched, self._members, self.generation.member_id)
        return self._sync(shares)

    def _assignment_failed(self, now_ms: int, message: str) -> list[Effect]:
        self._failure = KafkaError(ErrorCode.inconsistent_group_protocol, message)
        return self._join_again(now_ms, message)

    def _sync(self, assignments: Sequence[tuple[str, bytes]]) -> list[Effect]:
        if self.coordinator is None:
            # Lost while the metadata was on its way; the next poll looks for it and joins again.
            self.state = MemberState.UNJOINED
            return []
        self.state = MemberState.SYNCING
        return [SendSync(self._attempt, self.coordinator, self.generation, tuple(assignments))]

    def _sync_answered(self, now_ms: int, answer: SyncAnswered) -> list[Effect]:
        if self.state is not MemberState.SYNCING or answer.attempt != self._attempt:
            return []
        if answer.code != ErrorCode.none:
            return self._join_failed(now_ms, answer.code, answer.message, "sync")
        try:
            assignment = decode_assignment(answer.assignment)
        except DecodeError as error:
            return self._assignment_failed(now_ms, f"the assignment cannot be read: {error}")
        if any(topic not in (self._topics or ()) for topic, _ in assignment.partitions):
            return self._join_again(now_ms, "the assignment has topics that are not subscribed to")
        self.state = MemberState.JOINED
        self._offered = tuple(sorted(assignment.partitions))
        self._note = decode_note(assignment.user_data)
        if self.is_leader and self._note.partition_counts is not None:
            # One that came back did not share out the partitions itself.
            self._watched = dict(self._note.partition_counts)
        self._joins.succeeded()
        self._finds.succeeded()
        return []

    def _take_offer(self) -> list[Effect]:
        self.state = MemberState.STABLE
        self._is_prepared = False
        added, revoked = _without(self._offered, self.owned), _without(self.owned, self._offered)
        if revoked or self._note.hands_over:
            self._rejoin_reason = "partitions were given up for others to have"
        self.owned = self._offered
        self._remembered = Remembered(self.owned, self.generation.generation_id)
        return [*self._revoke(revoked), Assign(self.owned, added)]

    # What goes wrong on the way in

    def _join_failed(self, now_ms: int, code: ErrorCode, message: str, what: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._fenced()
        if code in _MEMBERSHIP_GONE:
            self._reset(f"the {what} was refused: {code.name}", code == ErrorCode.illegal_generation)
            self._joins.failed(now_ms)
            return []
        if code in COORDINATOR_GONE:
            self.coordinator = None
            return self._join_again(now_ms, f"the coordinator was lost in the {what}")
        if not code.retriable and code != ErrorCode.rebalance_in_progress:
            self._failure = KafkaError(
                code, message or f"the group {self.settings.group_id!r} refused a {what}"
            )
        return self._join_again(now_ms, f"the {what} failed: {code.name}")

    def _join_again(self, now_ms: int, reason: str) -> list[Effect]:
        """Out of this round, with the member id and without the user being told again."""
        self.state = MemberState.UNJOINED
        self._rejoin_reason = reason
        self._joins.failed(now_ms)
        return []

    def _reset(self, reason: str, keeps_member_id: bool) -> None:
        """Out of the generation: what the user has is lost, unless it is handed back first."""
        self.generation = Generation(member_id=self.generation.member_id if keeps_member_id else "")
        self.state = MemberState.UNJOINED
        self._follow()
        self._is_prepared = False
        self._rejoin_reason = reason

    def _follow(self) -> None:
        self.is_leader = False
        self._watched = self._counted = None

    def _fenced(self) -> list[Effect]:
        instance_id = self.settings.instance_id
        self._reset("", keeps_member_id=False)
        self.state = MemberState.FENCED
        self._failure = KafkaError(
            ErrorCode.fenced_instance_id,
            f"another consumer of the group {self.settings.group_id!r} has taken the instance id "
            f"{instance_id!r}; close this one",
        )
        return [Warn(self._failure.message)]

    # The coordinator

    def _find(self, now_ms: int) -> list[Effect]:
        if self._is_finding or now_ms < self._finds.next_at_ms:
            return []
        self._is_finding = True
        return [FindCoordinator()]

    def _coordinator_found(self, now_ms: int, event: CoordinatorFound) -> list[Effect]:
        self._is_finding = False
        self.coordinator = event.node_id
        self._beats.begin_again(now_ms)
        return []

    def _coordinator_not_found(self, now_ms: int, event: CoordinatorNotFound) -> list[Effect]:
        self._is_finding = False
        self._finds.failed(now_ms)
        if not event.code.retriable:
            self._failure = KafkaError(event.code, event.message)
        return []

    def _attempts(self) -> Attempts:
        return Attempts(
            backoff_ms=self.settings.retry_backoff_ms, backoff_max_ms=self.settings.retry_backoff_max_ms
        )

    # Staying

    def _beats_now(self) -> bool:
        return self.generation.is_member and self.state not in (
            MemberState.UNJOINED,
            MemberState.JOINING,
            MemberState.CLOSED,
        )

    def _tick(self, now_ms: int, _: Tick) -> list[Effect]:
        if not self._beats_now():
            return []
        if self.coordinator is None:
            return self._find(now_ms)
        if self._beats.is_session_over(now_ms):
            self.coordinator = None
            timeout_ms = self.settings.session_timeout_ms
            return [Warn(f"no heartbeat was answered for {timeout_ms} ms"), *self._find(now_ms)]
        if self._beats.is_poll_overdue(now_ms):
            return self._leave_for_not_polling()
        if self._beats.is_due(now_ms):
            return [SendHeartbeat(self._beats.send(now_ms), self.coordinator, self.generation)]
        return []

    def _leave_for_not_polling(self) -> list[Effect]:
        self.left_because = (
            f"more than max_poll_interval_ms ({self.settings.poll_interval_max_ms} ms) passed between two polls, "
            "so the consumer left the group: raise it, or have less to do between polls with max_poll_records"
        )
        return [Warn(self.left_because), *self._leave("no poll within max.poll.interval.ms")]

    def _heartbeat_answered(self, now_ms: int, answer: HeartbeatAnswered) -> list[Effect]:
        if not self._beats.is_awaited(answer.beat) or not self._beats_now():
            return []
        if answer.code == ErrorCode.none:
            self._accepted(now_ms)
        elif answer.code == ErrorCode.rebalance_in_progress:
            self._accepted(now_ms)
            if self.state in (MemberState.STABLE, MemberState.JOINED):
                self._rejoin_reason = "the group is rebalancing"
        else:
            self._beats.failed(now_ms)
            return self._refused(now_ms, answer.code, "heartbeat")
        return []

    def _accepted(self, now_ms: int) -> None:
        self._beats.answered(now_ms)
        self._finds.succeeded()

    def _commit_refused(self, now_ms: int, answer: CommitRefused) -> list[Effect]:
        if answer.generation != self.generation:
            return []
        if answer.code == ErrorCode.rebalance_in_progress:
            if self.state is MemberState.STABLE:
                self._rejoin_reason = "a commit met a rebalance"
            return []
        return self._refused(now_ms, answer.code, "commit")

    def _refused(self, now_ms: int, code: ErrorCode, what: str) -> list[Effect]:
        if code == ErrorCode.fenced_instance_id:
            return self._fenced()
        if code in _MEMBERSHIP_GONE:
            self._reset(f"a {what} was refused: {code.name}", code == ErrorCode.illegal_generation)
            return [Warn(f"the group has gone on without this consumer: {code.name} in answer to a {what}")]
        if code in COORDINATOR_GONE:
            self.coordinator = None
            # The same one may be found again, as long as the cluster has no other: it is not asked without end.
            self._finds.failed(now_ms)
            return self._find(now_ms)
        if not code.retriable:
            self._failure = KafkaError(code, f"in answer to a {what}")
        return []

    def _metadata_changed(self, now_ms: int, event: MetadataChanged) -> list[Effect]:
        """The leader answers for the whole group: a topic that grew, came or went is shared out anew."""
        if self._watched is not None:
            self._counted = {topic: event.partition_counts.get(topic, 0) for topic in self._watched}
        return []


def _without(partitions: Sequence[Partition], others: Sequence[Partition]) -> tuple[Partition, ...]:
    gone = set(others)
    return tuple(each for each in partitions if each not in gone)
