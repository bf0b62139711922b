"""From a frame to the answer's frame: finds the handler, decodes for it, encodes what it gives."""

from collections.abc import Callable, Sequence
from typing import Any

from moldau.connections.connection import CloseConnectionError
from moldau.observe.logging import get_logger
from moldau.requests.broker import Broker
from moldau.requests.registry import NO_ANSWER, Registry
from moldau.requests.session import ClientConnection, Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, decoder, encoder, uses_flexible_headers
from moldau.wire.frames import AnswerFrame, RequestHeader, read_header, skip_tags

log = get_logger(__name__)

UNSUPPORTED_VERSION = 35


class Dispatcher:
    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry
        self.bugs = 0
        """Requests that ended in an exception nobody planned for."""

    async def answer(
        self, connection: ClientConnection, frame: memoryview, release: Callable[[], None]
    ) -> Sequence[Any] | None:
        """The parts of the answer's frame; raises CloseConnectionError where Kafka closes the connection.

        Only Produce holds on to the frame, whose records it has not copied; the others release it at once.
        """
        try:
            header = read_header(frame)
            served = self._registry.get(header.api_key)  # type: ignore[call-overload]
            if served is None:
                raise CloseConnectionError(f"API {header.api_key} is not served")
            if not served.low <= header.version <= served.high:
                return self._unsupported_version(header)
            flexible = uses_flexible_headers(header.api_key, header.version)
            start = skip_tags(frame, header.body_start) if flexible else header.body_start
            request = decoder(header.api_key, header.version, "request")(frame[start:])
        except DecodeError as error:
            raise CloseConnectionError(f"not a valid request: {error}") from None
        if header.api_key != ApiKey.PRODUCE:
            del frame
            release()
        session = Session(connection, header.version, header.client_id)
        try:
            tree = await served.handler(request, session, self._broker)
            return None if tree is NO_ANSWER else _encoded(header, flexible, tree)
        except CloseConnectionError:
            raise
        except Exception as error:
            self.bugs += 1
            log.exception("request failed", api=ApiKey(header.api_key).name, version=header.version)
            raise CloseConnectionError("the request ended in an error of the broker's own") from error

    def _unsupported_version(self, header: RequestHeader) -> Sequence[Any]:
        if header.api_key != ApiKey.API_VERSIONS:
            raise CloseConnectionError(f"version {header.version} of API {header.api_key} is not served")
        # A client newer than this broker learns here which versions of ApiVersions it may use instead.
        served = self._registry[ApiKey.API_VERSIONS]
        out = AnswerFrame(header.correlation_id, flexible=False)
        known = {"api_key": ApiKey.API_VERSIONS, "min_version": served.low, "max_version": served.high}
        encoder(ApiKey.API_VERSIONS, 0, "response")(
            out, {"error_code": UNSUPPORTED_VERSION, "api_keys": [known]}
        )
        return out.parts()


def _encoded(header: RequestHeader, flexible: bool, tree: Any) -> Sequence[Any]:
    # The answer to ApiVersions has the oldest header, so that a client of any age can read it.
    flexible = flexible and header.api_key != ApiKey.API_VERSIONS
    out = AnswerFrame(header.correlation_id, flexible=flexible)
    encoder(header.api_key, header.version, "response")(out, tree)
    return out.parts()
