"""For tests of the groups of a partition: a state and its log, run as the driver runs them, and requests in short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from moldau.errors import CoordinatorNotAvailableError, MoldauError
from moldau.groups.formats import decode, encode
from moldau.groups.records import NO_EXPIRY, CommittedOffset, GroupRecord
from moldau.groups.requests import (
    DONE,
    CommitReply,
    CommitRequest,
    DeleteOffsetsReply,
    GroupDecision,
    GroupDescription,
    GroupLimits,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    ListReply,
    MemberClaim,
    Now,
    OffsetsReply,
    OffsetToCommit,
    Protocol,
    Reply,
    SyncReply,
    SyncRequest,
    TopicKey,
    TopicPartition,
)
from moldau.groups.state import GroupsState
from moldau.wire.consumer_protocol import Subscription, decode_subscription, encode_subscription

R = TypeVar("R")

RETENTION_MS = 1_000_000
LIMITS = GroupLimits(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS)
SESSION_MS = 10_000
WALL_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)


@dataclass
class Groups:
    """A state and its log, run as the driver runs them; records go through their bytes."""

    state: GroupsState = field(default_factory=lambda: GroupsState(LIMITS))
    log: list[GroupRecord] = field(default_factory=list)
    now_ms: int = 1_000
    tickets: int = 0
    answers: dict[int, Reply | MoldauError] = field(default_factory=dict)
    fresh_ids: int = 0
    lose_writes: bool = False
    """The log takes nothing: who asks gets an error, and nothing is applied."""

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def ask(self, step: Callable[[int], GroupDecision]) -> int:
        """Runs a request's decision; what is answered by it, to whomever, is in `answers`."""
        self.tickets += 1
        try:
            self.run(step(self.tickets))
        except MoldauError as error:
            self.answers[self.tickets] = error
        return self.tickets

    def run(self, decision: GroupDecision) -> Sequence[GroupRecord]:
        records = [read for key, value in map(encode, decision.records) if (read := decode(key, value))]
        assert records == list(decision.records)
        if records and self.lose_writes:
            for answer in decision.reply:
                self.answers[answer.ticket] = CoordinatorNotAvailableError("the log takes nothing")
            return []
        if records:
            self.log += records
            self.state.apply(records, len(self.log))
        for ticket, reply in decision.reply:
            assert ticket not in self.answers, "an answer is given once"
            self.answers[ticket] = reply
        return records

    def answer(self, kind: type[R], step: Callable[[int], GroupDecision]) -> R:
        reply = self.answers[self.ask(step)]
        if isinstance(reply, MoldauError):
            raise reply
        assert isinstance(reply, kind)
        return reply

    def pass_time(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (due_ms := self.state.next_deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.run(self.state.tick(self.now))
        self.now_ms = until_ms

    def expire(self) -> list[GroupRecord]:
        written: list[GroupRecord] = []
        while (decision := self.state.expire(self.now)) is not None:
            written += self.run(decision)
        return written

    def forget(self, *topics: TopicKey) -> list[Sequence[GroupRecord]]:
        """What each decision writes when these topics are deleted."""
        written = []
        deleted = dict.fromkeys(topics, self.now.wall_ms)
        while (decision := self.state.forget_topics(self.now, deleted)) is not None:
            written.append(self.run(decision))
        return written

    def restarted(self) -> "Groups":
        """The same log on another node, some time later."""
        after = Groups(log=list(self.log), now_ms=self.now_ms)
        after.state.apply(after.log, len(after.log))
        after.run(after.state.loaded(after.now))
        return after

    # Requests

    def join(
        self,
        group_id: str = "g",
        *,
        member_id: str = "",
        instance_id: str | None = None,
        topics: Sequence[str] = ("orders",),
        protocol_type: str = "consumer",
        session_timeout_ms: int = SESSION_MS,
        metadata: bytes | None = None,
        requires_known_member_id: bool = False,
    ) -> int:
        self.fresh_ids += 1
        request = JoinRequest(
            group_id=group_id,
            member_id=member_id,
            fresh_member_id=f"member-{self.fresh_ids}",
            instance_id=instance_id,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type=protocol_type,
            protocols=(Protocol("range", metadata or encode_subscription(Subscription(tuple(topics)))),),
            requires_known_member_id=requires_known_member_id,
            supports_skipping_assignment=True,
        )
        return self.ask(lambda ticket: self.state.join(self.now, request, ticket))

    def joined(self, group_id: str = "g", **details: object) -> MemberClaim:
        """A member that is alone in its group, which waits for it to sync."""
        ticket = self.join(group_id, **details)  # type: ignore[arg-type]
        self.pass_time(0)
        reply = self.answers[ticket]
        assert isinstance(reply, JoinReply), reply
        instance_id = details.get("instance_id")
        assert instance_id is None or isinstance(instance_id, str)
        return MemberClaim(
            group_id=group_id,
            generation=reply.generation,
            member_id=reply.member_id,
            instance_id=instance_id,
        )

    def member(self, group_id: str = "g", **details: object) -> MemberClaim:
        """A member that is alone in its group, which is stable."""
        claim = self.joined(group_id, **details)
        self.answer(SyncReply, lambda ticket: self.state.sync(self.now, synced(claim), ticket))
        return claim

    def leave(self, claim: MemberClaim) -> None:
        assert self.try_to_leave(claim) is None

    def try_to_leave(self, claim: MemberClaim) -> MoldauError | None:
        leaving = [LeavingMember(claim.member_id, claim.instance_id)]
        reply = self.answer(
            LeaveReply, lambda ticket: self.state.leave(self.now, claim.group_id, leaving, ticket)
        )
        (left,) = reply.members
        return left.error

    def commit(self, claim: MemberClaim, *offsets: OffsetToCommit) -> CommitReply:
        request = CommitRequest(claim=claim, offsets=offsets or (offset("orders", 0, 7),))
        return self.answer(CommitReply, lambda ticket: self.state.commit(self.now, request, ticket))

    def fetch(
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        return dict(
            self.answer(
                OffsetsReply,
                lambda ticket: self.state.fetch_offsets(self.now, group_id, partitions, ticket),
            ).offsets
        )

    def committed(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {place: found.offset for place, found in self.fetch(group_id).items() if found is not None}

    def delete_offsets(
        self, group_id: str, *partitions: TopicPartition
    ) -> dict[TopicPartition, MoldauError | None]:
        return dict(
            self.answer(
                DeleteOffsetsReply,
                lambda ticket: self.state.delete_offsets(self.now, group_id, partitions, ticket),
            ).errors
        )

    def delete_group(self, group_id: str) -> None:
        reply = self.answer(object, lambda ticket: self.state.delete_group(self.now, group_id, ticket))
        assert reply == DONE

    def describe(self, group_id: str) -> GroupDescription:
        return self.answer(GroupDescription, lambda ticket: self.state.describe(group_id, ticket))

    def topics_of(self, group_id: str) -> list[str]:
        """What the members of a stable group of consumers read."""
        members = self.describe(group_id).members
        return [topic for member in members for topic in decode_subscription(member.metadata).topics]

    def listed(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[str]:
        reply = self.answer(ListReply, lambda ticket: self.state.list_groups(states, types, ticket))
        return [group.group_id for group in reply.groups]


def synced(claim: MemberClaim) -> SyncRequest:
    return SyncRequest(
        group_id=claim.group_id,
        generation=claim.generation,
        member_id=claim.member_id,
        instance_id=claim.instance_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments={},
    )


def offset(topic: str, partition: int, number: int, *, expire_at_ms: int = NO_EXPIRY) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, number, -1, "", expire_at_ms, TOPIC_ID)


def nobody(group_id: str = "g") -> MemberClaim:
    """A consumer that commits without being a member."""
    return MemberClaim(group_id=group_id, generation=-1, member_id="", instance_id=None)


def claims(
    claim: MemberClaim,
    *,
    generation: int | None = None,
    member_id: str | None = None,
    instance_id: str | None = None,
) -> MemberClaim:
    return MemberClaim(
        group_id=claim.group_id,
        generation=claim.generation if generation is None else generation,
        member_id=claim.member_id if member_id is None else member_id,
        instance_id=instance_id,
    )
