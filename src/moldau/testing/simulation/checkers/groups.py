"""Checker of group histories. Pure.

The committed offset of a group and partition is checked as a register. Requests of a fenced member must fail. A group
must read every record, and must not commit a record before reading it.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
from moldau.testing.simulation.checkers.records import Anomalies, Violation, violations
from moldau.testing.simulation.checkers.register import Interval, RegisterValue, contradictions

Key = tuple[str, Partition]

NOTHING = "nothing"
"""The value of a register after a deletion."""


def check_groups(history: GroupHistory) -> list[Violation]:
    return violations(
        _check_committed_offsets(history),
        _check_double_ownership(history),
        _check_fencing(history),
        _check_commits_were_read(history),
        _check_final_state(history),
    )


# Committed offsets


def _check_committed_offsets(history: GroupHistory) -> Anomalies:
    commits: defaultdict[Key, list[CommitOperation]] = defaultdict(list)
    offset_fetches: defaultdict[Key, list[OffsetFetchOperation]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.key].append(commit)
    for fetch in history.offset_fetches:
        offset_fetches[fetch.group, fetch.partition].append(fetch)
    for key in sorted({*commits, *offset_fetches}):
        deletions = [
            each
            for each in history.deletions
            if each.group == key[0] and each.partition in (None, key[1]) and each.result is not OperationResult.FAIL
        ]
        yield from _check_register(_register_name(*key), commits[key], offset_fetches[key], deletions)


def _check_register(
    where: str,
    commits: Sequence[CommitOperation],
    offset_fetches: Sequence[OffsetFetchOperation],
    deletions: Sequence[DeleteOperation],
) -> Anomalies:
    commits_by_tag = {commit.tag: commit for commit in commits}
    fetches_by_tag: defaultdict[str, list[OffsetFetchOperation]] = defaultdict(list)
    for fetch in offset_fetches:
        if fetch.offset == NOTHING_COMMITTED:
            continue
        found = commits_by_tag.get(fetch.tag)
        if found is None or found.offset != fetch.offset or found.invoked_at > fetch.completed_at:
            yield "never committed", f"{fetch.offset} ({fetch.tag!r}) was returned for {where}"
        elif found.result is OperationResult.FAIL:
            yield "refused commit shows", f"{_format_commit(found)} of {where}"
        else:
            fetches_by_tag[fetch.tag].append(fetch)
    values = {
        commit.tag: RegisterValue(
            _format_commit(commit),
            _interval(commit),
            [Interval(fetch.invoked_at, fetch.completed_at) for fetch in fetches_by_tag[commit.tag]],
        )
        for commit in commits
        if commit.result is not OperationResult.FAIL
    }
    deleted = [RegisterValue(NOTHING, _interval(each), ()) for each in deletions if each.result is OperationResult.OK]
    for one, other in contradictions([*values.values(), *deleted]):
        if NOTHING in (one.name, other.name):
            yield "deleted offset is back", f"{one.name if other.name == NOTHING else other.name} of {where}"
        else:
            yield ("committed offset moved back", f"{one.name} and {other.name} of {where}, then the first again")
    yield from _check_lost_commits(where, values.values(), offset_fetches, deletions)
    yield from _check_regressed_commits(where, commits, values, offset_fetches)


def _check_lost_commits(
    where: str,
    values: Iterable[RegisterValue],
    offset_fetches: Sequence[OffsetFetchOperation],
    deletions: Sequence[DeleteOperation],
) -> Anomalies:
    """Checks that each offset fetch returns an offset, unless every earlier commit may have been deleted."""
    for fetch in offset_fetches:
        if fetch.offset != NOTHING_COMMITTED:
            continue
        deleted_by = max((each.completed_by for each in deletions if each.invoked_at < fetch.completed_at), default=0.0)
        for value in values:
            if value.write.invoked_at > deleted_by and value.earliest_completion < fetch.invoked_at:
                yield "committed offset lost", f"{value.name} of {where}, but a later fetch returned nothing"
                break


def _check_regressed_commits(
    where: str,
    commits: Sequence[CommitOperation],
    values: Mapping[str, RegisterValue],
    offset_fetches: Sequence[OffsetFetchOperation],
) -> Anomalies:
    """Checks that no member commits a lower offset than an earlier commit. Members continue from committed offsets."""
    for commit in commits:
        if commit.result is not OperationResult.OK or commit.identity.generation == NO_GENERATION:
            continue
        fetched_at = max(
            (
                fetch.completed_at
                for fetch in offset_fetches
                if fetch.completed_at < commit.invoked_at and fetch.offset <= commit.offset
            ),
            default=-1,
        )
        for other in commits:
            if other.offset <= commit.offset or other.result is OperationResult.FAIL or other.invoked_at < fetched_at:
                continue
            if values[other.tag].earliest_completion < commit.invoked_at:
                yield (
                    "member committed less",
                    f"{_format_commit(commit)} came after {_format_commit(other)} of {where}",
                )
                break


# Fencing


def _check_double_ownership(history: GroupHistory) -> Anomalies:
    """Checks that each partition has one owner in a generation. A generation number repeats only after the group was
    deleted."""
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
    """Returns the instance id of a static member, which keeps its partitions across restarts, or else the member id."""
    return sync.identity.instance_id or sync.identity.member


def _was_deleted_between(history: GroupHistory, first: SyncOperation, second: SyncOperation) -> bool:
    invoked_at = min(first.invoked_at, second.invoked_at)
    completed_at = max(first.completed_by, second.completed_by)
    return any(
        each.group == first.identity.group
        and each.partition is None
        and each.result is not OperationResult.FAIL
        and each.invoked_at < completed_at
        and each.completed_by > invoked_at
        for each in history.deletions
    )


def _check_fencing(history: GroupHistory) -> Anomalies:
    """Checks that the coordinator accepted no commit or heartbeat of a fenced member."""
    fencing = FencingIndex(history)
    accepted: list[CommitOperation | HeartbeatOperation] = [
        commit
        for commit in history.commits
        if commit.result is OperationResult.OK and commit.identity.generation != NO_GENERATION
    ]
    for operation in (*accepted, *history.heartbeats):
        what = "commit" if isinstance(operation, CommitOperation) else "heartbeat"
        identity = operation.identity
        if (newer := fencing.newer_generation(identity, operation.invoked_at)) is not None:
            who = f"{what} of {identity.member} in generation {identity.generation} of {identity.group}"
            yield "old generation accepted", f"{who}, after {newer.identity.generation} was handed out"
        if (successor := fencing.successor(identity, operation.invoked_at)) is not None:
            who = f"{what} of {identity.member} as {identity.instance_id} in {identity.group}"
            yield "fenced member accepted", f"{who}, after {successor.identity.member} took its place"


# Reading


def _check_commits_were_read(history: GroupHistory) -> Anomalies:
    """Checks that each record from offset 0 up to a member's commit was delivered to some member before the commit."""
    read: defaultdict[Key, set[int]] = defaultdict(set)
    next_unread: defaultdict[Key, int] = defaultdict(int)
    deliveries = iter(history.deliveries)
    delivery = next(deliveries, None)
    for commit in history.commits:
        if commit.identity.generation == NO_GENERATION or commit.result is OperationResult.FAIL:
            continue
        while delivery is not None and delivery.at < commit.invoked_at:
            read[delivery.group, delivery.partition].add(delivery.offset)
            delivery = next(deliveries, None)
        key = commit.key
        while next_unread[key] in read[key]:
            next_unread[key] += 1
        if commit.offset > next_unread[key]:
            yield (
                "committed unread",
                f"{_format_commit(commit)} of {_register_name(*key)}, where {next_unread[key]} was next",
            )


def _check_final_state(history: GroupHistory) -> Anomalies:
    read: defaultdict[Key, set[int]] = defaultdict(set)
    for delivery in history.deliveries:
        read[delivery.group, delivery.partition].add(delivery.offset)
    for group, final in sorted(history.final_groups.items()):
        owned = list(itertools.chain.from_iterable(final.assignments.values()))
        if final.state != "Stable" or sorted(owned) != sorted(history.end_offsets):
            members = {member: sorted(each) for member, each in sorted(final.assignments.items())}
            yield "unstable group", f"{group} is {final.state} with {members}"
        for partition, end in sorted(history.end_offsets.items()):
            missing = [offset for offset in range(end) if offset not in read[group, partition]]
            if missing:
                yield ("unseen", f"{len(missing)} records of {_register_name(group, partition)} from {missing[0]} on")


def _interval(operation: ClientOperation) -> Interval:
    return Interval(operation.invoked_at, operation.completed_by)


def _register_name(group: str, partition: Partition) -> str:
    return f"{group}/{partition[0]}-{partition[1]}"


def _format_commit(commit: CommitOperation) -> str:
    return f"{commit.offset} ({commit.tag})"
