"""Envelope: contains a client's request that another node forwards to the active controller. Only nodes send it.

The request in the envelope is never forwarded again. If this node is not the active controller, the response is
NOT_CONTROLLER and the request has no effect. A tagged field that Kafka does not have contains the metadata offset of
the controller. The forwarding node waits until it has applied this offset, and then responds to the client.
"""

import asyncio

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.forwarding import execute_forwarded
from moldau.wire.kio import ErrorCode
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse


@handles(versions=(0, 0), error_response=top_level_error, inter_broker=True)
async def envelope(request: EnvelopeRequest, session: RequestContext, broker: Broker) -> EnvelopeResponse:
    if not broker.controller.is_active:
        return {"error_code": ErrorCode.not_controller}
    # The first suspension turns this coroutine into a task. Handlers that wait for the quorum need a task.
    await asyncio.sleep(0)
    response = await execute_forwarded(request.request_data, bytes(request.client_host_address), broker)
    return {"response_data": response, "metadata_offset": broker.metadata.image.offset}
