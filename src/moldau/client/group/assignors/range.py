"""Topic by topic, a contiguous range of partitions for each member: equal indexes of topics with equally many
partitions meet on the same member, which is what joins need."""

from collections.abc import Mapping, Sequence

from moldau.client.group.assignors.assignor import (
    Assignments,
    ConsumerPartitionAssignor,
    SubscribedMember,
    empty_assignments,
    subscribers_by_topic,
)


class RangeAssignor(ConsumerPartitionAssignor):
    name = "range"

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        assigned = empty_assignments(members)
        for topic, wanting in subscribers_by_topic(members, partition_counts).items():
            share, extra = divmod(partition_counts[topic], len(wanting))
            start = 0
            for place, member in enumerate(wanting):
                end = start + share + (place < extra)
                assigned[member.member_id] += [(topic, index) for index in range(start, end)]
                start = end
        return assigned
