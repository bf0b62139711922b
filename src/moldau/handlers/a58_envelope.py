"""Envelope: a client's request that another node forwards to this one as the active controller. Between nodes only.

The request inside is never forwarded again: if this node is not (or no longer) the active controller, the envelope gets
NOT_CONTROLLER and nothing was done. Kafka's only version is 0; a tagged field of our own adds the metadata offset, so
that the other node can respond after it has applied the change too.
"""

import asyncio

from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.forwarding import contains_not_controller, unpack_address
from moldau.server.registry import REGISTRY, handles
from moldau.server.session import ClientConnection, Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, decoder, encoder, has_flexible_header
from moldau.wire.frames import read_request_header, skip_tagged_fields
from moldau.wire.messages import EnvelopeRequest, EnvelopeResponse

PARTLY_FORWARDED = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
"""A node handles its own resources of these requests and forwards the others."""


@handles(ApiKey.ENVELOPE, versions=(0, 0), inter_broker=True)
async def envelope(request: EnvelopeRequest, session: Session, broker: Broker) -> EnvelopeResponse:
    data = request.request_data
    try:
        header = read_request_header(data)
        api = REGISTRY.get(header.api_key)  # type: ignore[call-overload]
        if api is None or not (api.forwarded or header.api_key in PARTLY_FORWARDED):
            return _error_response(ErrorCode.invalid_request)
        if not api.min_version <= header.version <= api.max_version:
            return _error_response(ErrorCode.unsupported_version)
        is_flexible = has_flexible_header(header.api_key, header.version)
        start = skip_tagged_fields(data, header.body_start) if is_flexible else header.body_start
        embedded = decoder(header.api_key, header.version, "request")(data[start:])
    except DecodeError:
        return _error_response(ErrorCode.invalid_request)
    if not broker.controller.is_active:
        return _error_response(ErrorCode.not_controller)
    # Makes this a task, which handlers that wait for the quorum need.
    await asyncio.sleep(0)
    host = unpack_address(bytes(request.client_host_address))
    client = ClientConnection(f"{host}:0", session.connection.listener)
    response = await api.handler(
        embedded, Session(client, header.version, header.client_id, is_forwarded=True), broker
    )
    if contains_not_controller(response):
        return _error_response(ErrorCode.not_controller)
    frame = bytearray(header.correlation_id.to_bytes(4, "big", signed=True))
    if is_flexible:
        frame.append(0)
    encoder(header.api_key, header.version, "response")(frame, response)
    return {"response_data": frame, "metadata_offset": broker.metadata.image.offset}


def _error_response(code: ErrorCode) -> EnvelopeResponse:
    return {"error_code": code}
