"""Which APIs are served, in which versions, and by what function. ApiVersions is this registry, read out."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from moldau.server.broker import Broker
    from moldau.server.session import Session

NO_RESPONSE: Any = object()
"""What a handler gives where the protocol has no answer (Produce with acks=0)."""

Handler = Callable[[Any, "Session", "Broker"], Awaitable[Any]]


class ApiRegistration(NamedTuple):
    handler: Handler
    min_version: int
    """The oldest version that is answered."""
    max_version: int
    advertised_min_version: int
    """The oldest version that ApiVersions names; Produce names older ones than it takes."""
    forwarded: bool = False
    """Asked of the active controller: another node passes the request on and gives the answer back."""
    inter_broker: bool = False
    """What only nodes ask of each other: served on the listener between them, and not named on others."""


class Registry(dict[ApiKey, ApiRegistration]):
    """API key to what serves it. Made once, by importing `moldau.handlers`; read-only after that."""


REGISTRY = Registry()


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    advertised_min_version: int | None = None,
    forwarded: bool = False,
    inter_broker: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers a handler: `async def f(request, session, broker) -> response tree`."""

    def register(handler: Handler) -> Handler:
        min_version, max_version = versions
        advertised = min_version if advertised_min_version is None else advertised_min_version
        REGISTRY[api_key] = ApiRegistration(
            handler, min_version, max_version, advertised, forwarded, inter_broker
        )
        return handler

    return register
