"""As even as can be, and within that each member keeps what it had. Members give everything up before they
rejoin; what they had goes with their subscription, with its generation, as Kafka's own sticky assignor writes
it."""

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
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import decode_partitions, encode_partitions

_INT32 = struct.Struct(">i")


class StickyAssignor(ConsumerPartitionAssignor):
    name = "sticky"

    def user_data(self, previous_assignment: PreviousAssignment) -> bytes | None:
        if previous_assignment == NO_ASSIGNMENT:
            return None
        return encode_partitions(previous_assignment.partitions) + _INT32.pack(
            previous_assignment.generation_id
        )

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        claims = [
            (each.member_id, _decode_previous_assignment(each.subscription.user_data)) for each in members
        ]
        owned = resolve_owners((who, had.generation_id, had.partitions) for who, had in claims)
        return balance_partitions(partition_counts, members, owned)


def _decode_previous_assignment(user_data: bytes | None) -> PreviousAssignment:
    """Members of before Kafka 2.3 leave the generation out. What cannot be read is as nothing: another
    member's strange bytes must not keep the group from being assigned."""
    if not user_data:
        return NO_ASSIGNMENT
    try:
        partitions, rest = decode_partitions(user_data)
    except DecodeError:
        return NO_ASSIGNMENT
    return PreviousAssignment(partitions, _INT32.unpack_from(rest)[0] if len(rest) >= _INT32.size else -1)
