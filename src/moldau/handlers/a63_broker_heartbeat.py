"""BrokerHeartbeat: a broker says that it is alive, how far it is with the metadata, and what it wants.

- Our own tagged field `not_ready` names replicas whose logs it could not open, `not_writable` those that refuse what is
  new for the moment, and `confirmed_age_ms` in the answer says how sure the controller is that it is one: the broker's
  lease counts from then.
- The connection matters too: when it closes, the controller looks at once whether the broker's process is gone,
  instead of waiting until its session has run out.
"""

from typing import Any

from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, OfflineReplica
from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import ClientConnection, Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

_REJECTED = BrokerHeartbeatReply(is_caught_up=False, is_fenced=True, should_shut_down=False)


@handles(ApiKey.BROKER_HEARTBEAT, versions=(0, 1), inter_broker=True)
async def broker_heartbeat(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    reply, refusal = _REJECTED, None
    try:
        reply = await broker.controller.heartbeat(_heartbeat(request))
        _watch_connection(session.connection, (request.broker_id, request.broker_epoch), broker)
    except MoldauError as error:
        refusal = error
    return {
        "throttle_time": 0,
        "error_code": error_code(refusal),
        "is_caught_up": reply.is_caught_up,
        "is_fenced": reply.is_fenced,
        "should_shut_down": reply.should_shut_down,
        "confirmed_age_ms": reply.confirmed_age_ms,
    }


def _heartbeat(request: Message) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        metadata_offset=request.current_metadata_offset,
        want_fence=request.want_fence,
        want_shut_down=request.want_shut_down,
        not_ready=[
            OfflineReplica(
                each.topic_id, each.partition_index, request.broker_id, each.reason, is_transient=is_transient
            )
            for replicas, is_transient in ((request.not_ready, False), (request.not_writable, True))
            for each in replicas
        ],
    )


def _watch_connection(connection: ClientConnection, incarnation: tuple[int, int], broker: Broker) -> None:
    """`incarnation` is a broker and its epoch. One connection may see several, but few."""
    if connection.broker_incarnation != incarnation:
        connection.broker_incarnation = incarnation
        connection.closed.add(lambda: broker.controller.broker_connection_closed(*incarnation))
