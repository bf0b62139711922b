"""Envelope: a client's request that another node forwards to this one as the active controller. Between nodes only.

The request inside is never forwarded again: if this node is not (or no longer) the active controller, the envelope gets
NOT_CONTROLLER and nothing was done. Kafka's only version is 0; a tagged field of our own adds the metadata offset, so
that the other node can respond after it has applied the change too.
"""

import asyncio

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code
from moldau.server.forwarding import execute_forwarded
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse


@handles(ApiKey.ENVELOPE, versions=(0, 0), inter_broker=True)
async def envelope(request: EnvelopeRequest, session: RequestContext, broker: Broker) -> EnvelopeResponse:
    # Makes this a task, which handlers that wait for the quorum need.
    await asyncio.sleep(0)
    try:
        response = await execute_forwarded(request.request_data, bytes(request.client_host_address), broker)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    return {"response_data": response, "metadata_offset": broker.metadata.image.offset}
