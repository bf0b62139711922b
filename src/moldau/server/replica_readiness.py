"""Functions with which CreateTopics and CreatePartitions wait until the replicas of new partitions are ready."""

from collections.abc import Iterable, Mapping

from moldau.errors import MoldauError, NotControllerError, StorageError
from moldau.observe.logging import get_logger
from moldau.server.api import Broker

log = get_logger("controller")

READY_WAIT_MS_MAX = 1_000
"""Maximum wait. It is short, because the change is already committed, and a broker that hangs stays unfenced until its
session expires. Clients retry requests to replicas that are not ready."""
RESPONSE_MARGIN_MS_MAX = 1_000
"""Maximum time by which the wait ends before the client's timeout, so that the response arrives in time."""


def replicas_ready_deadline_ms(broker: Broker, timeout_ms: int) -> int:
    return broker.platform.clock.monotonic_ms() + timeout_ms - min(timeout_ms // 10, RESPONSE_MARGIN_MS_MAX)


async def wait_replicas_ready(
    broker: Broker, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
) -> dict[str, MoldauError]:
    """Waits until the replicas on live brokers are ready, but not longer than READY_WAIT_MS_MAX.

    Returns an error for each topic with a partition that no live broker could open. Other replicas that are not ready
    are only logged, because the topic can be used without them.
    """
    deadline_ms = min(deadline_ms, broker.platform.clock.monotonic_ms() + READY_WAIT_MS_MAX)
    try:
        unready = await broker.controller.wait_replicas_ready(topics, deadline_ms, first_partition=first_partition)
    except NotControllerError:
        # Return no error, because the change is committed and the client must not send it again.
        return {}
    errors: dict[str, MoldauError] = {}
    for name, replicas in unready.items():
        reasons = "; ".join(replicas.reasons)
        log.warning("replicas of new partitions are not ready", topic=name, reasons=reasons)
        if replicas.is_offline:
            errors[name] = StorageError(f"The change is committed, but no replica could be opened: {reasons}.")
    return errors
