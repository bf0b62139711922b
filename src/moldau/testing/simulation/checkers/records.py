"""The history checker: finds what must never happen in what clients saw. Pure.

The names of the anomalies are those that public checkers of Kafka-like logs use.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moldau.testing.simulation.checkers.history import History, Partition, Poll, Send

Log = Sequence[tuple[int, bytes]]

ALL = -1
"""acks=all: what is acknowledged this way survives whatever happens to the machine."""


@dataclass(frozen=True, slots=True)
class Violation:
    anomaly: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.detail}"


def check(history: History) -> list[Violation]:
    """Every violation in the history. Partitions whose final content it does not have are left out."""
    return [Violation(anomaly, detail) for anomaly, detail in _violations(history)]


def _violations(history: History) -> Iterator[tuple[str, str]]:
    for partition, log in sorted(history.logs.items()):
        yield from log_itself(partition, log)
    places = {partition: places_of(log) for partition, log in history.logs.items()}
    for send in history.sends:
        if send.partition in places:
            yield from _one_send(send, places[send.partition])
    yield from _order_of_sends(history, places)
    yield from never_sent(history)
    yield from _polls(history)
    for refusal in history.refusals:
        yield refusal.what, f"{refusal.who} at {name_of(refusal.partition)}"
    for producer_id in sorted(set(history.producer_ids)):
        if history.producer_ids.count(producer_id) > 1:
            yield "producer id handed out twice", str(producer_id)
    yield from topic_changes(history)


def log_itself(partition: Partition, log: Log) -> Iterator[tuple[str, str]]:
    for (before, _), (after, _) in itertools.pairwise(log):
        if after == before:
            yield "inconsistent offsets", f"two records at offset {after} of {name_of(partition)}"
        elif after != before + 1:
            yield "gap", f"offset {after} follows {before} in {name_of(partition)}"


def places_of(log: Log) -> dict[bytes, list[int]]:
    places: dict[bytes, list[int]] = {}
    for offset, value in log:
        places.setdefault(value, []).append(offset)
    return places


def _one_send(send: Send, places: Mapping[bytes, list[int]]) -> Iterator[tuple[str, str]]:
    label = f"{shown(send.values[0])} of {send.producer} in {name_of(send.partition)}"
    found = [places.get(value, []) for value in send.values]
    for value, offsets in zip(send.values, found, strict=True):
        if len(offsets) > 1:
            yield (
                "duplicate",
                f"{shown(value)} of {send.producer} is at {offsets} of {name_of(send.partition)}",
            )
    present = [offsets[0] for offsets in found if offsets]
    if present and (len(present) < len(found) or present != list(range(present[0], present[0] + len(found)))):
        yield "torn batch", f"of {len(found)} records from {label}, these offsets are there: {present}"
    if not send.is_acknowledged or send.acks != ALL:
        return
    if not present:
        yield "lost write", f"{label} was acknowledged at {send.offset}"
    elif send.offset is not None and send.offset not in found[0]:
        yield "wrong offset", f"{label} was acknowledged at {send.offset} and is at {found[0]}"


def _order_of_sends(
    history: History, places: Mapping[Partition, dict[bytes, list[int]]]
) -> Iterator[tuple[str, str]]:
    """What one producer sent later stands later: always if idempotent, else if the first was confirmed."""
    last: dict[tuple[str, Partition], tuple[Send, int]] = {}
    for send in history.sends:
        offsets = places.get(send.partition, {}).get(send.values[0])
        if not offsets:
            continue
        key = send.producer, send.partition
        if key in last:
            earlier, offset = last[key]
            was_known = earlier.ended is not None and earlier.ended < send.begun
            if offset > offsets[0] and (send.is_idempotent or was_known):
                first, second = shown(earlier.values[0]), shown(send.values[0])
                where = f"{first} is at {offset} and {second} at {offsets[0]} of {name_of(send.partition)}"
                yield "non-monotonic send", where
        if send.is_idempotent or send.is_acknowledged:
            last[key] = send, offsets[0]


def never_sent(history: History) -> Iterator[tuple[str, str]]:
    sent = {(send.partition, value) for send in history.sends for value in send.values}
    for partition, log in sorted(history.logs.items()):
        for offset, value in log:
            if (partition, value) not in sent:
                yield "never sent", f"{shown(value)} at {offset} of {name_of(partition)}"


def _polls(history: History) -> Iterator[tuple[str, str]]:
    logs = {partition: dict(log) for partition, log in history.logs.items()}
    positions: dict[tuple[str, Partition], int] = {}
    watermarks: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        key = poll.consumer, poll.partition
        who = f"{poll.consumer} of {name_of(poll.partition)}"
        if poll.high_watermark < watermarks.get(key, 0):
            yield "high watermark fell", f"{who} saw {watermarks[key]}, then {poll.high_watermark}"
        watermarks[key] = poll.high_watermark
        if poll.partition in logs:
            yield from _one_poll(poll, who, logs[poll.partition], positions.get(key, poll.position))
        if poll.records:
            positions[key] = poll.records[-1][0] + 1


def _one_poll(poll: Poll, who: str, log: Mapping[int, bytes], expected: int) -> Iterator[tuple[str, str]]:
    for offset, value in poll.records:
        if offset < expected:
            yield "non-monotonic poll", f"{who} read {offset} where {expected} was next"
        elif offset > expected:
            yield "poll skip", f"{who} read {offset} where {expected} was next"
        expected = offset + 1
        if offset >= poll.high_watermark:
            yield "read above the high watermark", f"{who} read {offset} below {poll.high_watermark}"
        if offset not in log:
            yield "vanished", f"{who} read {shown(value)} at {offset}, where nothing is in the end"
        elif log[offset] != value:
            yield (
                "inconsistent offsets",
                f"{who} read {shown(value)} at {offset}, where {shown(log[offset])} is in the end",
            )


def topic_changes(history: History) -> Iterator[tuple[str, str]]:
    if history.topics is None:
        return
    last: dict[str, list[tuple[bool, bool]]] = {}
    for change in history.topic_changes:
        states = last.setdefault(change.topic, [])
        if change.is_acknowledged:
            states.clear()
        states.append((change.is_creation, change.is_acknowledged))
    for topic, states in sorted(last.items()):
        is_there = topic in history.topics
        # An unconfirmed change leaves both outcomes open.
        if len(states) == 1 and states[0][1] and states[0][0] != is_there:
            yield ("lost topic" if states[0][0] else "deleted topic is back"), topic


def name_of(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def shown(value: bytes) -> str:
    return repr(value[:40])
