"""Checkers of record histories, for single nodes and for clusters. Pure.

Anomalies have the names that public checkers of Kafka-like logs use. Topics that may lose records must still have equal
replicas, ordered offsets within a response, no duplicates and no records that were never sent.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moldau.testing.simulation.checkers.history import (
    ClusterHistory,
    History,
    LogContent,
    Partition,
    PollOperation,
    SendOperation,
)

Anomalies = Iterator[tuple[str, str]]
"""The names and details of anomalies."""
OffsetsByValue = Mapping[bytes, Sequence[int]]
"""The offsets of each value in a final log."""

ACKS_ALL = -1
"""Records acknowledged with acks=all must survive every fault."""


@dataclass(frozen=True, slots=True)
class Violation:
    anomaly: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.detail}"


def check_records(history: History) -> list[Violation]:
    """Returns all violations in the history. Producers without idempotence must not retry. Partitions without a final
    log are skipped."""
    return violations(_check_history(history, history.sends, ()), _check_high_watermarks(history))


def check_cluster(history: ClusterHistory) -> list[Violation]:
    """Returns all violations in the history of a cluster. Producers without idempotence may retry, which may duplicate
    and reorder their records. Partitions without a final log are skipped."""
    idempotent_sends = [send for send in history.sends if send.is_idempotent]
    return violations(
        _check_history(history, idempotent_sends, history.lossy_topics),
        _check_replicas_agree(history),
        _check_unread(history),
    )


def violations(*checks: Anomalies) -> list[Violation]:
    return [Violation(anomaly, detail) for anomaly, detail in itertools.chain(*checks)]


def _check_history(history: History, unique_sends: Sequence[SendOperation], lossy_topics: Collection[str]) -> Anomalies:
    """Runs the checks that apply both to single nodes and to clusters. The records of `unique_sends` must not be
    duplicated or reordered."""
    log_offsets = {partition: _offsets_by_value(log) for partition, log in history.logs.items()}
    for partition, log in sorted(history.logs.items()):
        yield from _check_log_offsets(partition, log)
    for send in unique_sends:
        yield from _check_duplicates(send, log_offsets.get(send.partition, {}))
    must_survive = [
        send
        for send in history.sends
        if send.is_acknowledged and send.acks == ACKS_ALL and send.partition[0] not in lossy_topics
    ]
    for send in must_survive:
        if send.partition in log_offsets:
            yield from _check_acknowledged(send, log_offsets[send.partition])
    yield from _check_acknowledged_offsets(must_survive)
    # Skip lossy topics, because a broker that loses records also loses producer state. It then accepts whichever batch
    # of a producer arrives first, even if an earlier batch is missing.
    yield from _check_send_order([send for send in unique_sends if send.partition[0] not in lossy_topics], log_offsets)
    yield from _check_never_sent(history)
    yield from _check_polls(history, lossy_topics)
    for unexpected in history.unexpected_errors:
        if unexpected.partition[0] not in lossy_topics:
            yield unexpected.error, f"{unexpected.client} at {_partition_name(unexpected.partition)}"
    for producer_id, count in sorted(Counter(history.producer_ids).items()):
        if count > 1:
            yield "producer id handed out twice", str(producer_id)
    yield from _check_topic_changes(history)


# Logs


def _check_log_offsets(partition: Partition, log: LogContent) -> Anomalies:
    for (before, _), (after, _) in itertools.pairwise(log):
        if after == before:
            yield "inconsistent offsets", f"two records at offset {after} of {_partition_name(partition)}"
        elif after != before + 1:
            yield "gap", f"offset {after} follows {before} in {_partition_name(partition)}"


def _offsets_by_value(log: LogContent) -> OffsetsByValue:
    log_offsets: dict[bytes, list[int]] = {}
    for offset, value in log:
        log_offsets.setdefault(value, []).append(offset)
    return log_offsets


def _check_replicas_agree(history: ClusterHistory) -> Anomalies:
    for partition, replicas in sorted(history.replicas.items()):
        for (one, log), (other, other_log) in itertools.pairwise(sorted(replicas.items())):
            if log == other_log:
                continue
            where = next(
                (f"{first} and {second}" for first, second in zip(log, other_log, strict=False) if first != second),
                f"{len(log)} and {len(other_log)} records",
            )
            yield "replicas differ", f"{_partition_name(partition)} on nodes {one} and {other}: {where[:200]}"


def _check_never_sent(history: History) -> Anomalies:
    sent = {(send.partition, value) for send in history.sends for value in send.values}
    for partition, log in sorted(history.logs.items()):
        for offset, value in log:
            if (partition, value) not in sent:
                yield "never sent", f"{_format_value(value)} at {offset} of {_partition_name(partition)}"


# Sends


def _check_duplicates(send: SendOperation, log_offsets: OffsetsByValue) -> Anomalies:
    """Checks that each record of a batch is in the log once, and that the log has the whole batch or nothing of it."""
    found = [log_offsets.get(value, ()) for value in send.values]
    for value, offsets in zip(send.values, found, strict=True):
        if len(offsets) > 1:
            label = f"{_format_value(value)} of {send.producer}"
            yield "duplicate", f"{label} is at {list(offsets)} of {_partition_name(send.partition)}"
    present = [offsets[0] for offsets in found if offsets]
    if present and present != list(range(present[0], present[0] + len(found))):
        yield "torn batch", f"of {len(found)} records from {_send_label(send)}, only these offsets exist: {present}"


def _check_acknowledged(send: SendOperation, log_offsets: OffsetsByValue) -> Anomalies:
    if not any(value in log_offsets for value in send.values):
        yield "lost write", f"{_send_label(send)} was acknowledged at {send.offset}"
        return
    offsets = log_offsets.get(send.values[0], ())
    if send.offset is not None and send.offset not in offsets:
        yield "wrong offset", f"{_send_label(send)} was acknowledged at {send.offset} and is at {list(offsets)}"


def _check_acknowledged_offsets(sends: Iterable[SendOperation]) -> Anomalies:
    """Checks that no two records were acknowledged at the same offset, even if neither is in the final log."""
    taken: dict[tuple[Partition, int], bytes] = {}
    for send in sends:
        for index, value in enumerate(send.values if send.offset is not None else ()):
            offset = (send.offset or 0) + index
            other = taken.setdefault((send.partition, offset), value)
            if other != value:
                both = f"{_format_value(value)} and {_format_value(other)}"
                where = f"{offset} of {_partition_name(send.partition)}"
                yield "inconsistent offsets", f"{both} were both acknowledged at {where}"


def _check_send_order(sends: Iterable[SendOperation], log_offsets: Mapping[Partition, OffsetsByValue]) -> Anomalies:
    """Checks that later records of a producer have higher offsets. Without idempotence, this is checked only if the
    earlier send had completed before the later send began."""
    last: dict[tuple[str, Partition], tuple[SendOperation, int]] = {}
    for send in sends:
        offsets = log_offsets.get(send.partition, {}).get(send.values[0])
        if not offsets:
            continue
        key = send.producer, send.partition
        if key in last:
            earlier, offset = last[key]
            was_known = earlier.completed_at is not None and earlier.completed_at < send.invoked_at
            if offset > offsets[0] and (send.is_idempotent or was_known):
                later = f"{_format_value(send.values[0])}, sent after it, at {offsets[0]}"
                where = f"{later} of {_partition_name(send.partition)}"
                yield "non-monotonic send", f"{_format_value(earlier.values[0])} is at {offset} and {where}"
        if send.is_idempotent or send.is_acknowledged:
            last[key] = send, offsets[0]


# Polls


def _check_polls(history: History, lossy_topics: Collection[str]) -> Anomalies:
    logs = {partition: dict(log) for partition, log in history.logs.items()}
    seen: dict[tuple[Partition, int], bytes] = {}
    positions: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        if poll.partition not in logs or not poll.records:
            continue
        who = f"{poll.consumer} of {_partition_name(poll.partition)}"
        yield from _check_poll_order(poll, who)
        if poll.partition[0] in lossy_topics:
            continue
        key = poll.consumer, poll.partition
        expected, first = positions.get(key, poll.position), poll.records[0][0]
        if first != expected:
            anomaly = "non-monotonic poll" if first < expected else "poll skip"
            yield anomaly, f"{who} read {first} where {expected} was next"
        positions[key] = poll.records[-1][0] + 1
        log = logs[poll.partition]
        for offset, value in poll.records:
            read = f"{who} read {_format_value(value)} at {offset}"
            other = seen.setdefault((poll.partition, offset), value)
            if other != value:
                yield "inconsistent offsets", f"{read}, and others {_format_value(other)}"
            if offset not in log:
                yield "vanished", f"{read}, which is missing in the final log"
            elif log[offset] != value:
                yield "inconsistent offsets", f"{read}, where the final log has {_format_value(log[offset])}"


def _check_poll_order(poll: PollOperation, who: str) -> Anomalies:
    for (before, _), (after, _) in itertools.pairwise(poll.records):
        if after != before + 1:
            anomaly = "internal non-monotonic poll" if after <= before else "internal poll skip"
            yield anomaly, f"{who} read {after} after {before} in one response"
    for offset, _ in poll.records:
        if offset >= poll.high_watermark:
            yield "read above the high watermark", f"{who} read {offset} at high watermark {poll.high_watermark}"


def _check_high_watermarks(history: History) -> Anomalies:
    watermarks: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        before = watermarks.get((poll.consumer, poll.partition), 0)
        if poll.high_watermark < before:
            who = f"{poll.consumer} of {_partition_name(poll.partition)}"
            yield "high watermark fell", f"{who} saw {before}, then {poll.high_watermark}"
        watermarks[poll.consumer, poll.partition] = poll.high_watermark


def _check_unread(history: ClusterHistory) -> Anomalies:
    """Checks that every reader has read its partitions to the end."""
    read = {(poll.consumer, poll.partition, offset) for poll in history.polls for offset, _ in poll.records}
    for reader, partitions in sorted(history.readers.items()):
        for partition in partitions:
            if partition[0] in history.lossy_topics:
                continue
            missing = [
                offset for offset, _ in history.logs.get(partition, ()) if (reader, partition, offset) not in read
            ]
            if missing:
                what = f"{len(missing)} records of {_partition_name(partition)}, the first at {missing[0]}"
                yield "unseen", f"{reader} never read {what}"


# Topics


def _check_topic_changes(history: History) -> Anomalies:
    if history.topics is None:
        return
    last = {change.topic: change for change in history.topic_changes}
    for topic, change in sorted(last.items()):
        # Check only topics whose last change was acknowledged. An unacknowledged change may or may not have happened.
        if change.is_acknowledged and change.is_creation != (topic in history.topics):
            yield ("lost topic" if change.is_creation else "deleted topic is back"), topic


def _partition_name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _send_label(send: SendOperation) -> str:
    return f"{_format_value(send.values[0])} of {send.producer} in {_partition_name(send.partition)}"


def _format_value(value: bytes) -> str:
    return repr(value[:40])
