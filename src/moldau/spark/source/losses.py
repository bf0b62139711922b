"""Records that a query was to read and that are gone: an error or, with failOnDataLoss=false, a warning."""

from typing import NamedTuple

from moldau.observe.logging import get_logger
from moldau.spark.errors import DataLossError
from moldau.spark.source.offsets import Position, listed
from moldau.spark.source.options import Subscription

_log = get_logger("spark.source")


def report_loss(what: str, *, fails: bool, instead: str) -> None:
    """`what` tells of it; `instead` is what the query does where it does not fail."""
    if fails:
        raise DataLossError(
            f"{what}: records may have been lost. With failOnDataLoss set to false the query {instead}"
        )
    _log.warning(f"{what}: records may have been lost; failOnDataLoss is false, so the query {instead}")


class Loss(NamedTuple):
    what: str
    instead: str


def losses(start: Position, now: Position, subscription: Subscription) -> list[Loss]:
    """What was read up to `start` and is not what it was: topics deleted, made anew, cut, or not asked for any more."""
    found = [
        Loss(
            f"the topic {topic!r} was deleted and made anew since it was read", "reads it from its beginning"
        )
        for topic in start.renewed(now)
    ]
    known = start.without_renewed(now)
    missing = sorted(partition for partition in known if partition not in now.offsets)
    dropped = [partition for partition in missing if not subscription.has(partition)]
    if dropped:
        found.append(
            Loss(
                f"{listed(dropped)} was read before, and {subscription.option} does not name it any more. Name it "
                "again, or begin anew with another checkpoint",
                "goes on without it",
            )
        )
    gone = [partition for partition in missing if subscription.has(partition)]
    if gone:
        found.append(Loss(f"{listed(gone)} was read before and is not there any more", "reads the others"))
    found += [
        Loss(
            f"{partition} was read up to offset {known[partition]}, and its log ends at {end} now",
            f"goes on at {end}" if start.is_same(partition.topic, now) else "reads it from its beginning",
        )
        for partition, end in now.offsets.items()
        if end < known.get(partition, 0)
    ]
    return found
