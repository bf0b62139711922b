"""What a handler knows about a request besides its message: the connection, the version and the client."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.partitions.delayed_operations import CallbackList


@dataclass(slots=True, eq=False)
class ClientConnection:
    """State that is kept between the requests of one connection."""

    peer: str
    listener: str
    client_software: str = ""
    append_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a Produce request while it appends, so that requests append in the order they arrived."""
    fetch_session_ids: list[int] = field(default_factory=list)
    """Fetch sessions that were created on this connection and end with it."""
    close_callbacks: CallbackList = field(default_factory=CallbackList)
    """Called when the connection closes."""
    broker_incarnation: tuple[int, int] | None = None
    """The id and epoch of the broker that sends its heartbeats on this connection."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """The context of one request."""

    connection: ClientConnection
    api_version: int
    client_id: str | None
    is_forwarded: bool = False
    """Whether another node forwarded the request: it has been checked there and is not forwarded again."""
    release: Callable[[], None] = lambda: None
    """Releases the request's frame; called before a long wait, when nothing refers to its bytes any more."""

    @property
    def client_host(self) -> str:
        """The client's address, as Kafka shows it in group descriptions."""
        return "/" + self.connection.peer.rpartition(":")[0]
