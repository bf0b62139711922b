"""Partition assignors: how a group leader assigns partitions to members. Names and formats are those of Kafka.

Assignors have no state: data from earlier generations comes with the members' subscriptions. Racks are ignored.
"""

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from moldau.client.group.sticky_assignment import (
    Assignments,
    SubscribedMember,
    balance_partitions,
    empty_assignments,
    resolve_owners,
    sorted_members,
    subscribers_by_topic,
)
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import (
    Assignment,
    Partition,
    Subscription,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
)

_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class PreviousAssignment:
    """The last assignment of a member, and the generation of that assignment (-1 if unknown)."""

    partitions: tuple[Partition, ...] = ()
    generation_id: int = -1


NO_ASSIGNMENT = PreviousAssignment()


class ConsumerPartitionAssignor(ABC):
    """An assignor of this client, or of a user: `Consumer(assignors=[MyAssignor()])`.

    All members of a group need an assignor with the same name. The leader's one assigns the partitions.
    """

    name: ClassVar[str]
    is_cooperative: ClassVar[bool] = False
    """Whether members keep their partitions while they rejoin. `assign` must then not give a partition that one member
    owns (`subscription.owned_partitions`) to another one: leave it out, and assign it in the next rebalance."""

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        return None

    @abstractmethod
    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        """Assigns the partitions of all topics in `partition_counts`; other topics do not exist.

        Returns the partitions of every member. Each partition belongs to one member at most.
        """

    def on_assignment(self, partitions: Sequence[Partition], generation_id: int) -> None:  # noqa: B027 - optional
        """Called on every member when it has received its partitions, inside the poll."""


class RangeAssignor(ConsumerPartitionAssignor):
    """Assigns contiguous ranges, topic by topic.

    Topics with the same subscribers and partition counts are assigned in the same way, as joins between topics require.
    """

    name = "range"

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        assigned = empty_assignments(members)
        for topic, subscribers in subscribers_by_topic(members, partition_counts).items():
            share, extra = divmod(partition_counts[topic], len(subscribers))
            start = 0
            for number, member in enumerate(subscribers):
                end = start + share + (number < extra)
                assigned[member.member_id] += [(topic, index) for index in range(start, end)]
                start = end
        return assigned


class RoundRobinAssignor(ConsumerPartitionAssignor):
    """Assigns the partitions to the members in turn, skipping members that do not subscribe to the topic."""

    name = "roundrobin"

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        assigned = empty_assignments(members)
        ring = sorted_members(members)
        position = 0
        for topic, subscribers in subscribers_by_topic(members, partition_counts).items():
            subscribed = {member.member_id for member in subscribers}
            for index in range(partition_counts[topic]):
                while ring[position].member_id not in subscribed:
                    position = (position + 1) % len(ring)
                assigned[ring[position].member_id].append((topic, index))
                position = (position + 1) % len(ring)
        return assigned


class StickyAssignor(ConsumerPartitionAssignor):
    """Balances the load. Each member keeps as many of its partitions as the balance allows.

    Members revoke all partitions before they rejoin. Their user data contains the previous partitions.
    """

    name = "sticky"

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        if previous_assignment == NO_ASSIGNMENT:
            return None
        return encode_sticky_user_data(previous_assignment.partitions, previous_assignment.generation_id)

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        claims = [(each.member_id, _decode_previous_assignment(each.subscription.user_data)) for each in members]
        owned = resolve_owners(
            (member_id, previous.generation_id, previous.partitions) for member_id, previous in claims
        )
        return balance_partitions(partition_counts, members, owned)


def _decode_previous_assignment(user_data: bytes | None) -> PreviousAssignment:
    """Returns NO_ASSIGNMENT for invalid data, because the data of one member must not fail the whole group."""
    try:
        return PreviousAssignment(*decode_sticky_user_data(user_data)) if user_data else NO_ASSIGNMENT
    except DecodeError:
        return NO_ASSIGNMENT


class CooperativeStickyAssignor(ConsumerPartitionAssignor):
    """Sticky assignment in which members keep their partitions while they rejoin.

    A partition changes its owner in two rebalances. The first assigns the partition to no member, so its owner revokes
    it and rejoins. The second assigns the partition to the new owner.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        """Returns the generation, for leaders that do not read it from the subscription."""
        return None if previous_assignment == NO_ASSIGNMENT else _INT32.pack(previous_assignment.generation_id)

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        owned = resolve_owners(
            (each.member_id, _subscription_generation(each.subscription), each.subscription.owned_partitions)
            for each in members
        )
        balanced = balance_partitions(partition_counts, members, owned)
        return _withhold_owned(balanced, members, owned)


def _subscription_generation(subscription: Subscription) -> int:
    if subscription.generation_id >= 0:
        return subscription.generation_id
    if subscription.user_data is not None and len(subscription.user_data) >= 4:
        generation: int = _INT32.unpack_from(subscription.user_data)[0]
        return generation
    return -1


def _withhold_owned(
    balanced: Assignments, members: Sequence[SubscribedMember], owned: Mapping[str, Sequence[Partition]]
) -> Assignments:
    in_use = {each for member in members for each in member.subscription.owned_partitions}
    assignments: Assignments = {}
    for member_id, partitions in balanced.items():
        own = set(owned.get(member_id, ()))
        assignments[member_id] = [each for each in partitions if each in own or each not in in_use]
    return assignments


_ASSIGNORS: Mapping[str, ConsumerPartitionAssignor] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def get_assignor(name: str) -> ConsumerPartitionAssignor:
    if name not in _ASSIGNORS:
        raise ValueError(f"unknown assignor {name!r}; use one of {', '.join(_ASSIGNORS)}")
    return _ASSIGNORS[name]


def resolve_assignors(assignors: Sequence[str | ConsumerPartitionAssignor]) -> tuple[ConsumerPartitionAssignor, ...]:
    """Returns assignors by name or as they are. Raises ValueError for unknown and duplicate names."""
    for each in assignors:
        if not isinstance(each, str | ConsumerPartitionAssignor):
            raise ValueError(f"{each!r} is not an assignor: pass a name or a ConsumerPartitionAssignor")
    resolved = [get_assignor(each) if isinstance(each, str) else each for each in assignors]
    for each in resolved:
        name = getattr(each, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{each!r} needs a name: set the class attribute `name`")
    names = [each.name for each in resolved]
    if len(set(names)) < len(names):
        raise ValueError(f"two assignors have the same name: {', '.join(names)}")
    return tuple(resolved)


# The group leader


class JoinGroupMember(NamedTuple):
    """A member in the JoinGroup response to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class AssignmentUserData(NamedTuple):
    """The state that a restarted static member needs, because it gets its assignment back without a rebalance."""

    hands_over: bool = False
    """Whether the member must revoke partitions and then rejoin, because other members wait for these partitions."""
    partition_counts: Mapping[str, int] | None = None
    """The partition counts on which the assignment is based, so that the leader detects changes; None for others."""


