"""New partitions are answered for when all their replicas are ready, or with what is not ready and why."""

from collections.abc import Iterable, Mapping

from moldau.errors import MoldauError, NotControllerError, RequestTimedOutError
from moldau.server.broker import Broker

RESPONSE_MARGIN_MS_MAX = 1_000
"""At most so much of a caller's time is kept for the answer to reach it: one that comes too late says nothing."""


def replicas_ready_deadline_ms(broker: Broker, timeout_ms: int) -> int:
    """Until when is waited for a caller that has come just now."""
    return broker.platform.clock.monotonic_ms() + timeout_ms - min(timeout_ms // 10, RESPONSE_MARGIN_MS_MAX)


async def wait_replicas_ready(
    broker: Broker,
    topics: Iterable[str],
    deadline_ms: int,
    *,
    first_partition: Mapping[str, int] | None = None,
) -> dict[str, MoldauError]:
    """What is to be said of topics that are not ready at the deadline. They stay, and may become ready yet."""
    wanted = list(topics)
    try:
        unready = await broker.controller.wait_replicas_ready(
            wanted, deadline_ms, first_partition=first_partition
        )
    except NotControllerError:
        # It is done all the same, so the caller must not be sent to do it again.
        moved = RequestTimedOutError(
            "The change is made, but the controller moved before all replicas had said that they are ready."
        )
        return dict.fromkeys(wanted, moved)
    return {
        name: RequestTimedOutError(
            f"The change is made, but not all replicas are ready: {'; '.join(complaints)}."
        )
        for name, complaints in unready.items()
    }
