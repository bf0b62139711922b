"""The context of a request: the connection, the API version and the client."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.partitions.delayed_operations import CallbackList


@dataclass(slots=True, eq=False)
class ClientConnection:
    """The state of one client connection, which all its requests share."""

    peer: str
    listener: str
    client_software: str = ""
    append_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a Produce request while it appends, so that requests append in the order of arrival."""
    fetch_session_ids: list[int] = field(default_factory=list)
    """The fetch sessions that were created on this connection. They end with the connection."""
    close_callbacks: CallbackList = field(default_factory=CallbackList)
    """Callbacks that are called when the connection closes."""
    broker_incarnation: tuple[int, int] | None = None
    """The id and epoch of the broker that sends heartbeats on this connection; None if there is no such broker."""


@dataclass(slots=True, eq=False)
class RequestContext:
    connection: ClientConnection
    api_version: int
    client_id: str | None
    is_forwarded: bool = False
    """Whether another node forwarded the request. That node has checked the request, and it is not forwarded again."""
    release: Callable[[], None] = lambda: None
    """Releases the frame of the request. A handler calls it before a long wait, when it no longer uses the frame."""

    @property
    def client_host(self) -> str:
        """The client's address with a leading slash, as in Kafka's group descriptions."""
        return "/" + self.connection.peer.rpartition(":")[0]
