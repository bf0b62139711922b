"""Functions with which CreateTopics and CreatePartitions wait until the replicas of new partitions are ready."""

from collections.abc import Iterable, Mapping

from moldau.errors import MoldauError, NotControllerError, RequestTimedOutError
from moldau.server.api import Broker

RESPONSE_MARGIN_MS_MAX = 1_000
"""Maximum time by which the wait ends before the client's timeout, so that the response arrives in time."""


def replicas_ready_deadline_ms(broker: Broker, timeout_ms: int) -> int:
    return broker.platform.clock.monotonic_ms() + timeout_ms - min(timeout_ms // 10, RESPONSE_MARGIN_MS_MAX)


async def wait_replicas_ready(
    broker: Broker, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
) -> dict[str, MoldauError]:
    """Returns the errors of topics that are not ready at the deadline. These topics exist and may become ready."""
    names = list(topics)
    try:
        unready = await broker.controller.wait_replicas_ready(names, deadline_ms, first_partition=first_partition)
    except NotControllerError:
        # Do not return NOT_CONTROLLER, because the change is committed and the client must not send it again.
        moved = RequestTimedOutError(
            "The change is committed, but the controller moved before all replicas were reported ready."
        )
        return dict.fromkeys(names, moved)
    return {
        name: RequestTimedOutError(f"The change is committed, but not all replicas are ready: {'; '.join(reasons)}.")
        for name, reasons in unready.items()
    }
