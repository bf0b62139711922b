"""Telling a client that came to the wrong node where to go: who leads a partition now, and at which address."""

from collections.abc import Iterable
from typing import Any

from moldau.errors import FencedLeaderEpochError, MoldauError, NotLeaderOrFollowerError
from moldau.server.broker import Broker


def current_leader(
    broker: Broker, topic: str | None, index: int, error: MoldauError
) -> dict[str, int] | None:
    """For an error that another leader is the answer to; None for all others, and where none is known."""
    if topic is None or not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
        return None
    if isinstance(error, NotLeaderOrFollowerError) and error.leader_id >= 0:
        return {"leader_id": error.leader_id, "leader_epoch": error.leader_epoch}
    partition = broker.metadata.image.partition(topic, index)
    if partition is None or partition.leader < 0:
        return None
    if partition.leader == broker.broker_id and isinstance(error, NotLeaderOrFollowerError):
        # Its lease has run out: whoever leads next is not known here.
        return None
    return {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}


def node_endpoints(
    broker: Broker, listener: str, leaders: Iterable[dict[str, int] | None]
) -> list[dict[str, Any]]:
    """The addresses of these leaders for clients of a listener."""
    brokers = broker.metadata.image.brokers
    found = []
    for broker_id in sorted({leader["leader_id"] for leader in leaders if leader is not None}):
        image = brokers.get(broker_id)
        for endpoint in () if image is None else image.endpoints:
            if endpoint.listener == listener:
                found.append(
                    {
                        "node_id": broker_id,
                        "host": endpoint.host,
                        "port": endpoint.port,
                        "rack": None if image is None else image.rack,
                    }
                )
    return found
