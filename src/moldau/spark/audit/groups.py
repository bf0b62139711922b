"""Groups of rows that an audit compares. No I/O."""

from typing import NamedTuple

from moldau.client.record import TopicPartition

BATCH, RECORD, STOP, START = "batch", "record", "stop", "start"
"""The kinds of rows. STOP has the offset from which a replica cannot be read, with the reason in `problem`. START has
the start of a log that starts later than planned."""


class ReplicaValue(NamedTuple):
    """What one replica has: a batch, or the latest record of a key."""

    rank: int
    replica: int
    offset: int
    digest: str | None
    problem: str | None


class Group(NamedTuple):
    """Sets of rows with the same signature. Offset, key and values are those of the set with the lowest offset."""

    partition: TopicPartition
    kind: str
    offset: int
    key: bytes | None
    values: tuple[ReplicaValue, ...]
    """By rank."""
    set_count: int
    size: int
    """The size of all batches in the sets of rows, in bytes. Equal batches count once."""
    is_equal: bool
    """Whether all replicas have the row, without a problem and with the same digest."""
