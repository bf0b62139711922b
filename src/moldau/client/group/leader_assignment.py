"""What falls to the member that leads its group: look into everybody's subscription and share out the partitions."""

from collections.abc import Mapping, Sequence

from moldau.client.group.assignment_user_data import NO_USER_DATA, AssignmentUserData, encode_user_data
from moldau.client.group.assignors import ConsumerPartitionAssignor, SubscribedMember
from moldau.client.group.member_state import JoinGroupMember
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import Assignment, Subscription, decode_subscription, encode_assignment


def decode_members(joined: Sequence[JoinGroupMember]) -> list[SubscribedMember]:
    """Raises DecodeError naming the member whose subscription cannot be read."""
    return [SubscribedMember(each.member_id, _decode_subscription(each), each.instance_id) for each in joined]


def subscribed_topics(members: Sequence[SubscribedMember]) -> tuple[str, ...]:
    return tuple(sorted({topic for each in members for topic in each.subscription.topics}))


def perform_assignment(
    assignor: ConsumerPartitionAssignor,
    partition_counts: Mapping[str, int],
    members: Sequence[SubscribedMember],
    leader_id: str,
) -> tuple[tuple[str, bytes], ...]:
    """Each member's id with its assignment, as the sync carries it."""
    assignments = assignor.assign(partition_counts, members)
    notes = {each.member_id: NO_USER_DATA for each in members}
    for member in members:
        if member.instance_id is not None:
            kept = set(assignments[member.member_id])
            hands_over = assignor.is_cooperative and not set(member.subscription.owned_partitions) <= kept
            is_leader = member.member_id == leader_id
            notes[member.member_id] = AssignmentUserData(
                hands_over, dict(partition_counts) if is_leader else None
            )
    return tuple(
        (member_id, encode_assignment(Assignment(tuple(partitions), encode_user_data(notes[member_id]))))
        for member_id, partitions in sorted(assignments.items())
    )


def _decode_subscription(joined: JoinGroupMember) -> Subscription:
    try:
        return decode_subscription(joined.metadata)
    except DecodeError as error:
        raise DecodeError(f"the subscription of {joined.member_id} cannot be read: {error}") from None
