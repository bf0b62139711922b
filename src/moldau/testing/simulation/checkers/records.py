"""Checker of record histories. Pure.

Anomalies have the names that public checkers of Kafka-like logs use.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moldau.testing.simulation.checkers.history import History, LogContent, Partition, PollOperation, SendOperation

Anomalies = Iterator[tuple[str, str]]
"""The names and details of anomalies."""

ACKS_ALL = -1
"""Records acknowledged with acks=all must survive every fault."""


@dataclass(frozen=True, slots=True)
class Violation:
    anomaly: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.detail}"


def check_records(history: History) -> list[Violation]:
    """Returns all violations in the history. Partitions without a final log are skipped."""
    return [Violation(anomaly, detail) for anomaly, detail in _violations(history)]


def _violations(history: History) -> Anomalies:
    for partition, log in sorted(history.logs.items()):
        yield from check_log_offsets(partition, log)
    log_offsets = {partition: offsets_by_value(log) for partition, log in history.logs.items()}
    for send in history.sends:
        if send.partition in log_offsets:
            yield from _check_send(send, log_offsets[send.partition])
    yield from _check_send_order(history, log_offsets)
    yield from check_never_sent(history)
    yield from _check_polls(history)
    for unexpected in history.unexpected_errors:
        yield unexpected.error, f"{unexpected.client} at {partition_name(unexpected.partition)}"
    for producer_id in sorted(set(history.producer_ids)):
        if history.producer_ids.count(producer_id) > 1:
            yield "producer id handed out twice", str(producer_id)
    yield from check_topic_changes(history)


def check_log_offsets(partition: Partition, log: LogContent) -> Anomalies:
    for (before, _), (after, _) in itertools.pairwise(log):
        if after == before:
            yield "inconsistent offsets", f"two records at offset {after} of {partition_name(partition)}"
        elif after != before + 1:
            yield "gap", f"offset {after} follows {before} in {partition_name(partition)}"


def offsets_by_value(log: LogContent) -> dict[bytes, list[int]]:
    log_offsets: dict[bytes, list[int]] = {}
    for offset, value in log:
        log_offsets.setdefault(value, []).append(offset)
    return log_offsets


def _check_send(send: SendOperation, log_offsets: Mapping[bytes, list[int]]) -> Anomalies:
    label = f"{format_value(send.values[0])} of {send.producer} in {partition_name(send.partition)}"
    found = [log_offsets.get(value, []) for value in send.values]
    for value, offsets in zip(send.values, found, strict=True):
        if len(offsets) > 1:
            yield (
                "duplicate",
                f"{format_value(value)} of {send.producer} is at {offsets} of {partition_name(send.partition)}",
            )
    present = [offsets[0] for offsets in found if offsets]
    if present and (len(present) < len(found) or present != list(range(present[0], present[0] + len(found)))):
        yield "torn batch", f"of {len(found)} records from {label}, only these offsets exist: {present}"
    if not send.is_acknowledged or send.acks != ACKS_ALL:
        return
    if not present:
        yield "lost write", f"{label} was acknowledged at {send.offset}"
    elif send.offset is not None and send.offset not in found[0]:
        yield "wrong offset", f"{label} was acknowledged at {send.offset} and is at {found[0]}"


def _check_send_order(history: History, log_offsets: Mapping[Partition, dict[bytes, list[int]]]) -> Anomalies:
    """Checks that later records of a producer have higher offsets. Without idempotence, this is checked only if the
    earlier send had completed before the later send."""
    last: dict[tuple[str, Partition], tuple[SendOperation, int]] = {}
    for send in history.sends:
        offsets = log_offsets.get(send.partition, {}).get(send.values[0])
        if not offsets:
            continue
        key = send.producer, send.partition
        if key in last:
            earlier, offset = last[key]
            was_known = earlier.completed_at is not None and earlier.completed_at < send.invoked_at
            if offset > offsets[0] and (send.is_idempotent or was_known):
                first, second = format_value(earlier.values[0]), format_value(send.values[0])
                where = f"{first} is at {offset} and {second} at {offsets[0]} of {partition_name(send.partition)}"
                yield "non-monotonic send", where
        if send.is_idempotent or send.is_acknowledged:
            last[key] = send, offsets[0]


def check_never_sent(history: History) -> Anomalies:
    sent = {(send.partition, value) for send in history.sends for value in send.values}
    for partition, log in sorted(history.logs.items()):
        for offset, value in log:
            if (partition, value) not in sent:
                yield "never sent", f"{format_value(value)} at {offset} of {partition_name(partition)}"


def _check_polls(history: History) -> Anomalies:
    logs = {partition: dict(log) for partition, log in history.logs.items()}
    positions: dict[tuple[str, Partition], int] = {}
    watermarks: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        key = poll.consumer, poll.partition
        who = f"{poll.consumer} of {partition_name(poll.partition)}"
        if poll.high_watermark < watermarks.get(key, 0):
            yield "high watermark fell", f"{who} saw {watermarks[key]}, then {poll.high_watermark}"
        watermarks[key] = poll.high_watermark
        if poll.partition in logs:
            yield from _check_poll(poll, who, logs[poll.partition], positions.get(key, poll.position))
        if poll.records:
            positions[key] = poll.records[-1][0] + 1


def _check_poll(poll: PollOperation, who: str, log: Mapping[int, bytes], expected: int) -> Anomalies:
    for offset, value in poll.records:
        if offset < expected:
            yield "non-monotonic poll", f"{who} read {offset} where {expected} was next"
        elif offset > expected:
            yield "poll skip", f"{who} read {offset} where {expected} was next"
        expected = offset + 1
        if offset >= poll.high_watermark:
            yield ("read above the high watermark", f"{who} read {offset} at high watermark {poll.high_watermark}")
        yield from check_read(who, offset, value, log)


def check_read(who: str, offset: int, value: bytes, log: Mapping[int, bytes]) -> Anomalies:
    """Compares a record that was read with the final log."""
    read = f"{who} read {format_value(value)} at {offset}"
    if offset not in log:
        yield "vanished", f"{read}, which is missing in the final log"
    elif log[offset] != value:
        yield "inconsistent offsets", f"{read}, where the final log has {format_value(log[offset])}"


def check_topic_changes(history: History) -> Anomalies:
    if history.topics is None:
        return
    last: dict[str, list[tuple[bool, bool]]] = {}
    for change in history.topic_changes:
        states = last.setdefault(change.topic, [])
        if change.is_acknowledged:
            states.clear()
        states.append((change.is_creation, change.is_acknowledged))
    for topic, states in sorted(last.items()):
        exists = topic in history.topics
        # Check only topics whose last change was acknowledged. An unacknowledged change may or may not have happened.
        if len(states) == 1 and states[0][1] and states[0][0] != exists:
            yield ("lost topic" if states[0][0] else "deleted topic is back"), topic


def partition_name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def format_value(value: bytes) -> str:
    return repr(value[:40])
