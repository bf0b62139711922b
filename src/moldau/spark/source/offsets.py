"""Offsets in options and checkpoints (JSON by topic and partition), and the start or end of a read. No I/O."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition
from moldau.spark.errors import OptionError

GROUP_KEY, TOPIC_IDS_KEY, PUBLISHED_GROUP_KEY = "@group", "@ids", "@published"
"""Additional keys in a stream's offset JSON. They are not valid topic names."""

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class EarliestOrLatest:
    """The earliest or the latest offset of every partition."""

    offset: int
    """EARLIEST or LATEST."""


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """The first record at or after this time, in every partition."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class SpecificTimestamps:
    times_ms: Mapping[TopicPartition, int]


OffsetRangeLimit = EarliestOrLatest | SpecificOffsets | GlobalTimestamp | SpecificTimestamps


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a stream in its checkpoint: offsets, topic ids and the generated consumer group."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The id of each topic, by name. A recreated topic has another id. Empty if the brokers assign no ids."""
    group: str | None = None
    """The consumer group generated for the query; None if an option names the group."""
    published_group: str | None = None
    """The consumer group that shows the progress, for the sink; None if offsets are not published."""

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON document with sorted keys, because Spark compares positions as text."""
        document: dict[str, Any] = {} if self.group is None else {GROUP_KEY: self.group}
        if self.topic_ids:
            document[TOPIC_IDS_KEY] = dict(sorted(self.topic_ids.items()))
        if self.published_group is not None:
            document[PUBLISHED_GROUP_KEY] = self.published_group
        for partition, offset in sorted(self.offsets.items()):
            document.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return document

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> "StreamPosition":
        offsets = {
            TopicPartition(topic, int(index)): int(offset)
            for topic, partitions in document.items()
            if topic not in (GROUP_KEY, TOPIC_IDS_KEY, PUBLISHED_GROUP_KEY)
            for index, offset in partitions.items()
        }
        ids, group = document.get(TOPIC_IDS_KEY, {}), document.get(GROUP_KEY)
        return StreamPosition(offsets, ids, group, document.get(PUBLISHED_GROUP_KEY))

    @staticmethod
    def is_document(found: object) -> TypeGuard[Mapping[str, Any]]:
        """Returns whether JSON is a position that names its consumer group. Other sources have other formats."""
        return isinstance(found, dict) and PUBLISHED_GROUP_KEY in found

    def without_recreated(self, later: "StreamPosition") -> Offsets:
        """Returns the offsets of topics that were not recreated between this position and `later`."""
        recreated_topics = self.recreated_topics(later)
        return {
            partition: offset for partition, offset in self.offsets.items() if partition.topic not in recreated_topics
        }

    def recreated_topics(self, later: "StreamPosition") -> list[str]:
        return [topic for topic, id_ in self.topic_ids.items() if later.topic_ids.get(topic, id_) != id_]

    def is_same_topic(self, topic: str, later: "StreamPosition") -> bool:
        """Returns whether the topic has the same known id in both positions."""
        return topic in self.topic_ids and self.topic_ids[topic] == later.topic_ids.get(topic)

    def resume_offsets(self, later: "StreamPosition") -> Offsets:
        """Returns the offsets from which a stream reads up to the position `later`.

        A truncated log may end before this position. It is read from its end if the topic id is known to be the same.
        Partitions that are not in the result, such as those of recreated topics, are read from their earliest offset.
        """
        return {
            partition: min(offset, later.offsets[partition])
            for partition, offset in self.without_recreated(later).items()
            if partition in later.offsets
            and (offset <= later.offsets[partition] or self.is_same_topic(partition.topic, later))
        }


def parse_offset_limit(option: str, text: str, *, illegal: int | None = None) -> EarliestOrLatest | SpecificOffsets:
    """Parses `earliest`, `latest` or JSON of offsets. Refuses `illegal`, which is EARLIEST, LATEST or None."""
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if word is not None:
        _reject_illegal_offset(option, word, illegal)
        return EarliestOrLatest(word)
    offsets = parse_by_partition(option, text, "an offset, -2 for the earliest or -1 for the latest")
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option}: {offset} is not an offset of {partition}; use -2 for the earliest and -1 for the latest"
            )
        _reject_illegal_offset(f"{option} of {partition}", offset, illegal)
    return SpecificOffsets(offsets)


def _reject_illegal_offset(option: str, offset: int, illegal: int | None) -> None:
    if offset == illegal:
        text = "latest (-1) in a batch query" if offset == LATEST else "earliest (-2)"
        raise OptionError(f"{option} cannot be {text}: there would be nothing to read")


def parse_times(option: str, text: str) -> SpecificTimestamps:
    times_ms = parse_by_partition(option, text, "a time in milliseconds since 1970")
    for partition, time_ms in times_ms.items():
        check_time(f"{option} of {partition}", time_ms)
    return SpecificTimestamps(times_ms)


def check_time(option: str, time_ms: int) -> int:
    if time_ms < 0:
        raise OptionError(f"{option} must be a time in milliseconds since 1970, not {time_ms}")
    return time_ms


def parse_by_partition(option: str, text: str, meaning: str) -> Offsets:
    """Parses JSON such as `{"orders": {"0": 23, "1": -2}}`. `meaning` describes the numbers in error messages."""
    example = f'{option} is JSON like {{"orders": {{"0": 23, "1": 42}}}} with {meaning} for each partition'
    found: Offsets = {}
    for topic, partitions in _parse_object(text, example).items():
        if not isinstance(partitions, dict) or not partitions:
            raise OptionError(f"{example}; {topic!r} has {json.dumps(partitions)}")
        for index, number in partitions.items():
            if not index.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(f"{example}; {topic!r} has {json.dumps({index: number})}")
            found[TopicPartition(topic, int(index))] = number
    if not found:
        raise OptionError(f"{example}; it names no partition")
    return found


def parse_assignment(text: str) -> list[TopicPartition]:
    """Parses JSON such as `{"orders": [0, 1]}`."""
    example = 'assign is JSON like {"orders": [0, 1], "payments": [2]}'
    found: list[TopicPartition] = []
    for topic, indexes in _parse_object(text, example).items():
        if not isinstance(indexes, list) or not all(type(each) is int and each >= 0 for each in indexes):
            raise OptionError(f"{example}; {topic!r} has {json.dumps(indexes)}")
        found += [TopicPartition(topic, index) for index in indexes]
    if not found:
        raise OptionError(f"{example}; it names no partition")
    return sorted(dict.fromkeys(found))


def _parse_object(text: str, example: str) -> dict[str, Any]:
    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise OptionError(f"{example}; {repeated!r} is duplicated")
        return found

    try:
        found = json.loads(text, object_pairs_hook=without_repetition)
    except ValueError as error:
        raise OptionError(f"{example}; {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{example}, not {text}")
    return found


def check_order(start: OffsetRangeLimit, end: OffsetRangeLimit) -> None:
    """Checks that starting and ending offsets name the same partitions and are in order."""
    match start, end:
        case (SpecificOffsets(starts), SpecificOffsets(ends)) | (SpecificTimestamps(starts), SpecificTimestamps(ends)):
            pass
        case _:
            return
    if starts.keys() != ends.keys():
        only = sorted(starts.keys() ^ ends.keys())
        raise OptionError(
            f"starting and ending offsets must name the same partitions; only one of them has {format_partitions(only)}"
        )
    for partition, first in starts.items():
        if 0 <= ends[partition] < first:
            raise OptionError(
                f"{partition} would be read from {first} to {ends[partition]}: the end is before the start"
            )


def check_complete(option: str, by_partition: Mapping[TopicPartition, int], actual: list[TopicPartition]) -> None:
    """Checks that an option names exactly the partitions that are read."""
    missing = [each for each in actual if each not in by_partition]
    if missing:
        raise OptionError(
            f"{option} must name every partition that is read; {format_partitions(missing)} is "
            f"missing{' (-2 is the earliest, -1 the latest)' if option.endswith('Offsets') else ''}"
        )
    wrong = sorted(by_partition.keys() - set(actual))
    if wrong:
        raise OptionError(f"{option} names {format_partitions(wrong)}, which is not among the partitions that are read")


def format_partitions(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
