"""What a consumer reads and where it stands: its subscription, the partitions it has, a position in each. Pure.

A partition's position is looked for when it is first assigned: where the group committed, or else where the reset
policy says. Every seek puts a new entry in the partition's place, so that what was looked up for the old one is
known to be late.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.client.consumer.errors import NoOffsetForPartitionError
from moldau.client.errors import IllegalStateError
from moldau.client.record import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset is the next one to read. The leader epoch is that of the record before it, -1 where it
    is not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets as a user gives them; raises ValueError for what is none."""
    wanted = {}
    for partition, given in offsets.items():
        each = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if each.offset < 0:
            raise ValueError(f"{each.offset} is not an offset of {partition} to commit")
        wanted[TopicPartition(*partition)] = each
    return wanted


class Reset(Enum):
    """Where to begin when nothing says where; the values are ListOffsets' special times."""

    EARLIEST = -2
    LATEST = -1
    NONE = 0


RESETS = {"earliest": Reset.EARLIEST, "latest": Reset.LATEST, "none": Reset.NONE}


class Mode(Enum):
    NOTHING = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    MANUAL = "assigned partitions"


@dataclass(slots=True, eq=False)
class Place:
    """Where one partition is read. Without an offset, one is looked for: by `reset` or, without that, by what was
    committed."""

    offset: int | None = None
    leader_epoch: int = -1
    reset: Reset | None = None
    is_paused: bool = False


class Positions:
    def __init__(self, reset: Reset) -> None:
        self._reset = reset
        self.mode = Mode.NOTHING
        self.topics: tuple[str, ...] = ()
        """What is subscribed to by name, or what fits the pattern as far as is known."""
        self.pattern: re.Pattern[str] | None = None
        self._places: dict[TopicPartition, Place] = {}

    # Subscriptions

    def subscribe(self, topics: Iterable[str]) -> None:
        self._enter(Mode.TOPICS)
        self.topics = tuple(sorted(set(topics)))

    def subscribe_pattern(self, pattern: "re.Pattern[str]") -> None:
        self._enter(Mode.PATTERN)
        self.pattern = pattern

    def assign_manually(self) -> None:
        """Which partitions, `set_assigned` is told."""
        self._enter(Mode.MANUAL)

    def unsubscribe(self) -> None:
        self.mode = Mode.NOTHING
        self.topics = ()
        self.pattern = None
        self._places = {}

    @property
    def is_group_managed(self) -> bool:
        return self.mode in (Mode.TOPICS, Mode.PATTERN)

    def _enter(self, mode: Mode) -> None:
        if self.mode not in (Mode.NOTHING, mode):
            raise IllegalStateError(
                f"the consumer reads {self.mode.value}: unsubscribe before it is given {mode.value}"
            )
        self.mode = mode

    # Partitions

    @property
    def assigned(self) -> list[TopicPartition]:
        return list(self._places)

    def set_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Those that stay keep their position."""
        self._places = {each: self._places.get(each, Place()) for each in sorted(set(partitions))}

    def take_away(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._places.pop(partition, None)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._place(partition).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._place(partition).is_paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [each for each, place in self._places.items() if place.is_paused]

    def has(self, partition: TopicPartition) -> bool:
        return partition in self._places

    def is_paused(self, partition: TopicPartition) -> bool:
        return self._places[partition].is_paused

    # Positions

    def position(self, partition: TopicPartition) -> int | None:
        """None while it is being looked for."""
        return self._place(partition).offset

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What there is to commit: every position that is known."""
        return {
            each: OffsetAndMetadata(place.offset, leader_epoch=place.leader_epoch)
            for each, place in self._places.items()
            if place.offset is not None
        }

    def advance(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        place = self._places[partition]
        place.offset = offset
        if leader_epoch >= 0:
            place.leader_epoch = leader_epoch

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        if offset < 0:
            raise ValueError(f"{partition} has no offset {offset}; the first one is 0")
        is_paused = self._place(partition).is_paused
        self._places[partition] = Place(offset, leader_epoch, is_paused=is_paused)

    def seek_by(self, partition: TopicPartition, reset: Reset) -> None:
        is_paused = self._place(partition).is_paused
        self._places[partition] = Place(reset=reset, is_paused=is_paused)

    def out_of_range(self, partition: TopicPartition) -> None:
        """What is to be read next is not in the log; raises where the policy is not to guess."""
        if self._reset is Reset.NONE:
            position = self._places[partition].offset
            raise NoOffsetForPartitionError([partition], f"the log has no offset {position}")
        self.seek_by(partition, self._reset)

    def cut(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """The log has gone on differently from this offset on: so it is read from there, whatever the policy for
        those who do not know where; raises where the policy is not to guess."""
        if self._reset is Reset.NONE:
            raise NoOffsetForPartitionError([partition], f"the log was cut at offset {offset}")
        self.seek(partition, offset, leader_epoch)

    # Looking positions up

    @property
    def is_incomplete(self) -> bool:
        return any(place.offset is None for place in self._places.values())

    def to_look_up(self) -> dict[TopicPartition, Place]:
        """Those whose committed offset is asked for next."""
        return self._without_offset(lambda place: place.reset is None)

    def to_reset(self) -> dict[TopicPartition, Place]:
        return self._without_offset(lambda place: place.reset is not None)

    def committed(
        self, asked: Mapping[TopicPartition, Place], found: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """What was committed is where to go on; where nothing was, the reset policy says. Raises where it says
        not to guess."""
        without = []
        for partition, place in self._still_there(asked).items():
            committed = found.get(partition)
            if committed is not None:
                place.offset, place.leader_epoch = committed.offset, committed.leader_epoch
            elif self._reset is Reset.NONE:
                without.append(partition)
            else:
                place.reset = self._reset
        if without:
            raise NoOffsetForPartitionError(without, "no offset is committed")

    def reset_to(
        self, asked: Mapping[TopicPartition, Place], found: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        for partition, place in self._still_there(asked).items():
            at = found.get(partition)
            if at is not None:
                place.offset, place.leader_epoch, place.reset = at.offset, at.leader_epoch, None

    def _without_offset(self, fits: Callable[[Place], bool]) -> dict[TopicPartition, Place]:
        return {each: place for each, place in self._places.items() if place.offset is None and fits(place)}

    def _still_there(self, asked: Mapping[TopicPartition, Place]) -> dict[TopicPartition, Place]:
        return {each: place for each, place in asked.items() if self._places.get(each) is place}

    def _place(self, partition: TopicPartition) -> Place:
        try:
            return self._places[partition]
        except KeyError:
            raise IllegalStateError(f"{partition} is not assigned to this consumer") from None
