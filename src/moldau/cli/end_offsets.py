"""End offsets of partitions at both isolation levels, and the records between them."""

from collections.abc import Iterable
from typing import NamedTuple

from moldau.cli.console import pluralize, print_notice
from moldau.client.admin.admin import Admin
from moldau.client.consumer.offset_lookup import LATEST
from moldau.client.record import TopicPartition

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class EndOffsets(NamedTuple):
    """By partition. Partitions without a known end are left out."""

    high_watermarks: dict[TopicPartition, int]
    last_stable_offsets: dict[TopicPartition, int]
    """Consumers with read_committed read up to here."""

    @property
    def waiting(self) -> dict[TopicPartition, int]:
        """The number of offsets between last stable offset and high watermark, of partitions that have any."""
        return {
            partition: high_watermark - self.last_stable_offsets[partition]
            for partition, high_watermark in self.high_watermarks.items()
            if self.last_stable_offsets.get(partition, high_watermark) < high_watermark
        }


async def list_end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> EndOffsets:
    times = dict.fromkeys(partitions, LATEST)
    if not times:
        return EndOffsets({}, {})
    # In this order, records that are written meanwhile do not look as if they waited for a transaction.
    ends = await admin.list_offsets(times, isolation_level=READ_UNCOMMITTED)
    stable = await admin.list_offsets(times, isolation_level=READ_COMMITTED)
    return EndOffsets(
        {each: found.offset for each, found in ends.items()}, {each: found.offset for each, found in stable.items()}
    )


def print_waiting_records(ends: EndOffsets) -> None:
    """Prints how many records wait for a transaction, and how to find the transaction."""
    by_topic: dict[str, list[int]] = {}
    for partition, count in sorted(ends.waiting.items()):
        by_topic.setdefault(partition.topic, []).append(count)
    for topic, counts in by_topic.items():
        print_notice(
            f"{topic}: {pluralize(sum(counts), 'record')} in {pluralize(len(counts), 'partition')} behind open "
            "transactions, which consumers with read_committed do not get yet. Run `moldau transaction hanging "
            f"--topic {topic}` to see who it is."
        )
