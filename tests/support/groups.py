"""Harness for a GroupCoordinatorShard and its log, and short forms of requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from moldau.coordinator.result import Now
from moldau.errors import CoordinatorNotAvailableError, MoldauError
from moldau.groups.formats import decode, encode
from moldau.groups.records import NO_EXPIRY, CommittedOffset, GroupRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    CommitRequest,
    GroupDescription,
    GroupResponse,
    GroupResult,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    MemberIdentity,
    OffsetToCommit,
    PartitionErrors,
    Protocol,
    SyncRequest,
    SyncResponse,
    TopicKey,
    TopicPartition,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.settings.broker import BrokerSettings
from moldau.wire.consumer_protocol import Subscription, decode_subscription, encode_subscription

R = TypeVar("R")

RETENTION_MS = 1_200_000
LIMITS = BrokerSettings(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=20)
SESSION_MS = 10_000
WALL_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)


@dataclass
class ShardHarness:
    """A shard with its log; records are encoded and decoded on the way."""

    state: GroupCoordinatorShard = field(default_factory=lambda: GroupCoordinatorShard(LIMITS))
    log: list[GroupRecord] = field(default_factory=list)
    now_ms: int = 1_000
    request_ids: int = 0
    responses: dict[int, GroupResponse | MoldauError] = field(default_factory=dict)
    fresh_ids: int = 0
    fail_writes: bool = False
    """Makes appends fail: requests get an error and nothing is applied."""

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def submit(self, operation: Callable[[int], GroupResult]) -> int:
        """Runs the operation of a request; the responses of all requests that it completes are in `responses`."""
        self.request_ids += 1
        try:
            self.run(operation(self.request_ids))
        except MoldauError as error:
            self.responses[self.request_ids] = error
        return self.request_ids

    def run(self, result: GroupResult) -> Sequence[GroupRecord]:
        records = [read for key, value in map(encode, result.records) if (read := decode(key, value))]
        assert records == list(result.records)
        if records and self.fail_writes:
            for completed in result.response:
                self.responses[completed.request_id] = CoordinatorNotAvailableError("append failed")
            return []
        if records:
            self.log += records
            self.state.apply(records, len(self.log))
        for request_id, reply in result.response:
            assert request_id not in self.responses, "completed twice"
            self.responses[request_id] = reply
        return records

    def submit_and_wait(self, kind: type[R], operation: Callable[[int], GroupResult]) -> R:
        reply = self.responses[self.submit(operation)]
        if isinstance(reply, MoldauError):
            raise reply
        assert isinstance(reply, kind)
        return reply

    def advance(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (due_ms := self.state.groups.next_deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.run(self.state.groups.tick(self.now))
        self.now_ms = until_ms

    def expire_offsets(self) -> list[GroupRecord]:
        written: list[GroupRecord] = []
        while (result := self.state.expire_offsets(self.now)) is not None:
            written += self.run(result)
        return written

    def on_topics_deleted(self, *topics: TopicKey) -> list[Sequence[GroupRecord]]:
        """Returns the records of each step of deleting the offsets of these topics."""
        written = []
        deleted = dict.fromkeys(topics, self.now.wall_ms)
        while (result := self.state.delete_offsets_of_topics(deleted)) is not None:
            written.append(self.run(result))
        return written

    def restarted(self) -> "ShardHarness":
        """Returns a harness with a new shard that loaded the same log."""
        after = ShardHarness(log=list(self.log), now_ms=self.now_ms)
        after.state.apply(after.log, len(after.log))
        after.run(after.state.groups.on_loaded(after.now))
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
            new_member_id=f"member-{self.fresh_ids}",
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
        return self.submit(lambda request_id: self.state.groups.join(self.now, request, request_id))

    def join_alone(self, group_id: str = "g", **details: object) -> MemberIdentity:
        """Joins as the only member; the group is in CompletingRebalance."""
        request_id = self.join(group_id, **details)  # type: ignore[arg-type]
        self.advance(0)
        reply = self.responses[request_id]
        assert isinstance(reply, JoinResponse), reply
        instance_id = details.get("instance_id")
        assert instance_id is None or isinstance(instance_id, str)
        return MemberIdentity(
            group_id=group_id, generation=reply.generation, member_id=reply.member_id, instance_id=instance_id
        )

    def join_and_sync(self, group_id: str = "g", **details: object) -> MemberIdentity:
        """Joins and syncs as the only member; the group is Stable."""
        identity = self.join_alone(group_id, **details)
        self.submit_and_wait(
            SyncResponse, lambda request_id: self.state.groups.sync(self.now, synced(identity), request_id)
        )
        return identity

    def leave(self, identity: MemberIdentity) -> None:
        assert self.leave_error(identity) is None

    def leave_error(self, identity: MemberIdentity) -> MoldauError | None:
        leaving = [LeavingMember(identity.member_id, identity.instance_id)]
        reply = self.submit_and_wait(
            tuple, lambda request_id: self.state.groups.leave(self.now, identity.group_id, leaving, request_id)
        )
        (left,) = reply
        error: MoldauError | None = left.error
        return error

    def commit(self, identity: MemberIdentity, *offsets: OffsetToCommit) -> PartitionErrors:
        request = CommitRequest(identity=identity, offsets=offsets or (offset("orders", 0, 7),))
        return self.submit_and_wait(dict, lambda request_id: self.state.commit(self.now, request, request_id))

    def fetch(
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        return self.submit_and_wait(dict, lambda request_id: self.state.fetch_offsets(group_id, partitions, request_id))

    def committed(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {place: found.offset for place, found in self.fetch(group_id).items() if found is not None}

    def delete_offsets(self, group_id: str, *partitions: TopicPartition) -> dict[TopicPartition, MoldauError | None]:
        return self.submit_and_wait(
            dict, lambda request_id: self.state.delete_offsets(group_id, partitions, request_id)
        )

    def delete_group(self, group_id: str) -> None:
        reply = self.submit_and_wait(object, lambda request_id: self.state.delete_group(group_id, request_id))
        assert reply == EMPTY_RESPONSE

    def describe(self, group_id: str) -> GroupDescription:
        return self.submit_and_wait(
            GroupDescription, lambda request_id: self.state.groups.describe(group_id, request_id)
        )

    def topics_of(self, group_id: str) -> list[str]:
        """Returns the subscribed topics of a Stable consumer group."""
        members = self.describe(group_id).members
        return [topic for member in members for topic in decode_subscription(member.subscription).topics]

    def listed(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[str]:
        reply = self.submit_and_wait(tuple, lambda request_id: self.state.groups.list_groups(states, types, request_id))
        return [group.group_id for group in reply]


def synced(identity: MemberIdentity) -> SyncRequest:
    return SyncRequest(
        group_id=identity.group_id,
        generation=identity.generation,
        member_id=identity.member_id,
        instance_id=identity.instance_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments={},
    )


def offset(topic: str, partition: int, number: int, *, expire_at_ms: int = NO_EXPIRY) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, number, -1, "", expire_at_ms, TOPIC_ID)


def standalone_identity(group_id: str = "g") -> MemberIdentity:
    """Returns the identity of a consumer that commits without being a member."""
    return MemberIdentity(group_id=group_id, generation=-1, member_id="", instance_id=None)


def with_identity(
    identity: MemberIdentity,
    *,
    generation: int | None = None,
    member_id: str | None = None,
    instance_id: str | None = None,
) -> MemberIdentity:
    return MemberIdentity(
        group_id=identity.group_id,
        generation=identity.generation if generation is None else generation,
        member_id=identity.member_id if member_id is None else member_id,
        instance_id=instance_id,
    )
