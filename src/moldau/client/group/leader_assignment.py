"""The assignment that a group leader computes, and the user data for static members.

A static member that restarts gets its assignment back without a rebalance, but has lost all other state. The user data
of the assignment contains the state that the restarted member needs. Other clients ignore this user data.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.client.group.assignors import ConsumerPartitionAssignor, SubscribedMember
from moldau.client.group.member_state import JoinGroupMember
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import Assignment, Subscription, decode_subscription, encode_assignment


class AssignmentUserData(NamedTuple):
    hands_over: bool = False
    """Whether the member must revoke partitions and then rejoin, because other members wait for these partitions."""
    partition_counts: Mapping[str, int] | None = None
    """The partition counts on which the assignment is based, with which the leader detects changes. None for other
    members."""


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
    return [SubscribedMember(each.member_id, _decode_subscription(each), each.instance_id) for each in joined]


def subscribed_topics(members: Sequence[SubscribedMember]) -> tuple[str, ...]:
    return tuple(sorted({topic for each in members for topic in each.subscription.topics}))


def perform_assignment(
    assignor: ConsumerPartitionAssignor,
    partition_counts: Mapping[str, int],
    members: Sequence[SubscribedMember],
    leader_id: str,
) -> tuple[tuple[str, bytes], ...]:
    """Returns each member id with its encoded assignment, for SyncGroup."""
    assignments = assignor.assign(partition_counts, members)
    user_data = {each.member_id: NO_USER_DATA for each in members}
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


def _decode_subscription(joined: JoinGroupMember) -> Subscription:
    try:
        return decode_subscription(joined.metadata)
    except DecodeError as error:
        raise DecodeError(f"the subscription of {joined.member_id} cannot be decoded: {error}") from None
