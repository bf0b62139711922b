"""All partitions in order, dealt to the members one by one; a member that does not want a topic is passed
over."""

from collections.abc import Mapping, Sequence

from moldau.client.group.assignors.assignor import (
    Assignments,
    ConsumerPartitionAssignor,
    SubscribedMember,
    empty_assignments,
    sorted_members,
    subscribers_by_topic,
)


class RoundRobinAssignor(ConsumerPartitionAssignor):
    name = "roundrobin"

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        assigned = empty_assignments(members)
        circle = sorted_members(members)
        turn = 0
        for topic, wanting in subscribers_by_topic(members, partition_counts).items():
            takers = {member.member_id for member in wanting}
            for index in range(partition_counts[topic]):
                while circle[turn].member_id not in takers:
                    turn = (turn + 1) % len(circle)
                assigned[circle[turn].member_id].append((topic, index))
                turn = (turn + 1) % len(circle)
        return assigned
