"""As even as can be, and within that each member keeps what it had. Members give everything up before they
rejoin; what they had goes with their subscription, with its generation, as Kafka's own sticky assignor writes
it."""

import struct
from collections.abc import Mapping, Sequence

from moldau.client.group.assignors.assignor import NOTHING, Assignments, Assignor, Member, Remembered
from moldau.client.group.assignors.balance import balanced
from moldau.client.group.assignors.claims import owners
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import decode_partitions, encode_partitions

_INT32 = struct.Struct(">i")


class StickyAssignor(Assignor):
    name = "sticky"

    def user_data(self, remembered: Remembered) -> bytes | None:
        if remembered == NOTHING:
            return None
        return encode_partitions(remembered.partitions) + _INT32.pack(remembered.generation_id)

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Member]) -> Assignments:
        claims = [(each.member_id, _remembered(each.subscription.user_data)) for each in members]
        owned = owners((who, had.generation_id, had.partitions) for who, had in claims)
        return balanced(partition_counts, members, owned)


def _remembered(user_data: bytes | None) -> Remembered:
    """Members of before Kafka 2.3 leave the generation out. What cannot be read is as nothing: another
    member's strange bytes must not keep the group from being assigned."""
    if not user_data:
        return NOTHING
    try:
        partitions, rest = decode_partitions(user_data)
    except DecodeError:
        return NOTHING
    return Remembered(partitions, _INT32.unpack_from(rest)[0] if len(rest) >= _INT32.size else -1)
