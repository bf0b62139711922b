"""Which APIs are served, in which versions, and by what function. ApiVersions is this registry, read out."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from moldau.server.broker import Broker
    from moldau.server.session import Session

NO_ANSWER: Any = object()
"""What a handler gives where the protocol has no answer (Produce with acks=0)."""

Handler = Callable[[Any, "Session", "Broker"], Awaitable[Any]]


class Served(NamedTuple):
    handler: Handler
    low: int
    """The oldest version that is answered."""
    high: int
    advertised_low: int
    """The oldest version that ApiVersions names; Produce names older ones than it takes."""
    forwarded: bool = False
    """Asked of the active controller: another node passes the request on and gives the answer back."""
    between_nodes: bool = False
    """What only nodes ask of each other: served on the listener between them, and not named on others."""


class Registry(dict[ApiKey, Served]):
    """API key to what serves it. Made once, by importing `moldau.handlers`; read-only after that."""


REGISTRY = Registry()


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    advertised_low: int | None = None,
    forwarded: bool = False,
    between_nodes: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers a handler: `async def f(request, session, broker) -> response tree`."""

    def register(handler: Handler) -> Handler:
        low, high = versions
        advertised = low if advertised_low is None else advertised_low
        REGISTRY[api_key] = Served(handler, low, high, advertised, forwarded, between_nodes)
        return handler

    return register
