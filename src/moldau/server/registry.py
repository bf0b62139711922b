"""Registry of the served APIs: their versions and handlers. ApiVersions responds with it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from moldau.errors import MoldauError
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

if TYPE_CHECKING:
    from moldau.server.broker import Broker
    from moldau.server.request_context import RequestContext

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT", bound=Mapping[str, object] | None)

HandlerOf = Callable[[RequestT, "RequestContext", "Broker"], Awaitable[ResponseT]]
"""Handler of one API. It returns None where the protocol has no response (Produce with acks=0)."""

Handler = HandlerOf[Message, Mapping[str, object] | None]

ErrorResponse = Callable[[Any, int, MoldauError], Mapping[str, object]]
"""Builds the response to a request, in its API version, for an error of the whole request."""


class ApiRegistration(NamedTuple):
    handler: Handler
    min_version: int
    max_version: int
    advertised_min_version: int
    """The oldest version in ApiVersions; Produce advertises older ones than it serves."""
    error_response: ErrorResponse | None = None
    """Set for requests that are forwarded to the active controller. Their handlers raise errors of the whole request,
    NotControllerError among them."""
    inter_broker: bool = False
    """For nodes only: served and advertised on the inter-broker listener alone."""

    @property
    def forwarded(self) -> bool:
        return self.error_response is not None


class Registry(dict[ApiKey, ApiRegistration]):
    """Registrations by API key, filled by importing `moldau.handlers` and read-only afterwards."""


REGISTRY = Registry()


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    advertised_min_version: int | None = None,
    error_response: ErrorResponse | None = None,
    inter_broker: bool = False,
) -> Callable[[HandlerOf[RequestT, ResponseT]], HandlerOf[RequestT, ResponseT]]:
    """Registers a handler: `async def f(request, session, broker) -> response`, typed as in `wire/messages.pyi`."""

    def register(handler: HandlerOf[RequestT, ResponseT]) -> HandlerOf[RequestT, ResponseT]:
        low, high = versions
        advertised = low if advertised_min_version is None else advertised_min_version
        REGISTRY[api_key] = ApiRegistration(
            cast(Handler, handler),
            low,
            high,
            advertised,
            error_response,
            inter_broker,
        )
        return handler

    return register
