"""Detection of lost records. A loss is an error, or a warning if failOnDataLoss is false."""

from typing import NamedTuple

from moldau.observe.logging import get_logger
from moldau.spark.errors import DataLossError
from moldau.spark.source.offsets import StreamPosition, format_partitions
from moldau.spark.source.options import SourceOptions, TopicSubscription

_log = get_logger("spark.source")


def report_data_loss(options: SourceOptions, what: str, action: str) -> None:
    """Raises DataLossError or, if failOnDataLoss is false, logs a warning with the `action` that the query takes."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}: records may have been lost. With failOnDataLoss set to false the query {action}")
    _log.warning(f"{what}: records may have been lost; failOnDataLoss is false, so the query {action}")


class DataLoss(NamedTuple):
    what: str
    action: str


def find_data_loss(start: StreamPosition, now: StreamPosition, subscription: TopicSubscription) -> list[DataLoss]:
    """Returns the topics that were deleted, recreated, truncated or unsubscribed since the position `start`."""
    found = [
        DataLoss(f"the topic {topic!r} was deleted and recreated since it was read", "reads it from its beginning")
        for topic in start.recreated_topics(now)
    ]
    known = start.without_recreated(now)
    missing = sorted(partition for partition in known if partition not in now.offsets)
    dropped = [partition for partition in missing if not subscription.has(partition)]
    if dropped:
        what = (
            f"{format_partitions(dropped)} was read before, but {subscription.option} no "
            "longer names it. Name it again, or start over with another checkpoint"
        )
        found.append(DataLoss(what, "continues without it"))
    deleted = [partition for partition in missing if subscription.has(partition)]
    if deleted:
        found.append(DataLoss(f"{format_partitions(deleted)} was read before and no longer exists", "reads the others"))
    found += [
        DataLoss(
            f"{partition} was read up to offset {known[partition]}, but its log ends at {end} now",
            f"continues at {end}" if start.is_same_topic(partition.topic, now) else "reads it from its beginning",
        )
        for partition, end in now.offsets.items()
        if end < known.get(partition, 0)
    ]
    return found
