"""Envelope: contains a client's request that another node forwards to the active controller. Only nodes send it.

The request in the envelope is never forwarded again. If this node is not the active controller, the response is
NOT_CONTROLLER and the request has no effect. The response has a tagged field that Kafka does not have: the metadata
offset of the controller. The forwarding node responds to the client when it has applied this offset.

Envelopes are pipelined: two envelopes in flight contain requests of different client connections, because a client's
connection has at most one forwarded request in flight. So they have no order.
"""

import asyncio

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.forwarding import execute_forwarded
from moldau.wire.kio import ErrorCode
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse


@handles(versions=(0, 0), error_response=top_level_error, inter_broker=True, pipelined=True)
async def envelope(request: EnvelopeRequest, session: RequestContext, broker: Broker) -> EnvelopeResponse:
    if not broker.quorum.is_leader:
        return {"error_code": ErrorCode.not_controller}
    # A request has no task before its first suspension. Handlers that wait for the quorum need a task, so suspend here.
    await asyncio.sleep(0)
    response = await execute_forwarded(request.request_data, bytes(request.client_host_address), broker)
    return {"response_data": response, "metadata_offset": broker.metadata.image.offset}
