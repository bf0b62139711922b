"""Notices about records between the last stable offset and the high watermark."""

from moldau.cli.console import pluralize, print_notice
from moldau.client.admin.group_offsets import EndOffsets


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
