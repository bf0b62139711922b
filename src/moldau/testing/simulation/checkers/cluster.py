"""Checker of cluster histories, for runs with crashed, paused and partitioned nodes. Pure.

Topics that may lose records must still have equal replicas, ordered offsets within a response, no duplicates and no
records that were never sent.
"""

import itertools
from collections.abc import Mapping, Sequence

from moldau.testing.simulation.checkers.history import (
    ClusterHistory,
    LogContent,
    Partition,
    PollOperation,
    SendOperation,
)
from moldau.testing.simulation.checkers.records import (
    ACKS_ALL,
    Anomalies,
    Violation,
    check_log_offsets,
    check_never_sent,
    check_read,
    check_topic_changes,
    format_value,
    offsets_by_value,
    partition_name,
)


def check_cluster(history: ClusterHistory) -> list[Violation]:
    """Returns all violations in the history. Partitions without a final log are skipped."""
    return [Violation(anomaly, detail) for anomaly, detail in _violations(history)]


def _violations(history: ClusterHistory) -> Anomalies:
    for partition, log in sorted(history.logs.items()):
        yield from check_log_offsets(partition, log)
    for partition, replicas in sorted(history.replicas.items()):
        yield from _check_replicas_agree(partition, replicas)
    log_offsets = {partition: offsets_by_value(log) for partition, log in history.logs.items()}
    for send in history.sends:
        if send.partition in log_offsets:
            yield from _check_send(send, log_offsets[send.partition], send.partition[0] in history.lossy_topics)
    yield from _check_acknowledged_offsets(history)
    yield from _check_send_order(history, log_offsets)
    yield from check_never_sent(history)
    yield from _check_polls(history)
    yield from _check_unread(history)
    for unexpected in history.unexpected_errors:
        if unexpected.partition[0] not in history.lossy_topics:
            yield unexpected.error, f"{unexpected.client} at {partition_name(unexpected.partition)}"
    yield from check_topic_changes(history)


def _check_replicas_agree(partition: Partition, replicas: Mapping[int, LogContent]) -> Anomalies:
    for (one, log), (other, other_log) in itertools.pairwise(sorted(replicas.items())):
        if log == other_log:
            continue
        where = next(
            (f"{first} and {second}" for first, second in zip(log, other_log, strict=False) if first != second),
            f"{len(log)} and {len(other_log)} records",
        )
        yield "replicas differ", f"{partition_name(partition)} on nodes {one} and {other}: {where[:200]}"


def _check_send(send: SendOperation, log_offsets: Mapping[bytes, Sequence[int]], is_lossy: bool) -> Anomalies:
    for value in send.values:
        offsets = log_offsets.get(value, ())
        label = f"{format_value(value)} of {send.producer}"
        if len(offsets) > 1 and send.is_idempotent:
            yield "duplicate", f"{label} is at {list(offsets)} of {partition_name(send.partition)}"
        if not offsets and send.is_acknowledged and send.acks == ACKS_ALL and not is_lossy:
            yield ("lost write", f"{label} was acknowledged at {send.offset} of {partition_name(send.partition)}")
    if send.is_acknowledged and send.acks == ACKS_ALL and send.offset is not None and not is_lossy:
        found = log_offsets.get(send.values[0], ())
        if found and send.offset not in found:
            where = f"at {send.offset} of {partition_name(send.partition)} and is at {list(found)}"
            yield ("wrong offset", f"{format_value(send.values[0])} of {send.producer} was acknowledged {where}")


def _check_acknowledged_offsets(history: ClusterHistory) -> Anomalies:
    """Checks that no two records were acknowledged at the same offset, even if neither is in the final log."""
    taken: dict[tuple[Partition, int], bytes] = {}
    for send in history.sends:
        if not send.is_acknowledged or send.acks != ACKS_ALL or send.offset is None:
            continue
        if send.partition[0] in history.lossy_topics:
            continue
        for index, value in enumerate(send.values):
            place = send.partition, send.offset + index
            if taken.setdefault(place, value) != value:
                both = f"{format_value(value)} and {format_value(taken[place])}"
                where = f"{place[1]} of {partition_name(place[0])}"
                yield "inconsistent offsets", f"{both} were both acknowledged at {where}"


