"""Forwarding of requests to the active controller. Any node accepts these requests, and the controller executes them.

If the controller runs on another node, that node receives the unchanged request in an Envelope and returns the complete
response. So the controller sees the API version, client id and address of the client. If the controller runs on this
node, the request is executed here without an Envelope.
"""

import asyncio
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from moldau.controller.channel import REQUEST_TIMEOUT_MS_DEFAULT
from moldau.errors import InvalidRequestError, MoldauError, NotControllerError, UnsupportedVersionError
from moldau.server.api import REGISTRY, Broker, ClientConnection, ErrorResponse, RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import read_request_header, skip_tagged_fields

FORWARD_TIMEOUT_MS_MAX = 300_000
"""The maximum timeout of a forwarded request."""

PARTLY_FORWARDED = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
"""A node applies changes of its own loggers in these requests and forwards the other changes."""


class ForwardedResponse(NamedTuple):
    """An encoded response: header and body, without the frame size."""

    data: memoryview


async def forward_to_controller(
    request: Message, frame: memoryview, session: RequestContext, broker: Broker, error_response: ErrorResponse
) -> Mapping[str, object] | ForwardedResponse:
    """Returns the controller's response, or an error response if the controller did not respond in time."""
    # A request has no task before its first suspension. Handlers that wait for the quorum need a task, so suspend here.
    await asyncio.sleep(0)
    timeout_ms = min(request.get("timeout", REQUEST_TIMEOUT_MS_DEFAULT), FORWARD_TIMEOUT_MS_MAX)
    deadline_ms = broker.platform.clock.monotonic_ms() + timeout_ms
    host = pack_address(session.client_host.removeprefix("/"))
    try:
        return ForwardedResponse(await broker.controller_channel.forward(frame, host, deadline_ms))
    except MoldauError as error:
        return error_response(request, session.api_version, error)


async def execute_forwarded(frame: memoryview, client_host: bytes, broker: Broker) -> bytearray:
    """Executes a forwarded request on this node and returns the response without the frame size.

    The caller must run in a task. Raises NotControllerError if this node is not the active controller. In that case the
    request had no effect.
    """
    try:
        header = read_request_header(frame)
        api = REGISTRY.get(header.api_key)  # type: ignore[call-overload]
        if api is None or not (api.forwarded or header.api_key in PARTLY_FORWARDED):
            raise InvalidRequestError(f"API {header.api_key} is not forwarded to the controller")
        if not api.min_version <= header.version <= api.max_version:
            raise UnsupportedVersionError(f"version {header.version} of API {header.api_key} is not supported")
        is_flexible = has_flexible_header(header.api_key, header.version)
        start = skip_tagged_fields(frame, header.body_start) if is_flexible else header.body_start
        request = decoder(header.api_key, header.version, "request")(frame[start:])
    except DecodeError as error:
        raise InvalidRequestError(f"invalid forwarded request: {error}") from None
    address = ipaddress.ip_address(client_host) if len(client_host) in (4, 16) else ""
    client = ClientConnection(f"{address}:0", broker.settings.broker.inter_broker_listener)
    session = RequestContext(client, header.version, header.client_id, is_forwarded=True)
    try:
        response = await api.handler(request, session, broker)
    except NotControllerError:
        raise
    except MoldauError as error:
        if not api.forwarded:
            raise
        response = api.error_response(request, header.version, error)
    encoded = bytearray(header.correlation_id.to_bytes(4, "big", signed=True))
    if is_flexible:
        encoded.append(0)
    encoder(header.api_key, header.version, "response")(encoded, response)
    return encoded


def pack_address(host: str) -> bytes:
    """Encodes a client address for the Envelope. Returns empty bytes if `host` is not an IP address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b""
