"""The sticky assignment in two steps: members keep what they own while they rejoin, and a partition that
changes hands is first given to nobody. Its owner gives it up and rejoins; then its new owner gets it."""

import struct
from collections.abc import Mapping, Sequence

from moldau.client.group.assignors.assignor import (
    NO_ASSIGNMENT,
    Assignments,
    ConsumerPartitionAssignor,
    PreviousAssignment,
    SubscribedMember,
)
from moldau.client.group.assignors.balance import balance_partitions
from moldau.client.group.assignors.ownership import resolve_owners
from moldau.wire.consumer_protocol import Partition, Subscription

_INT32 = struct.Struct(">i")


class CooperativeStickyAssignor(ConsumerPartitionAssignor):
    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        """The generation, for members that do not read it from the subscription."""
        return (
            None if previous_assignment == NO_ASSIGNMENT else _INT32.pack(previous_assignment.generation_id)
        )

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        owned = resolve_owners(
            (each.member_id, _subscription_generation(each.subscription), each.subscription.owned_partitions)
            for each in members
        )
        wanted = balance_partitions(partition_counts, members, owned)
        return _withhold_owned(wanted, members, owned)


def _subscription_generation(subscription: Subscription) -> int:
    if subscription.generation_id >= 0:
        return subscription.generation_id
    if subscription.user_data is not None and len(subscription.user_data) >= 4:
        generation: int = _INT32.unpack_from(subscription.user_data)[0]
        return generation
    return -1


def _withhold_owned(
    wanted: Assignments, members: Sequence[SubscribedMember], owned: Mapping[str, Sequence[Partition]]
) -> Assignments:
    in_use = {each for member in members for each in member.subscription.owned_partitions}
    left: Assignments = {}
    for member_id, partitions in wanted.items():
        own = set(owned.get(member_id, ()))
        left[member_id] = [each for each in partitions if each in own or each not in in_use]
    return left
