"""BrokerHeartbeat: a broker reports to the active controller how far it has applied the metadata.

Only nodes send this request. Moldau adds three tagged fields that Kafka does not have:

- `not_ready` lists replicas whose logs could not be opened.
- `not_writable` lists replicas that temporarily reject appends.
- `confirmed_age_ms` in the response is the time since the quorum last confirmed the controller. The broker's lease
  starts at this confirmation.

When the connection closes, the controller immediately checks whether the broker's process still runs. So the controller
does not have to wait for the session timeout.
"""

from functools import partial

from moldau.controller.requests import BrokerHeartbeat, OfflineReplica
from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse


@handles(versions=(0, 1), inter_broker=True)
async def broker_heartbeat(
    request: BrokerHeartbeatRequest, session: RequestContext, broker: Broker
) -> BrokerHeartbeatResponse:
    try:
        reply = await broker.controller.heartbeat(_heartbeat(request))
        connection, incarnation = session.connection, (request.broker_id, request.broker_epoch)
        if connection.broker_incarnation != incarnation:
            connection.broker_incarnation = incarnation
            connection.close_callbacks.add(partial(_on_disconnect, broker, *incarnation))
    except MoldauError as error:
        return {"error_code": error_code(error), "is_fenced": True, "should_shut_down": False}
    return {
        "is_caught_up": reply.is_caught_up,
        "is_fenced": reply.is_fenced,
        "should_shut_down": reply.should_shut_down,
        "confirmed_age_ms": reply.confirmed_age_ms,
    }


def _on_disconnect(broker: Broker, broker_id: int, broker_epoch: int) -> None:
    broker.availability.on_disconnect(broker_id)
    broker.controller.broker_connection_closed(broker_id, broker_epoch)


def _heartbeat(request: BrokerHeartbeatRequest) -> BrokerHeartbeat:
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
            if each.topic_id is not None
        ],
    )