def _check_send_order(
    history: ClusterHistory, log_offsets: Mapping[Partition, Mapping[bytes, Sequence[int]]]
) -> Anomalies:
    """Checks that later records of an idempotent producer have higher offsets. Lossy topics are skipped, because a
    broker that loses records also loses producer state. The broker then accepts whichever batch arrives first."""
    last: dict[tuple[str, Partition], tuple[bytes, int]] = {}
    for send in history.sends:
        offsets = log_offsets.get(send.partition, {}).get(send.values[0])
        if not offsets or not send.is_idempotent or send.partition[0] in history.lossy_topics:
            continue
        key = send.producer, send.partition
        if key in last and last[key][1] > offsets[0]:
            earlier, offset = last[key]
            value, name = format_value(send.values[0]), partition_name(send.partition)
            later = f"{value}, sent after it, at {offsets[0]} of {name}"
            yield "non-monotonic send", f"{format_value(earlier)} is at {offset} and {later}"
        last[key] = send.values[0], offsets[0]


def _check_polls(history: ClusterHistory) -> Anomalies:
    logs = {partition: dict(log) for partition, log in history.logs.items()}
    seen: dict[tuple[Partition, int], bytes] = {}
    positions: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        who = f"{poll.consumer} of {partition_name(poll.partition)}"
        yield from _check_poll_order(poll, who)
        if poll.partition[0] in history.lossy_topics or not poll.records:
            continue
        yield from _check_poll_positions(poll, who, positions)
        log = logs.get(poll.partition)
        for offset, value in poll.records:
            if seen.setdefault((poll.partition, offset), value) != value:
                other = format_value(seen[poll.partition, offset])
                yield ("inconsistent offsets", f"{who} read {format_value(value)} at {offset}, and others {other}")
            if log is not None:
                yield from check_read(who, offset, value, log)


def _check_poll_order(poll: PollOperation, who: str) -> Anomalies:
    for (before, _), (after, _) in itertools.pairwise(poll.records):
        if after <= before:
            yield "internal non-monotonic poll", f"{who} read {after} after {before} in one response"
        elif after > before + 1:
            yield "internal poll skip", f"{who} read {after} after {before} in one response"
    for offset, _ in poll.records:
        if offset >= poll.high_watermark:
            yield ("read above the high watermark", f"{who} read {offset} at high watermark {poll.high_watermark}")


def _check_poll_positions(poll: PollOperation, who: str, positions: dict[tuple[str, Partition], int]) -> Anomalies:
    key = poll.consumer, poll.partition
    expected, first = positions.get(key, poll.position), poll.records[0][0]
    if first < expected:
        yield "non-monotonic poll", f"{who} read {first} where {expected} was next"
    elif first > expected:
        yield "poll skip", f"{who} read {first} where {expected} was next"
    positions[key] = poll.records[-1][0] + 1


def _check_unread(history: ClusterHistory) -> Anomalies:
    """Checks that every reader has read its partitions to the end."""
    read: dict[tuple[str, Partition], set[int]] = {}
    for poll in history.polls:
        read.setdefault((poll.consumer, poll.partition), set()).update(offset for offset, _ in poll.records)
    for reader, partitions in sorted(history.readers.items()):
        for partition in partitions:
            if partition[0] in history.lossy_topics:
                continue
            found = read.get((reader, partition), set())
            missing = [offset for offset, _ in history.logs.get(partition, ()) if offset not in found]
            if missing:
                what = f"{len(missing)} records of {partition_name(partition)}, the first at {missing[0]}"
                yield "unseen", f"{reader} never read {what}"
