"""Requests of the HTTP API to the handlers of Kafka's APIs on this node, without a connection.

HTTP and Kafka clients use the same handlers, so that both see the same records, errors and limits.
"""

from collections.abc import Mapping
from typing import Any

from moldau.http.context import HttpContext
from moldau.server.api import REGISTRY, ClientConnection, EncodedResponse, RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.client_ids import HTTP_CLIENT_ID
from moldau.wire.codec import Message, decoder, encoder


async def execute(
    context: HttpContext, api_key: ApiKey, version: int, tree: Mapping[str, Any], peer: str = ""
) -> Mapping[str, Any]:
    """Executes a request on this node and returns the response of the handler.

    `tree` has the fields of the request. APIs that are forwarded to the controller use `send_to_controller` instead.
    """
    api = REGISTRY[api_key]
    assert not api.forwarded, f"{api_key.name} is a request to the controller"
    encoded = bytearray()
    encoder(api_key, version, "request")(encoded, tree)
    request = decoder(api_key, version, "request")(memoryview(encoded))
    connection = ClientConnection(peer, context.broker.settings.broker.inter_broker_listener)
    try:
        response = await api.handler(request, RequestContext(connection, version, HTTP_CLIENT_ID), context.broker)
    finally:
        connection.close_callbacks.close()
    assert not isinstance(response, EncodedResponse), f"the response of {api_key.name} is only for the wire"
    return {} if response is None else response


async def send_to_controller(
    context: HttpContext, api_key: ApiKey, version: int, tree: Mapping[str, Any], timeout_ms: int = 30_000
) -> Message:
    """Sends a request to the active controller, on this or another node, and returns its response."""
    return await context.broker.controller_channel.send(api_key, version, tree, timeout_ms)
