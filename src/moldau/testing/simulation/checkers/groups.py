"""Finds what must never happen to groups in what their members saw. Pure.

Committed offsets are registers, one for each group and partition. Generations and member ids are fences: who is
behind one must be refused. And whatever happens, a group reads every record, and commits none before it was read.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from moldau.testing.simulation.checkers.fences import Fences
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_groups import (
    NO_GENERATION,
    NOTHING_COMMITTED,
    Asked,
    Beat,
    Commit,
    Deletion,
    Fate,
    GroupHistory,
    Look,
    Sync,
)
from moldau.testing.simulation.checkers.records import Violation
from moldau.testing.simulation.checkers.register import Interval, Value, contradictions

Key = tuple[str, Partition]

NOTHING = "nothing"
"""What a deletion leaves in a register."""


def check_groups(history: GroupHistory) -> list[Violation]:
    return [Violation(anomaly, detail) for anomaly, detail in _violations(history)]


def _violations(history: GroupHistory) -> Iterator[tuple[str, str]]:
    yield from _committed_offsets(history)
    yield from _owned_twice(history)
    yield from _left_behind(history)
    yield from _committed_unread(history)
    yield from _the_end(history)


# Committed offsets


def _committed_offsets(history: GroupHistory) -> Iterator[tuple[str, str]]:
    commits: defaultdict[Key, list[Commit]] = defaultdict(list)
    looks: defaultdict[Key, list[Look]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.key].append(commit)
    for look in history.looks:
        looks[look.group, look.partition].append(look)
    for key in sorted({*commits, *looks}):
        deletions = [
            each
            for each in history.deletions
            if each.group == key[0] and each.partition in (None, key[1]) and each.fate is not Fate.REFUSED
        ]
        yield from _one_register(_name(*key), commits[key], looks[key], deletions)


def _one_register(
    where: str, commits: Sequence[Commit], looks: Sequence[Look], deletions: Sequence[Deletion]
) -> Iterator[tuple[str, str]]:
    by_stamp = {commit.stamp: commit for commit in commits}
    shown: defaultdict[str, list[Look]] = defaultdict(list)
    for look in looks:
        if look.offset == NOTHING_COMMITTED:
            continue
        found = by_stamp.get(look.stamp)
        if found is None or found.offset != look.offset or found.begun > look.ended:
            yield "never committed", f"{look.offset} ({look.stamp!r}) was shown for {where}"
        elif found.fate is Fate.REFUSED:
            yield "refused commit shows", f"{_told(found)} of {where}"
        else:
            shown[look.stamp].append(look)
    values = {
        commit.stamp: Value(
            _told(commit), _when(commit), [Interval(look.begun, look.ended) for look in shown[commit.stamp]]
        )
        for commit in commits
        if commit.fate is not Fate.REFUSED
    }
    deleted = [Value(NOTHING, _when(each), ()) for each in deletions if each.fate is Fate.DONE]
    for one, other in contradictions([*values.values(), *deleted]):
        if NOTHING in (one.name, other.name):
            yield "deleted offset is back", f"{one.name if other.name == NOTHING else other.name} of {where}"
        else:
            yield (
                "committed offset moved back",
                f"{one.name} and {other.name} of {where}, and the first again",
            )
    yield from _lost(where, values.values(), looks, deletions)
    yield from _went_back(where, commits, values, looks)


def _lost(
    where: str, values: Iterable[Value], looks: Sequence[Look], deletions: Sequence[Deletion]
) -> Iterator[tuple[str, str]]:
    """Nothing is shown where something was committed and no deletion can have come after it."""
    for look in looks:
        if look.offset != NOTHING_COMMITTED:
            continue
        emptied = max((each.over for each in deletions if each.begun < look.ended), default=0.0)
        for value in values:
            if value.write.begun > emptied and value.known_at < look.begun:
                yield "committed offset lost", f"{value.name} of {where}, where nothing was shown later"
                break


def _went_back(
    where: str, commits: Sequence[Commit], values: Mapping[str, Value], looks: Sequence[Look]
) -> Iterator[tuple[str, str]]:
    """A member goes on from what is committed: one that commits less was no owner, or has not looked."""
    for commit in commits:
        if commit.fate is not Fate.DONE or commit.claim.generation == NO_GENERATION:
            continue
        lower = max(
            (look.ended for look in looks if look.ended < commit.begun and look.offset <= commit.offset),
            default=-1,
        )
        for other in commits:
            if other.offset <= commit.offset or other.fate is Fate.REFUSED or other.begun < lower:
                continue
            if values[other.stamp].known_at < commit.begun:
                yield "member committed less", f"{_told(commit)} came after {_told(other)} of {where}"
                break


# Fences


def _owned_twice(history: GroupHistory) -> Iterator[tuple[str, str]]:
    """Generations begin anew only where a group was deleted in between."""
    generations: defaultdict[tuple[str, int], list[Sync]] = defaultdict(list)
    for sync in history.syncs:
        generations[sync.claim.group, sync.claim.generation].append(sync)
    for (group, generation), syncs in sorted(generations.items()):
        owners: dict[Partition, Sync] = {}
        for sync in syncs:
            for partition in sync.partitions:
                before = owners.setdefault(partition, sync)
                if _holder(before) != _holder(sync) and not _deleted_between(history, before, sync):
                    members = f"{before.claim.member} and {sync.claim.member}"
                    where = f"{_name(group, partition)} in generation {generation}"
                    yield "partition owned twice", f"{where}, by {members}"


def _holder(sync: Sync) -> str:
    """A static member that comes back takes its partitions over, within a generation."""
    return sync.claim.instance or sync.claim.member


def _deleted_between(history: GroupHistory, first: Sync, second: Sync) -> bool:
    begun, ended = min(first.begun, second.begun), max(first.over, second.over)
    return any(
        each.group == first.claim.group
        and each.partition is None
        and each.fate is not Fate.REFUSED
        and each.begun < ended
        and each.over > begun
        for each in history.deletions
    )


def _accepted(history: GroupHistory) -> Iterator[tuple[str, Commit | Beat]]:
    """What members were allowed to do."""
    for commit in history.commits:
        if commit.fate is Fate.DONE and commit.claim.generation != NO_GENERATION:
            yield "commit", commit
    for beat in history.beats:
        yield "heartbeat", beat


def _left_behind(history: GroupHistory) -> Iterator[tuple[str, str]]:
    fences = Fences(history)
    for what, asked in _accepted(history):
        claim = asked.claim
        if (newer := fences.newer_generation(claim, asked.begun)) is not None:
            who = f"{what} of {claim.member} in generation {claim.generation} of {claim.group}"
            yield "old generation accepted", f"{who}, after {newer.claim.generation} was handed out"
        if (successor := fences.successor(claim, asked.begun)) is not None:
            who = f"{what} of {claim.member} as {claim.instance} in {claim.group}"
            yield "fenced member accepted", f"{who}, after {successor.claim.member} took its place"


# Reading


def _committed_unread(history: GroupHistory) -> Iterator[tuple[str, str]]:
    """Groups read from the beginning, so what is below a member's commit has been delivered to somebody."""
    read: defaultdict[Key, set[int]] = defaultdict(set)
    frontiers: defaultdict[Key, int] = defaultdict(int)
    deliveries = iter(history.deliveries)
    ahead = next(deliveries, None)
    for commit in history.commits:
        if commit.claim.generation == NO_GENERATION or commit.fate is Fate.REFUSED:
            continue
        while ahead is not None and ahead.at < commit.begun:
            read[ahead.group, ahead.partition].add(ahead.offset)
            ahead = next(deliveries, None)
        key = commit.key
        while frontiers[key] in read[key]:
            frontiers[key] += 1
        if commit.offset > frontiers[key]:
            yield "committed unread", f"{_told(commit)} of {_name(*key)}, where {frontiers[key]} was next"


def _the_end(history: GroupHistory) -> Iterator[tuple[str, str]]:
    read: defaultdict[Key, set[int]] = defaultdict(set)
    for delivery in history.deliveries:
        read[delivery.group, delivery.partition].add(delivery.offset)
    for group, settled in sorted(history.settled.items()):
        owned = list(itertools.chain.from_iterable(settled.assignments.values()))
        if settled.state != "Stable" or sorted(owned) != sorted(history.ends):
            members = {member: sorted(each) for member, each in sorted(settled.assignments.items())}
            yield "not settled", f"{group} is {settled.state} with {members}"
        for partition, end in sorted(history.ends.items()):
            missing = [offset for offset in range(end) if offset not in read[group, partition]]
            if missing:
                yield "unseen", f"{len(missing)} records of {_name(group, partition)} from {missing[0]} on"


def _when(asked: Asked) -> Interval:
    return Interval(asked.begun, asked.over)


def _name(group: str, partition: Partition) -> str:
    return f"{group}/{partition[0]}-{partition[1]}"


def _told(commit: Commit) -> str:
    return f"{commit.offset} ({commit.stamp})"
