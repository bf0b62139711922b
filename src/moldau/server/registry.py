"""The registry of the served APIs with their versions and handlers. The ApiVersions response is built from it."""

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
"""The handler of one API. Returns None if the request has no response (Produce with acks=0)."""

Handler = HandlerOf[Message, Mapping[str, object] | None]

ErrorResponse = Callable[[Any, int, MoldauError], Mapping[str, object]]
"""Builds the response to a request if the whole request failed. Takes the request, its API version and the error."""


class ApiRegistration(NamedTuple):
    handler: Handler
    min_version: int
    max_version: int
    advertised_min_version: int
    """The lowest version in the ApiVersions response. Produce advertises lower versions than it serves."""
    error_response: ErrorResponse | None = None
    """Set if requests are forwarded to the active controller. The handler of such an API raises an exception if the
    whole request failed, for example NotControllerError."""
    inter_broker: bool = False
    """Whether the API is only for nodes. Such an API is served and advertised only on the inter-broker listener."""

    @property
    def forwarded(self) -> bool:
        return self.error_response is not None


class Registry(dict[ApiKey, ApiRegistration]):
    """Registrations by API key. The import of `moldau.handlers` fills the registry. Afterwards it does not change."""


REGISTRY = Registry()


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    advertised_min_version: int | None = None,
    error_response: ErrorResponse | None = None,
    inter_broker: bool = False,
) -> Callable[[HandlerOf[RequestT, ResponseT]], HandlerOf[RequestT, ResponseT]]:
    """Registers a handler: `async def f(request, session, broker) -> response`.

    `wire/messages.pyi` defines the types of requests and responses.
    """

    def register(handler: HandlerOf[RequestT, ResponseT]) -> HandlerOf[RequestT, ResponseT]:
        low, high = versions
        advertised = low if advertised_min_version is None else advertised_min_version
        REGISTRY[api_key] = ApiRegistration(cast(Handler, handler), low, high, advertised, error_response, inter_broker)
        return handler

    return register