NO_USER_DATA = AssignmentUserData()


def encode_user_data(user_data: AssignmentUserData) -> bytes | None:
    if user_data == NO_USER_DATA:
        return None
    return json.dumps(user_data._asdict(), separators=(",", ":")).encode()


def decode_user_data(data: bytes | None) -> AssignmentUserData:
    """Decodes the user data. Returns NO_USER_DATA if another client wrote the data."""
    try:
        fields = json.loads(data or b"{}")
        counts = fields.get("partition_counts")
        return AssignmentUserData(
            fields.get("hands_over") is True,
            None if counts is None else {str(topic): int(count) for topic, count in counts.items()},
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return NO_USER_DATA


def decode_members(joined: Sequence[JoinGroupMember]) -> list[SubscribedMember]:
    """Decodes the subscriptions of the members. Raises a DecodeError that names the member."""
    members = []
    for member_id, instance_id, metadata in joined:
        try:
            members.append(SubscribedMember(member_id, decode_subscription(metadata), instance_id))
        except DecodeError as error:
            raise DecodeError(f"the subscription of {member_id} cannot be decoded: {error}") from None
    return members


def subscribed_topics(members: Sequence[SubscribedMember]) -> tuple[str, ...]:
    return tuple(sorted({topic for each in members for topic in each.subscription.topics}))


def perform_assignment(
    assignor: ConsumerPartitionAssignor,
    partition_counts: Mapping[str, int],
    members: Sequence[SubscribedMember],
    leader_id: str,
) -> tuple[tuple[str, bytes], ...]:
    """Returns each member id with its encoded assignment, for SyncGroup. Raises ValueError if the assignor returns an
    invalid assignment."""
    assignments = assignor.assign(partition_counts, members)
    _check_assignments(assignments, partition_counts, members)
    if assignor.is_cooperative:
        _check_handovers(assignments, members)
    user_data = dict.fromkeys(assignments, NO_USER_DATA)
    for member in members:
        if member.instance_id is not None:
            kept = set(assignments[member.member_id])
            hands_over = assignor.is_cooperative and not set(member.subscription.owned_partitions) <= kept
            is_leader = member.member_id == leader_id
            user_data[member.member_id] = AssignmentUserData(hands_over, dict(partition_counts) if is_leader else None)
    return tuple(
        (member_id, encode_assignment(Assignment(tuple(partitions), encode_user_data(user_data[member_id]))))
        for member_id, partitions in sorted(assignments.items())
    )


def _check_assignments(
    assignments: Assignments, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]
) -> None:
    topics = {member.member_id: set(member.subscription.topics) for member in members}
    if assignments.keys() != topics.keys():
        different = ", ".join(sorted(assignments.keys() ^ topics.keys()))
        raise ValueError(f"the assignment must have a list of partitions for each member: check {different}")
    owners: dict[Partition, str] = {}
    for member_id, partitions in assignments.items():
        for topic, index in partitions:
            if not 0 <= index < partition_counts.get(topic, 0) or topic not in topics[member_id]:
                raise ValueError(f"{member_id} cannot have {topic}-{index}: it does not exist or is not subscribed to")
            if (topic, index) in owners:
                raise ValueError(f"{topic}-{index} is assigned twice: to {owners[topic, index]} and {member_id}")
            owners[topic, index] = member_id


def _check_handovers(assignments: Assignments, members: Sequence[SubscribedMember]) -> None:
    """Raises ValueError if a member gets a partition that another member still reads."""
    # After a missed rebalance two members can claim a partition, and then one of them may keep it.
    claims: dict[Partition, set[str]] = {}
    for member in members:
        for partition in member.subscription.owned_partitions:
            claims.setdefault(partition, set()).add(member.member_id)
    for member_id, partitions in assignments.items():
        for topic, index in partitions:
            claimants = claims.get((topic, index), {member_id})
            if member_id not in claimants:
                raise ValueError(
                    f"{topic}-{index} moves from {min(claimants)} to {member_id}, but with a cooperative assignor its "
                    "owner must revoke it first: assign it to no member now"
                )
