"""Envelope: a client's request that another node hands on to this one as the active controller.

Between nodes only. What is in it is never handed on again: where this node does not decide (any more) the envelope
says NOT_CONTROLLER, and nothing was done. Kafka's only version is 0; the answer also says, in a tagged field of our
own, how far the metadata is, so that the other node can show its client what was changed.
"""

import asyncio
from typing import Any

from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.forwarding import contains_not_controller, unpack_address
from moldau.server.registry import REGISTRY, handles
from moldau.server.session import ClientConnection, Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import read_request_header, skip_tagged_fields

PARTLY_FORWARDED = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
"""A node takes what concerns itself out of these, and hands on the rest."""


@handles(ApiKey.ENVELOPE, versions=(0, 0), inter_broker=True)
async def envelope(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    data = memoryview(request.request_data)
    try:
        header = read_request_header(data)
        served = REGISTRY.get(header.api_key)  # type: ignore[call-overload]
        if served is None or not (served.forwarded or header.api_key in PARTLY_FORWARDED):
            return _error_response(ErrorCode.invalid_request)
        if not served.min_version <= header.version <= served.max_version:
            return _error_response(ErrorCode.unsupported_version)
        is_flexible = has_flexible_header(header.api_key, header.version)
        start = skip_tagged_fields(data, header.body_start) if is_flexible else header.body_start
        embedded = decoder(header.api_key, header.version, "request")(data[start:])
    except DecodeError:
        return _error_response(ErrorCode.invalid_request)
    if not broker.controller.is_active:
        return _error_response(ErrorCode.not_controller)
    # From here on there is a task, which handlers that wait for the quorum need.
    await asyncio.sleep(0)
    host = unpack_address(bytes(request.client_host_address))
    client = ClientConnection(f"{host}:0", session.connection.listener)
    tree = await served.handler(
        embedded, Session(client, header.version, header.client_id, is_forwarded=True), broker
    )
    if contains_not_controller(tree):
        return _error_response(ErrorCode.not_controller)
    response = bytearray(header.correlation_id.to_bytes(4, "big", signed=True))
    if is_flexible:
        response.append(0)
    encoder(header.api_key, header.version, "response")(response, tree)
    return {
        "response_data": response,
        "error_code": int(ErrorCode.none),
        "metadata_offset": broker.metadata.image.offset,
    }


def _error_response(code: ErrorCode) -> dict[str, Any]:
    return {"response_data": None, "error_code": int(code)}
