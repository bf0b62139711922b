"""What a handler knows of the caller besides the request itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.partitions.waiters import CallbackList


@dataclass(slots=True, eq=False)
class ClientConnection:
    """What is remembered between the requests of one connection."""

    peer: str
    listener: str
    client_software: str = ""
    append_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the Produce request that is appending: they take their turns in the order they came."""
    fetch_session_ids: list[int] = field(default_factory=list)
    """Fetch sessions that were begun on this connection, and end with it."""
    closed: CallbackList = field(default_factory=CallbackList)
    """Fetches that wait for news, to be told when nobody is there any more to take it."""
    broker_incarnation: tuple[int, int] | None = None
    """The broker, and its epoch, whose heartbeats come on this connection."""


@dataclass(slots=True, eq=False)
class Session:
    """One request, seen from outside: who asks, in which version."""

    connection: ClientConnection
    api_version: int
    client_id: str | None
    is_forwarded: bool = False
    """Whether another node passed the request on: it has been looked at there, and is not passed on again."""
    release: Callable[[], None] = lambda: None
    """Called by a handler that waits on, when nothing of it refers to the request's bytes any longer."""

    @property
    def client_host(self) -> str:
        """The caller's address, as Kafka shows it to people who look at groups."""
        return "/" + self.connection.peer.rpartition(":")[0]
