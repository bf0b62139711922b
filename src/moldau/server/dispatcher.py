"""From a frame to the answer's frame: finds the handler, decodes for it, encodes what it gives."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from moldau.network.connection import CloseConnectionError
from moldau.observe.logging import get_logger
from moldau.server.broker import Broker
from moldau.server.forwarding import ForwardedResponse, forward_to_controller
from moldau.server.registry import NO_RESPONSE, Handler, Registry
from moldau.server.session import ClientConnection, Session
from moldau.server.startup_gate import StartupGate, is_metadata_log_fetch, requires_ready_broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, decoder, encoder, has_flexible_header
from moldau.wire.frames import RequestHeader, ResponseFrame, read_request_header, skip_tagged_fields

log = get_logger(__name__)

UNSUPPORTED_VERSION = 35


class _Route(NamedTuple):
    """How the requests of one API version are read, handled and answered."""

    handler: Handler
    decode: Callable[[memoryview], Any]
    encode: Callable[[bytearray, Any], None]
    is_flexible: bool
    is_response_flexible: bool
    keeps_frame: bool
    requires_ready_broker: bool
    """Whether it waits until the node is ready."""
    is_forwarded: bool
    is_between_nodes: bool


class Dispatcher:
    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry
        self._routes: dict[tuple[int, int], _Route] = {}
        self._startup_gate = StartupGate(broker.ready)
        self.unexpected_errors = 0
        """Requests that ended in an exception nobody planned for."""

    async def handle(
        self, connection: ClientConnection, frame: memoryview, release: Callable[[], None]
    ) -> Sequence[Any] | None:
        """The parts of the answer's frame; raises CloseConnectionError where Kafka closes the connection.

        Only Produce holds on to the frame, whose records it has not copied, until they are in the log, and what may be
        handed on as it is; the others release it at once.
        """
        try:
            header = read_request_header(frame)
            route = self._routes.get((header.api_key, header.version)) or self._find_route(header)
            if route is None:
                return self._unsupported_version(header)
            if route.is_between_nodes:
                self._check_listener(header, connection)
            start = skip_tagged_fields(frame, header.body_start) if route.is_flexible else header.body_start
            request = route.decode(frame[start:])
        except DecodeError as error:
            raise CloseConnectionError(f"not a valid request: {error}") from None
        is_early = route.requires_ready_broker and not self._broker.ready.is_set()
        if is_early and not is_metadata_log_fetch(header.api_key, request):
            await self._startup_gate.wait(len(frame))
        if not route.keeps_frame:
            del frame
            release()
        try:
            session = Session(connection, header.version, header.client_id, release=release)
            handling: Awaitable[Any]
            if route.is_forwarded:
                handling = forward_to_controller(route.handler, request, frame, session, self._broker)
            else:
                handling = route.handler(request, session, self._broker)
            # Its bytes are views of the frame: a request that waits for long keeps what it needs, no more.
            del request
            if route.keeps_frame:
                del frame
            tree = await handling
            if tree is NO_RESPONSE:
                return None
            if isinstance(tree, ForwardedResponse):
                return [len(tree.data).to_bytes(4, "big"), tree.data]
            out = ResponseFrame(header.correlation_id, flexible=route.is_response_flexible)
            route.encode(out, tree)
            return out.parts()
        except CloseConnectionError:
            raise
        except Exception as error:
            self.unexpected_errors += 1
            log.exception("request failed", api=ApiKey(header.api_key).name, version=header.version)
            raise CloseConnectionError("the request ended in an error of the broker's own") from error

    def _find_route(self, header: RequestHeader) -> _Route | None:
        """The first request of an API version loads its codecs. None where the version is not served."""
        api_key, version = header.api_key, header.version
        served = self._registry.get(api_key)  # type: ignore[call-overload]
        if served is None:
            raise CloseConnectionError(f"API {api_key} is not served")
        if not served.min_version <= version <= served.max_version:
            return None
        flexible = has_flexible_header(api_key, version)
        route = self._routes[api_key, version] = _Route(
            handler=served.handler,
            decode=decoder(api_key, version, "request"),
            encode=encoder(api_key, version, "response"),
            is_flexible=flexible,
            # The answer to ApiVersions has the oldest header, so that a client of any age can read it.
            is_response_flexible=flexible and api_key != ApiKey.API_VERSIONS,
            keeps_frame=api_key == ApiKey.PRODUCE or served.forwarded,
            requires_ready_broker=requires_ready_broker(api_key, inter_broker=served.inter_broker),
            is_forwarded=served.forwarded,
            is_between_nodes=served.inter_broker,
        )
        return route

    def _check_listener(self, header: RequestHeader, connection: ClientConnection) -> None:
        inter_broker = self._broker.settings.broker.inter_broker_listener
        if connection.listener != inter_broker:
            raise CloseConnectionError(
                f"{ApiKey(header.api_key).name} is for nodes of this cluster alone, which ask on the listener "
                f"{inter_broker}; {connection.peer} asked on {connection.listener}"
            )

    def _unsupported_version(self, header: RequestHeader) -> Sequence[Any]:
        if header.api_key != ApiKey.API_VERSIONS:
            raise CloseConnectionError(f"version {header.version} of API {header.api_key} is not served")
        # A client newer than this broker learns here which versions of ApiVersions it may use instead.
        served = self._registry[ApiKey.API_VERSIONS]
        out = ResponseFrame(header.correlation_id, flexible=False)
        known = {
            "api_key": ApiKey.API_VERSIONS,
            "min_version": served.min_version,
            "max_version": served.max_version,
        }
        encoder(ApiKey.API_VERSIONS, 0, "response")(
            out, {"error_code": UNSUPPORTED_VERSION, "api_keys": [known]}
        )
        return out.parts()
