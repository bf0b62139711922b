"""The consumer's subscription state: the subscription, the assigned partitions and their positions.

The position of a newly assigned partition is the committed offset of the group. Without a committed offset, the reset
strategy decides. Every seek replaces the state object of the partition, so that the result of a lookup for the old
object is discarded.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.client.errors import IllegalStateError, NoOffsetForPartitionError
from moldau.client.record import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record to read, and the leader epoch of the record before it (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def validate_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Converts the offsets that a user commits; raises ValueError for an invalid one."""
    commits = {}
    for partition, given in offsets.items():
        each = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if each.offset < 0:
            raise ValueError(f"{each.offset} is not a valid offset of {partition} to commit")
        commits[TopicPartition(*partition)] = each
    return commits


class OffsetResetStrategy(Enum):
    """Where to start without a position. EARLIEST and LATEST have the special timestamps of ListOffsets as values."""

    EARLIEST = -2
    LATEST = -1
    NONE = 0


RESET_STRATEGIES = {each.name.lower(): each for each in OffsetResetStrategy}


class SubscriptionType(Enum):
    NONE = "nothing"
    AUTO_TOPICS = "topics"
    AUTO_PATTERN = "a pattern"
    USER_ASSIGNED = "assigned partitions"


@dataclass(slots=True, eq=False)
class TopicPartitionState:
    """The position of one partition. If `offset` is None, it must be looked up.

    The lookup uses the strategy `reset` if it is set, else the committed offset, else `default_offset`.
    """

    offset: int | None = None
    leader_epoch: int = -1
    reset: OffsetResetStrategy | None = None
    is_paused: bool = False
    default_offset: int | None = None
    """The position if no offset is committed; None for that of the reset strategy."""


