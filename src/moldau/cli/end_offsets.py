"""Notices about end offsets: records behind open transactions, and partitions whose ends are unknown."""

from moldau.cli.console import pluralize, print_notice
from moldau.client.admin.group_offsets import EndOffsets

NAMES_MAX = 10


def print_leaderless_partitions(ends: EndOffsets) -> None:
    """Prints which partitions have no leader, and how to find the node that is down."""
    names = [str(each) for each in sorted(ends.without_leader)]
    if names:
        verb = "has" if len(names) == 1 else "have"
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        print_notice(
            f"{', '.join(names[:NAMES_MAX])}{more} {verb} no leader, so offsets are unknown. Run `moldau cluster "
            "status` to see which node is down."
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
