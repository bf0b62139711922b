"""Balanced, sticky assignment: members keep their partitions as far as an even load allows.

Free partitions are assigned to the least loaded subscribers. Then partitions move from a loaded member to a member that
has at least two partitions fewer. If these two members have no common topic, the move is a chain, in which each member
passes one partition to the next member. When no such chain exists, no assignment is more even. This is the optimality
condition of semi-matchings in bipartite graphs.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moldau.wire.consumer_protocol import Partition, Subscription

Assignments = dict[str, list[Partition]]
"""The partitions of each member by id, sorted by topic and index."""


OwnershipClaim = tuple[str, int, Iterable[Partition]]
"""A member id, a generation, and the partitions that the member owned in that generation."""


def resolve_owners(claims: Iterable[OwnershipClaim]) -> dict[str, list[Partition]]:
    """Returns the partitions that each member owns. The claim with the newest generation wins.

    If two claims have that generation, no member owns the partition.
    """
    newest: dict[Partition, tuple[int, str | None]] = {}
    for member_id, generation_id, partitions in claims:
        for partition in dict.fromkeys(partitions):
            generation, _ = newest.get(partition, (generation_id - 1, None))
            if generation_id > generation:
                newest[partition] = (generation_id, member_id)
            elif generation_id == generation:
                newest[partition] = (generation_id, None)
    owned: dict[str, list[Partition]] = {}
    for partition, (_, owner) in newest.items():
        if owner is not None:
            owned.setdefault(owner, []).append(partition)
    return owned


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """A member and its subscription, as the leader sees them."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None


def sorted_members(members: Sequence[SubscribedMember]) -> list[SubscribedMember]:
    """Returns static members first, by instance id, then the others by member id.

    So a restart of the whole group, which changes the member ids, moves no partition of static members.
    """
    return sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))


def subscribers_by_topic(
    members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]
) -> dict[str, list[SubscribedMember]]:
    """Returns the subscribers of each existing topic. Topics and subscribers are sorted."""
    found: dict[str, list[SubscribedMember]] = {}
    for member in sorted_members(members):
        for topic in dict.fromkeys(member.subscription.topics):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def empty_assignments(members: Sequence[SubscribedMember]) -> Assignments:
    return {member.member_id: [] for member in members}


def balance_partitions(
    partition_counts: Mapping[str, int], members: Sequence[SubscribedMember], owned: Mapping[str, Iterable[Partition]]
) -> Assignments:
    """Assigns all partitions. `owned` must contain each partition at most once."""
    balancer = _StickyBalancer(partition_counts, members)
    free = balancer.retain_owned(owned)
    balancer.assign_free(free)
    balancer.even_load()
    return balancer.assignments()


class _StickyBalancer:
    def __init__(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> None:
        self._counts = partition_counts
        self._subscribers = {
            topic: sorted(member.member_id for member in subscribers)
            for topic, subscribers in subscribers_by_topic(members, partition_counts).items()
        }
        self._assigned: dict[str, dict[str, list[int]]] = {
            member_id: {} for member_id in sorted(empty_assignments(members))
        }
        """The partition indexes of each member by topic. The last index in a list is moved first."""
        self._load = dict.fromkeys(self._assigned, 0)

    def retain_owned(self, owned: Mapping[str, Iterable[Partition]]) -> list[Partition]:
        """Assigns owned partitions to owners that still subscribe to them. Returns the free partitions."""
        kept: set[Partition] = set()
        for member_id in self._assigned:
            for topic, index in sorted(owned.get(member_id, ())):
                if member_id in self._subscribers.get(topic, ()) and index < self._counts[topic]:
                    self._assign(member_id, topic, index)
                    kept.add((topic, index))
        return [
            (topic, index)
            for topic in self._subscribers
            for index in range(self._counts[topic])
            if (topic, index) not in kept
        ]

    def assign_free(self, free: Iterable[Partition]) -> None:
        """Assigns free partitions. Topics with many subscribers come last, because they have more possible owners."""
        for topic, index in sorted(free, key=lambda each: (len(self._subscribers[each[0]]), *each)):
            self._assign(min(self._subscribers[topic], key=self._load.__getitem__), topic, index)

    def even_load(self) -> None:
        """Moves partitions from the most loaded members until no move makes the load more even.

        A chain of moves passes a partition from member to member. If no chain from a member evens the load, that member
        is not tried again, because later moves do not lower the load of the members that its chains can reach.
        """
        givers = dict.fromkeys(self._assigned)
        while givers:
            giver = max(givers, key=self._load.__getitem__)
            chain = self._find_move_chain(giver)
            for source, topic, target in chain:
                self._assign(target, topic, self._unassign(source, topic))
            if not chain:
                del givers[giver]

    def assignments(self) -> Assignments:
        return {
            member_id: sorted((topic, index) for topic, indexes in held.items() for index in indexes)
            for member_id, held in self._assigned.items()
        }

    def _assign(self, member_id: str, topic: str, index: int) -> None:
        self._assigned[member_id].setdefault(topic, []).append(index)
        self._load[member_id] += 1

    def _unassign(self, member_id: str, topic: str) -> int:
        held = self._assigned[member_id]
        index = held[topic].pop()
        if not held[topic]:
            del held[topic]
        self._load[member_id] -= 1
        return index

    def _find_move_chain(self, giver: str) -> list[tuple[str, str, str]]:
        """Returns a chain of moves, last first, that takes a partition from `giver`; [] if no chain evens the load."""
        load_max = self._load[giver] - 2
        reached: dict[str, tuple[str, str] | None] = {giver: None}
        seen_topics: set[str] = set()
        queue = deque([giver])
        while queue:
            source = queue.popleft()
            for topic in sorted(self._assigned[source]):
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                unreached = [each for each in self._subscribers[topic] if each not in reached]
                for target in unreached:
                    reached[target] = (source, topic)
                best = min(unreached, key=self._load.__getitem__, default=None)
                if best is not None and self._load[best] <= load_max:
                    return _moves(reached, best)
                queue.extend(unreached)
        return []


def _moves(reached: Mapping[str, tuple[str, str] | None], last: str) -> list[tuple[str, str, str]]:
    moves = []
    target = last
    while (step := reached[target]) is not None:
        source, topic = step
        moves.append((source, topic, target))
        target = source
    return moves