class SubscriptionState:
    def __init__(self, reset: OffsetResetStrategy) -> None:
        self._reset_strategy = reset
        self.subscription_type = SubscriptionType.NONE
        self.topics: tuple[str, ...] = ()
        """The topics subscribed to by name, or the known topics that match the pattern."""
        self.pattern: re.Pattern[str] | None = None
        self._partitions: dict[TopicPartition, TopicPartitionState] = {}

    # Subscriptions

    def subscribe(self, topics: Iterable[str]) -> None:
        self.set_subscription_type(SubscriptionType.AUTO_TOPICS)
        self.topics = tuple(sorted(set(topics)))

    def subscribe_pattern(self, pattern: "re.Pattern[str]") -> None:
        self.set_subscription_type(SubscriptionType.AUTO_PATTERN)
        self.pattern = pattern

    def unsubscribe(self) -> None:
        self.subscription_type = SubscriptionType.NONE
        self.topics = ()
        self.pattern = None
        self._partitions = {}

    @property
    def is_auto_assigned(self) -> bool:
        return self.subscription_type in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)

    def set_subscription_type(self, subscription_type: SubscriptionType) -> None:
        if self.subscription_type not in (SubscriptionType.NONE, subscription_type):
            raise IllegalStateError(
                f"the consumer reads {self.subscription_type.value}: unsubscribe before switching to "
                f"{subscription_type.value}"
            )
        self.subscription_type = subscription_type

    # Partitions

    @property
    def assigned(self) -> list[TopicPartition]:
        return list(self._partitions)

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Sets the assigned partitions. Partitions that were assigned before keep their position."""
        self._partitions = {each: self._partitions.get(each, TopicPartitionState()) for each in sorted(set(partitions))}

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._partition_state(partition).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._partition_state(partition).is_paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [each for each, state in self._partitions.items() if state.is_paused]

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def is_paused(self, partition: TopicPartition) -> bool:
        return self._partitions[partition].is_paused

    # Positions

    def position(self, partition: TopicPartition) -> int | None:
        """Returns the next offset to read; None while it is looked up."""
        return self._partition_state(partition).offset

    def all_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all known positions as offsets to commit."""
        return {
            each: OffsetAndMetadata(state.offset, leader_epoch=state.leader_epoch)
            for each, state in self._partitions.items()
            if state.offset is not None
        }

    def update_position(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        state = self._partitions[partition]
        state.offset = offset
        if leader_epoch >= 0:
            state.leader_epoch = leader_epoch

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        if offset < 0:
            raise ValueError(f"{partition} has no offset {offset}; offsets start at 0")
        is_paused = self._partition_state(partition).is_paused
        self._partitions[partition] = TopicPartitionState(offset, leader_epoch, is_paused=is_paused)

    def request_offset_reset(self, partition: TopicPartition, reset: OffsetResetStrategy) -> None:
        is_paused = self._partition_state(partition).is_paused
        self._partitions[partition] = TopicPartitionState(reset=reset, is_paused=is_paused)

    def request_committed(self, partition: TopicPartition, default_offset: int) -> None:
        """Makes the committed offset the position, or `default_offset` if none is committed."""
        is_paused = self._partition_state(partition).is_paused
        self._partitions[partition] = TopicPartitionState(is_paused=is_paused, default_offset=default_offset)

    def reset_out_of_range(self, partition: TopicPartition) -> None:
        """Resets a position outside the log. Raises NoOffsetForPartitionError if the reset strategy is NONE."""
        if self._reset_strategy is OffsetResetStrategy.NONE:
            position = self._partitions[partition].offset
            raise NoOffsetForPartitionError([partition], f"the log has no offset {position}")
        self.request_offset_reset(partition, self._reset_strategy)

    def reset_to_truncation_offset(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Moves the position to the truncation offset. Raises NoOffsetForPartitionError if the strategy is NONE."""
        if self._reset_strategy is OffsetResetStrategy.NONE:
            raise NoOffsetForPartitionError([partition], f"the log was truncated to offset {offset}")
        self.seek(partition, offset, leader_epoch)

    # Missing positions

    @property
    def has_missing_positions(self) -> bool:
        return any(state.offset is None for state in self._partitions.values())

    def initializing_partitions(self) -> dict[TopicPartition, TopicPartitionState]:
        """Returns the partitions whose committed offset must be fetched."""
        return {each: state for each, state in self._partitions.items() if state.offset is None and state.reset is None}

    def partitions_needing_reset(self) -> dict[TopicPartition, TopicPartitionState]:
        return {
            each: state for each, state in self._partitions.items() if state.offset is None and state.reset is not None
        }

    def apply_committed(
        self, requested: Mapping[TopicPartition, TopicPartitionState], found: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Sets positions to committed offsets, and marks partitions without a committed offset for a reset.

        If the reset strategy is NONE, raises NoOffsetForPartitionError for partitions without a committed offset.
        """
        without = []
        for partition, state in self._still_current(requested).items():
            committed = found.get(partition)
            if committed is not None:
                state.offset, state.leader_epoch = committed.offset, committed.leader_epoch
            elif state.default_offset is not None:
                state.offset = state.default_offset
            elif self._reset_strategy is OffsetResetStrategy.NONE:
                without.append(partition)
            else:
                state.reset = self._reset_strategy
        if without:
            raise NoOffsetForPartitionError(without, "no offset is committed")

    def apply_reset_offsets(
        self, requested: Mapping[TopicPartition, TopicPartitionState], found: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        for partition, state in self._still_current(requested).items():
            at = found.get(partition)
            if at is not None:
                state.offset, state.leader_epoch, state.reset = at.offset, at.leader_epoch, None

    def _still_current(
        self, requested: Mapping[TopicPartition, TopicPartitionState]
    ) -> dict[TopicPartition, TopicPartitionState]:
        return {each: state for each, state in requested.items() if self._partitions.get(each) is state}

    def _partition_state(self, partition: TopicPartition) -> TopicPartitionState:
        try:
            return self._partitions[partition]
        except KeyError:
            raise IllegalStateError(f"{partition} is not assigned to this consumer") from None
