"""Forwarding of requests to the active controller.

A node that is not the active controller sends the client's request unchanged in an Envelope and returns the response
unchanged: version, client id and client address stay the client's own.
"""

import asyncio
import dataclasses
import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from moldau.controller.channel import REQUEST_TIMEOUT_MS_DEFAULT
from moldau.errors import MoldauError, NotControllerError
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.registry import Handler
from moldau.server.session import Session
from moldau.wire.codec import Message

FORWARD_TIMEOUT_MS_MAX = 300_000
"""Upper limit of the timeout of a forwarded request."""


class ForwardedResponse(NamedTuple):
    """Header and body of a response that another node has encoded."""

    data: memoryview


Response = Mapping[str, object] | ForwardedResponse | None


async def forward_to_controller(
    handler: Handler, request: Message, frame: memoryview, session: Session, broker: Broker
) -> Response:
    """Handles the request here if this node is the active controller, otherwise forwards it.

    If no controller could be reached, or its response was lost, the handler builds the API's own error response.
    """
    # Makes this a task, which handlers that wait for the quorum need.
    await asyncio.sleep(0)
    timeout_ms = min(request.get("timeout", REQUEST_TIMEOUT_MS_DEFAULT), FORWARD_TIMEOUT_MS_MAX)
    deadline_ms = broker.platform.clock.monotonic_ms() + timeout_ms

    async def local() -> Response:
        response = await handler(request, session, broker)
        if contains_not_controller(response):
            raise NotControllerError("the controller has moved")
        return response

    async def remote(node_id: int) -> Response:
        host = pack_address(session.client_host.removeprefix("/"))
        return ForwardedResponse(await broker.controller_channel.forward(node_id, frame, host, deadline_ms))

    try:
        return await broker.controller_channel.send(local, remote, deadline_ms)
    except MoldauError as error:
        failing: Any = _UnavailableController(error)
        return await handler(
            request,
            session,
            dataclasses.replace(broker, controller=failing, quorum=failing, controller_channel=failing),
        )


class _UnavailableController:
    """Takes the place of an unreachable controller: every access raises the error."""

    def __init__(self, error: MoldauError) -> None:
        object.__setattr__(self, "_error", error)

    def __getattribute__(self, name: str) -> NoReturn:
        raise object.__getattribute__(self, "_error")


def contains_not_controller(response: object) -> bool:
    """Whether any part of a response has the code NOT_CONTROLLER: then nothing was done."""
    if isinstance(response, dict):
        return response.get("error_code") == ErrorCode.not_controller or any(
            contains_not_controller(each) for each in response.values()
        )
    return isinstance(response, list | tuple) and any(contains_not_controller(each) for each in response)


def pack_address(host: str) -> bytes:
    """Encodes an address for the Envelope; empty if it is not an IP address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b""


def unpack_address(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed)) if len(packed) in (4, 16) else ""
