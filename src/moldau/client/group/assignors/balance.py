"""The sticky way of sharing: what members own stays with them as far as an even load allows.

Free partitions go to the least loaded members that want them. Then, as long as it evens out the load, one
partition moves from a loaded member to one that has at least two fewer; where the two share no topic, it goes
through members between them, each passing one on. When no such chain is left, no assignment is more even:
that is the optimality condition of semi-matchings in bipartite graphs.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from moldau.client.group.assignors.assignor import Assignments, Member, nothing_for, subscribers
from moldau.wire.consumer_protocol import Partition


def balanced(
    partition_counts: Mapping[str, int],
    members: Sequence[Member],
    owned: Mapping[str, Iterable[Partition]],
) -> Assignments:
    """`owned` names each partition once at most."""
    shares = _Shares(partition_counts, members)
    free = shares.keep(owned)
    shares.hand_out(free)
    shares.even_out()
    return shares.assignments()


class _Shares:
    def __init__(self, partition_counts: Mapping[str, int], members: Sequence[Member]) -> None:
        self._counts = partition_counts
        self._wanting = {
            topic: sorted(member.member_id for member in wanting)
            for topic, wanting in subscribers(members, partition_counts).items()
        }
        self._held: dict[str, dict[str, list[int]]] = {
            member_id: {} for member_id in sorted(nothing_for(members))
        }
        """Each member's partitions by topic; a list's last one is the first to move."""
        self._load = dict.fromkeys(self._held, 0)

    def keep(self, owned: Mapping[str, Iterable[Partition]]) -> list[Partition]:
        """Leave with their owners what they may still have; returns what is free."""
        kept: set[Partition] = set()
        for member_id in self._held:
            for topic, index in sorted(owned.get(member_id, ())):
                if member_id in self._wanting.get(topic, ()) and index < self._counts[topic]:
                    self._give(member_id, topic, index)
                    kept.add((topic, index))
        return [
            (topic, index)
            for topic in self._wanting
            for index in range(self._counts[topic])
            if (topic, index) not in kept
        ]

    def hand_out(self, free: Iterable[Partition]) -> None:
        """The pickiest topics first: who wants many topics can still be given another."""
        for topic, index in sorted(free, key=lambda each: (len(self._wanting[each[0]]), *each)):
            self._give(min(self._wanting[topic], key=self._load.__getitem__), topic, index)

    def even_out(self) -> None:
        """The most loaded member gives first. Once it finds no chain it never will: all it reaches have as much as
        it has, or one less, and who gives after it has no more than that to pass into their midst."""
        givers = dict.fromkeys(self._held)
        while givers:
            giver = max(givers, key=self._load.__getitem__)
            chain = self._chain_from(giver)
            for source, topic, target in chain:
                self._give(target, topic, self._take(source, topic))
            if not chain:
                del givers[giver]

    def assignments(self) -> Assignments:
        return {
            member_id: sorted((topic, index) for topic, indexes in held.items() for index in indexes)
            for member_id, held in self._held.items()
        }

    def _give(self, member_id: str, topic: str, index: int) -> None:
        self._held[member_id].setdefault(topic, []).append(index)
        self._load[member_id] += 1

    def _take(self, member_id: str, topic: str) -> int:
        held = self._held[member_id]
        index = held[topic].pop()
        if not held[topic]:
            del held[topic]
        self._load[member_id] -= 1
        return index

    def _chain_from(self, giver: str) -> list[tuple[str, str, str]]:
        """The moves, last one first, by which `giver` gets rid of one partition to the evenness of all; empty
        where there are none."""
        enough = self._load[giver] - 2
        reached: dict[str, tuple[str, str] | None] = {giver: None}
        seen_topics: set[str] = set()
        waiting = deque([giver])
        while waiting:
            source = waiting.popleft()
            for topic in sorted(self._held[source]):
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                fresh = [each for each in self._wanting[topic] if each not in reached]
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
