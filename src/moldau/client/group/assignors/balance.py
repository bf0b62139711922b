"""The sticky way of sharing: what members own stays with them as far as an even load allows.

Free partitions go to the least loaded members that want them. Then, as long as it evens out the load, one
partition moves from a loaded member to one that has at least two fewer; where the two share no topic, it goes
through members between them, each passing one on. When no such chain is left, no assignment is more even:
that is the optimality condition of semi-matchings in bipartite graphs.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from moldau.client.group.assignors.assignor import (
    Assignments,
    SubscribedMember,
    empty_assignments,
    subscribers_by_topic,
)
from moldau.wire.consumer_protocol import Partition


def balance_partitions(
    partition_counts: Mapping[str, int],
    members: Sequence[SubscribedMember],
    owned: Mapping[str, Iterable[Partition]],
) -> Assignments:
    """`owned` names each partition once at most."""
    shares = _StickyBalancer(partition_counts, members)
    free = shares.retain_owned(owned)
    shares.assign_free(free)
    shares.even_load()
    return shares.assignments()


class _StickyBalancer:
    def __init__(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> None:
        self._counts = partition_counts
        self._subscribers = {
            topic: sorted(member.member_id for member in wanting)
            for topic, wanting in subscribers_by_topic(members, partition_counts).items()
        }
        self._assigned: dict[str, dict[str, list[int]]] = {
            member_id: {} for member_id in sorted(empty_assignments(members))
        }
        """Each member's partitions by topic; a list's last one is the first to move."""
        self._load = dict.fromkeys(self._assigned, 0)

    def retain_owned(self, owned: Mapping[str, Iterable[Partition]]) -> list[Partition]:
        """Leave with their owners what they may still have; returns what is free."""
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
        """The pickiest topics first: who wants many topics can still be given another."""
        for topic, index in sorted(free, key=lambda each: (len(self._subscribers[each[0]]), *each)):
            self._assign(min(self._subscribers[topic], key=self._load.__getitem__), topic, index)

    def even_load(self) -> None:
        """The most loaded member gives first. Once it finds no chain it never will: all it reaches have as much as
        it has, or one less, and who gives after it has no more than that to pass into their midst."""
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
        """The moves, last one first, by which `giver` gets rid of one partition to the evenness of all; empty
        where there are none."""
        enough = self._load[giver] - 2
        reached: dict[str, tuple[str, str] | None] = {giver: None}
        seen_topics: set[str] = set()
        waiting = deque([giver])
        while waiting:
            source = waiting.popleft()
            for topic in sorted(self._assigned[source]):
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                fresh = [each for each in self._subscribers[topic] if each not in reached]
                for target in fresh:
                    reached[target] = (source, topic)
                best = min(fresh, key=self._load.__getitem__, default=None)
                if best is not None and self._load[best] <= enough:
                    return _moves(reached, best)
                waiting.extend(fresh)
        return []


def _moves(reached: Mapping[str, tuple[str, str] | None], last: str) -> list[tuple[str, str, str]]:
    moves = []
    target = last
    while (step := reached[target]) is not None:
        source, topic = step
        moves.append((source, topic, target))
        target = source
    return moves
