"""Finds what must never happen to groups in what their members saw. Pure.

Committed offsets are registers, one for each group and partition. Generations and member ids are fences: who is
behind one must be refused. And whatever happens, a group reads every record, and commits none before it was read.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from moldau.testing.simulation.checkers.fencing import FencingIndex
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_groups import (
    NO_GENERATION,
    NOTHING_COMMITTED,
    ClientOperation,
    CommitOperation,
    DeleteOperation,
    GroupHistory,
    HeartbeatOperation,
    OffsetFetchOperation,
    OperationResult,
    SyncOperation,
)
from moldau.testing.simulation.checkers.records import Violation
from moldau.testing.simulation.checkers.register import Interval, RegisterValue, contradictions

Key = tuple[str, Partition]

NOTHING = "nothing"
"""What a deletion leaves in a register."""


def check_groups(history: GroupHistory) -> list[Violation]:
    return [Violation(anomaly, detail) for anomaly, detail in _violations(history)]


def _violations(history: GroupHistory) -> Iterator[tuple[str, str]]:
    yield from _check_committed_offsets(history)
    yield from _check_double_ownership(history)
    yield from _check_fencing(history)
    yield from _check_commits_were_read(history)
    yield from _check_final_state(history)


# Committed offsets


def _check_committed_offsets(history: GroupHistory) -> Iterator[tuple[str, str]]:
    commits: defaultdict[Key, list[CommitOperation]] = defaultdict(list)
    offset_fetches: defaultdict[Key, list[OffsetFetchOperation]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.key].append(commit)
    for look in history.offset_fetches:
        offset_fetches[look.group, look.partition].append(look)
    for key in sorted({*commits, *offset_fetches}):
        deletions = [
            each
            for each in history.deletions
            if each.group == key[0]
            and each.partition in (None, key[1])
            and each.result is not OperationResult.FAIL
        ]
        yield from _check_register(_register_name(*key), commits[key], offset_fetches[key], deletions)


def _check_register(
    where: str,
    commits: Sequence[CommitOperation],
    offset_fetches: Sequence[OffsetFetchOperation],
    deletions: Sequence[DeleteOperation],
) -> Iterator[tuple[str, str]]:
    by_stamp = {commit.tag: commit for commit in commits}
    shown: defaultdict[str, list[OffsetFetchOperation]] = defaultdict(list)
    for look in offset_fetches:
        if look.offset == NOTHING_COMMITTED:
            continue
        found = by_stamp.get(look.tag)
        if found is None or found.offset != look.offset or found.invoked_at > look.completed_at:
            yield "never committed", f"{look.offset} ({look.tag!r}) was shown for {where}"
        elif found.result is OperationResult.FAIL:
            yield "refused commit shows", f"{_format_commit(found)} of {where}"
        else:
            shown[look.tag].append(look)
    values = {
        commit.tag: RegisterValue(
            _format_commit(commit),
            _interval(commit),
            [Interval(look.invoked_at, look.completed_at) for look in shown[commit.tag]],
        )
        for commit in commits
        if commit.result is not OperationResult.FAIL
    }
    deleted = [
        RegisterValue(NOTHING, _interval(each), ()) for each in deletions if each.result is OperationResult.OK
    ]
    for one, other in contradictions([*values.values(), *deleted]):
        if NOTHING in (one.name, other.name):
            yield "deleted offset is back", f"{one.name if other.name == NOTHING else other.name} of {where}"
        else:
            yield (
                "committed offset moved back",
                f"{one.name} and {other.name} of {where}, and the first again",
            )
    yield from _check_lost_commits(where, values.values(), offset_fetches, deletions)
    yield from _check_regressed_commits(where, commits, values, offset_fetches)


def _check_lost_commits(
    where: str,
    values: Iterable[RegisterValue],
    offset_fetches: Sequence[OffsetFetchOperation],
    deletions: Sequence[DeleteOperation],
) -> Iterator[tuple[str, str]]:
    """Nothing is shown where something was committed and no deletion can have come after it."""
    for look in offset_fetches:
        if look.offset != NOTHING_COMMITTED:
            continue
        emptied = max(
            (each.completed_by for each in deletions if each.invoked_at < look.completed_at), default=0.0
        )
        for value in values:
            if value.write.invoked_at > emptied and value.certain_from < look.invoked_at:
                yield "committed offset lost", f"{value.name} of {where}, where nothing was shown later"
                break


def _check_regressed_commits(
    where: str,
    commits: Sequence[CommitOperation],
    values: Mapping[str, RegisterValue],
    offset_fetches: Sequence[OffsetFetchOperation],
) -> Iterator[tuple[str, str]]:
    """A member goes on from what is committed: one that commits less was no owner, or has not looked."""
    for commit in commits:
        if commit.result is not OperationResult.OK or commit.identity.generation == NO_GENERATION:
            continue
        lower = max(
            (
                look.completed_at
                for look in offset_fetches
                if look.completed_at < commit.invoked_at and look.offset <= commit.offset
            ),
            default=-1,
        )
        for other in commits:
            if (
                other.offset <= commit.offset
                or other.result is OperationResult.FAIL
                or other.invoked_at < lower
            ):
                continue
            if values[other.tag].certain_from < commit.invoked_at:
                yield (
                    "member committed less",
                    f"{_format_commit(commit)} came after {_format_commit(other)} of {where}",
                )
                break


# Fences


def _check_double_ownership(history: GroupHistory) -> Iterator[tuple[str, str]]:
    """Generations begin anew only where a group was deleted in between."""
    generations: defaultdict[tuple[str, int], list[SyncOperation]] = defaultdict(list)
    for sync in history.syncs:
        generations[sync.identity.group, sync.identity.generation].append(sync)
    for (group, generation), syncs in sorted(generations.items()):
        owners: dict[Partition, SyncOperation] = {}
        for sync in syncs:
            for partition in sync.partitions:
                before = owners.setdefault(partition, sync)
                if _owner(before) != _owner(sync) and not _was_deleted_between(history, before, sync):
                    members = f"{before.identity.member} and {sync.identity.member}"
                    where = f"{_register_name(group, partition)} in generation {generation}"
                    yield "partition owned twice", f"{where}, by {members}"


def _owner(sync: SyncOperation) -> str:
    """A static member that comes back takes its partitions over, within a generation."""
    return sync.identity.instance_id or sync.identity.member


def _was_deleted_between(history: GroupHistory, first: SyncOperation, second: SyncOperation) -> bool:
    invoked_at, completed_at = (
        min(first.invoked_at, second.invoked_at),
        max(first.completed_by, second.completed_by),
    )
    return any(
        each.group == first.identity.group
        and each.partition is None
        and each.result is not OperationResult.FAIL
        and each.invoked_at < completed_at
        and each.completed_by > invoked_at
        for each in history.deletions
    )


def _accepted_requests(history: GroupHistory) -> Iterator[tuple[str, CommitOperation | HeartbeatOperation]]:
    """What members were allowed to do."""
    for commit in history.commits:
        if commit.result is OperationResult.OK and commit.identity.generation != NO_GENERATION:
            yield "commit", commit
    for beat in history.heartbeats:
        yield "heartbeat", beat


def _check_fencing(history: GroupHistory) -> Iterator[tuple[str, str]]:
    fences = FencingIndex(history)
    for what, operation in _accepted_requests(history):
        identity = operation.identity
        if (newer := fences.newer_generation(identity, operation.invoked_at)) is not None:
            who = f"{what} of {identity.member} in generation {identity.generation} of {identity.group}"
            yield "old generation accepted", f"{who}, after {newer.identity.generation} was handed out"
        if (successor := fences.successor(identity, operation.invoked_at)) is not None:
            who = f"{what} of {identity.member} as {identity.instance_id} in {identity.group}"
            yield "fenced member accepted", f"{who}, after {successor.identity.member} took its place"


# Reading


def _check_commits_were_read(history: GroupHistory) -> Iterator[tuple[str, str]]:
    """Groups read from the beginning, so what is below a member's commit has been delivered to somebody."""
    read: defaultdict[Key, set[int]] = defaultdict(set)
    frontiers: defaultdict[Key, int] = defaultdict(int)
    deliveries = iter(history.deliveries)
    ahead = next(deliveries, None)
    for commit in history.commits:
        if commit.identity.generation == NO_GENERATION or commit.result is OperationResult.FAIL:
            continue
        while ahead is not None and ahead.at < commit.invoked_at:
            read[ahead.group, ahead.partition].add(ahead.offset)
            ahead = next(deliveries, None)
        key = commit.key
        while frontiers[key] in read[key]:
            frontiers[key] += 1
        if commit.offset > frontiers[key]:
            yield (
                "committed unread",
                f"{_format_commit(commit)} of {_register_name(*key)}, where {frontiers[key]} was next",
            )


def _check_final_state(history: GroupHistory) -> Iterator[tuple[str, str]]:
    read: defaultdict[Key, set[int]] = defaultdict(set)
    for delivery in history.deliveries:
        read[delivery.group, delivery.partition].add(delivery.offset)
    for group, final_groups in sorted(history.final_groups.items()):
        owned = list(itertools.chain.from_iterable(final_groups.assignments.values()))
        if final_groups.state != "Stable" or sorted(owned) != sorted(history.end_offsets):
            members = {member: sorted(each) for member, each in sorted(final_groups.assignments.items())}
            yield "not settled", f"{group} is {final_groups.state} with {members}"
        for partition, end in sorted(history.end_offsets.items()):
            missing = [offset for offset in range(end) if offset not in read[group, partition]]
            if missing:
                yield (
                    "unseen",
                    f"{len(missing)} records of {_register_name(group, partition)} from {missing[0]} on",
                )


def _interval(operation: ClientOperation) -> Interval:
    return Interval(operation.invoked_at, operation.completed_by)


def _register_name(group: str, partition: Partition) -> str:
    return f"{group}/{partition[0]}-{partition[1]}"


def _format_commit(commit: CommitOperation) -> str:
    return f"{commit.offset} ({commit.tag})"
