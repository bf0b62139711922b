"""Requests for the active controller: whichever node a client asks, the one in charge answers.

Another node hands the request on as it came, in an Envelope, and gives the answer back as it came: version, client id
and the client's address stay the client's own.
"""

import asyncio
import dataclasses
import ipaddress
from typing import Any, NamedTuple, NoReturn

from moldau.controller.channel import REQUEST_TIMEOUT_MS_DEFAULT
from moldau.errors import MoldauError, NotControllerError
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.registry import Handler
from moldau.server.session import Session
from moldau.wire.codec import Message

FORWARD_TIMEOUT_MS_MAX = 300_000
"""No request is carried for longer, whatever time it gives itself."""


class ForwardedResponse(NamedTuple):
    """An answer that another node has written: its header and its body."""

    data: memoryview


async def forward_to_controller(
    handler: Handler, request: Message, frame: memoryview, session: Session, broker: Broker
) -> Any:
    """The tree of an answer that was found here, or the WholeAnswer of another node. Where no controller could be
    asked, or it is not known what it did, the answer says so in the form that its API has for that."""
    # From here on there is a task, which handlers that wait for the quorum need.
    await asyncio.sleep(0)
    timeout_ms = min(request.get("timeout", REQUEST_TIMEOUT_MS_DEFAULT), FORWARD_TIMEOUT_MS_MAX)
    deadline_ms = broker.platform.clock.monotonic_ms() + timeout_ms

    async def local() -> Any:
        tree = await handler(request, session, broker)
        if contains_not_controller(tree):
            raise NotControllerError("the controller has moved")
        return tree

    async def remote(node_id: int) -> Any:
        host = pack_address(session.client_host.removeprefix("/"))
        return ForwardedResponse(await broker.controller_channel.forward(node_id, frame, host, deadline_ms))

    try:
        return await broker.controller_channel.send(local, remote, deadline_ms)
    except MoldauError as error:
        refusal: Any = _UnavailableController(error)
        return await handler(
            request,
            session,
            dataclasses.replace(broker, controller=refusal, quorum=refusal, controller_channel=refusal),
        )


class _UnavailableController:
    """Stands where the controller is not to be had: whatever is wanted of it, there is an error."""

    def __init__(self, error: MoldauError) -> None:
        object.__setattr__(self, "_error", error)

    def __getattribute__(self, name: str) -> NoReturn:
        raise object.__getattribute__(self, "_error")


def contains_not_controller(tree: Any) -> bool:
    """Whether an answer says, anywhere in it, that this is not the controller: then nothing was done."""
    if isinstance(tree, dict):
        return tree.get("error_code") == ErrorCode.not_controller or any(
            contains_not_controller(each) for each in tree.values()
        )
    return isinstance(tree, list | tuple) and any(contains_not_controller(each) for each in tree)


def pack_address(host: str) -> bytes:
    """An address as Envelope carries it; nothing for what is no address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b""


def unpack_address(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed)) if len(packed) in (4, 16) else ""
