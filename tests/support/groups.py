"""Harness for a GroupCoordinatorShard and its log, and short forms of requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
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
    TransactionalCommitRequest,
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


class Batch(NamedTuple):
    records: Sequence[GroupRecord]
    end_offset: int
    producer_id: int | None = None
    """The producer of a transactional batch or marker."""
    commit: bool | None = None
    """The outcome of a marker; None for other batches."""


@dataclass
class ShardHarness:
    """A shard with its log; records are encoded and decoded on the way."""

    state: GroupCoordinatorShard = field(default_factory=lambda: GroupCoordinatorShard(LIMITS))
    batches: list[Batch] = field(default_factory=list)
    """The log."""
    now_ms: int = 1_000
    request_ids: int = 0
    responses: dict[int, GroupResponse | MoldauError] = field(default_factory=dict)
    fresh_ids: int = 0
    fail_writes: bool = False
    """Makes appends fail: requests get an error and nothing is applied."""

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    @property
    def log(self) -> list[GroupRecord]:
        """All records of the log, also those of transactions."""
        return [record for batch in self.batches for record in batch.records]

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def _append(self, batch: Batch) -> None:
        self.batches.append(batch)
        if batch.producer_id is None:
            self.state.apply(batch.records, batch.end_offset)
        elif batch.commit is None:
            self.state.apply_transactional(batch.producer_id, batch.records, batch.end_offset)
        else:
            self.state.end_transaction(batch.producer_id, commit=batch.commit)

    def submit(self, operation: Callable[[int], GroupResult], producer_id: int | None = None) -> int:
        """Runs the operation of a request; the responses of all requests that it completes are in `responses`."""
        self.request_ids += 1
        try:
            self.run(operation(self.request_ids), producer_id)
        except MoldauError as error:
            self.responses[self.request_ids] = error
        return self.request_ids

    def run(self, result: GroupResult, producer_id: int | None = None) -> Sequence[GroupRecord]:
        records = [read for key, value in map(encode, result.records) if (read := decode(key, value))]
        assert records == list(result.records)
        if records and self.fail_writes:
            for completed in result.response:
                self.responses[completed.request_id] = CoordinatorNotAvailableError("append failed")
            return []
        if records:
            self._append(Batch(records, self.end_offset + len(records), producer_id))
        for request_id, reply in result.response:
            assert request_id not in self.responses, "completed twice"
            self.responses[request_id] = reply
        return records

    def submit_and_wait(
        self, kind: type[R], operation: Callable[[int], GroupResult], producer_id: int | None = None
    ) -> R:
        reply = self.responses[self.submit(operation, producer_id)]
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
        return self._restarted(self.batches)

    def compacted(self) -> "ShardHarness":
        """Returns a harness with a new shard that loaded the log after compaction."""
        return self._restarted(compact(self.batches))

    def _restarted(self, batches: Sequence[Batch]) -> "ShardHarness":
        after = ShardHarness(now_ms=self.now_ms)
        for batch in batches:
            after._append(batch)
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

    def commit_transactional(
        self, producer_id: int, identity: MemberIdentity, *offsets: OffsetToCommit
    ) -> PartitionErrors:
        request = TransactionalCommitRequest(
            identity=identity,
            offsets=offsets or (offset("orders", 0, 7),),
            producer_id=producer_id,
            producer_epoch=0,
            client_version=2,
        )
        return self.submit_and_wait(
            dict, lambda request_id: self.state.commit_transactional(self.now, request, request_id), producer_id
        )

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self._append(Batch((), self.end_offset + 1, producer_id, commit))

    def fetch(
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        return self.submit_and_wait(dict, lambda request_id: self.state.fetch_offsets(group_id, partitions, request_id))

    def fetch_stable(
        self, group_id: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | str | None]:
        """Returns offsets, or the name of the error."""
        reply = self.submit_and_wait(
            dict, lambda request_id: self.state.fetch_offsets(group_id, partitions, request_id, require_stable=True)
        )
        return {
            place: type(found).__name__ if isinstance(found, MoldauError) else found and found.offset
            for place, found in reply.items()
        }

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


def compact(batches: Sequence[Batch]) -> list[Batch]:
    """Compacts a log as Kafka does: up to the first open transaction, without aborted records and old tombstones.

    A marker stays while its transaction has records.
    """
    open_batches: dict[int, list[int]] = {}
    transactions: dict[int, list[int]] = {}
    """The batches of each transaction that has ended, by the index of its marker."""
    for index, batch in enumerate(batches):
        if batch.producer_id is not None and batch.commit is None:
            open_batches.setdefault(batch.producer_id, []).append(index)
        elif batch.producer_id is not None:
            transactions[index] = open_batches.pop(batch.producer_id, [])
    end = min((index for indexes in open_batches.values() for index in indexes), default=len(batches))
    aborted = {index for marker, indexes in transactions.items() if not batches[marker].commit for index in indexes}
    newest: dict[bytes, tuple[int, int]] = {}
    for index, batch in enumerate(batches[:end]):
        if index not in aborted:
            newest.update((encode(record)[0], (index, number)) for number, record in enumerate(batch.records))
    kept: dict[int, list[GroupRecord]] = {}
    for index, number in sorted(newest.values()):
        record = batches[index].records[number]
        if encode(record)[1] is not None:
            kept.setdefault(index, []).append(record)
    compacted = [
        batch._replace(records=kept.get(index, ()))
        for index, batch in enumerate(batches[:end])
        if index in kept or any(each in kept for each in transactions.get(index, ()))
    ]
    return compacted + list(batches[end:])


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
