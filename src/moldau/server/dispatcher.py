"""The dispatcher, which decodes request frames, calls their handlers and encodes the responses."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, cast

from moldau.error_codes import ErrorCode
from moldau.errors import MoldauError
from moldau.metrics.histogram import DurationHistogram
from moldau.network.connection import CloseConnectionError
from moldau.network.response_sender import Part
from moldau.observe.logging import get_logger
from moldau.server.api import ApiRegistration, Broker, ClientConnection, EncodedResponse, Registry, RequestContext
from moldau.server.forwarding import ForwardedResponse, forward_to_controller
from moldau.server.metadata_fetch import is_metadata_fetch
from moldau.wire.api_keys import ApiKey
from moldau.wire.client_ids import is_sent_by_node
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import RequestHeader, ResponseFrame, read_request_header, skip_tagged_fields
from moldau.wire.messages import FetchRequest

log = get_logger(__name__)


READY_TIMEOUT_S = 30.0
"""Clients whose requests are parked for longer are disconnected, so that they can connect to another node."""
PARKED_BYTES_MAX = 16 * 1024 * 1024
"""The maximum total size of parked request frames. The limit leaves memory for requests between nodes."""


class _Route(NamedTuple):
    """The decoder, handler, encoder and properties of one API version."""

    api: ApiRegistration
    decode: Callable[[memoryview], Message]
    encode: Callable[[bytearray, Mapping[str, object]], None]
    is_flexible: bool
    is_response_flexible: bool
    keeps_frame: bool
    requires_ready_broker: bool
    waits_for_flush: bool
    """Whether a request waits until the records of earlier requests of its connection are flushed."""
    durations: DurationHistogram
    """From the start of a request to its response, without requests that end with the connection."""


class Dispatcher:
    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry
        self._routes: dict[tuple[int, int], _Route] = {}
        self._parked_bytes = 0
        """The total size of request frames that are parked until the cluster has accepted this node."""
        self.unexpected_errors = 0
        """The number of requests that failed with an unexpected exception."""

    async def handle(
        self, connection: ClientConnection, frame: memoryview, release: Callable[[], None]
    ) -> Sequence[Part] | None:
        """Returns the parts of the response frame, or None if the request has no response.

        Raises CloseConnectionError in the cases in which Kafka closes the connection.

        Produce keeps the frame until its records are in the log, because the records are not copied. Forwarded
        requests also keep the frame. For all other requests, the frame is released before the handler runs.
        """
        clock = self._broker.platform.clock
        start_us = clock.monotonic_us()
        try:
            header = read_request_header(frame)
            route = self._routes.get((header.api_key, header.version)) or self._find_route(header)
            if route is None:
                return self._unsupported_version(header)
            api = route.api
            if api.inter_broker:
                self._check_listener(header, connection)
            elif not is_sent_by_node(header.client_id):
                self._broker.client_request_count += 1
            start = skip_tagged_fields(frame, header.body_start) if route.is_flexible else header.body_start
            request = route.decode(frame[start:])
        except DecodeError as error:
            raise CloseConnectionError(f"invalid request: {error}") from None
        is_early = route.requires_ready_broker and not self._broker.ready.is_set()
        # Do not park fetches of the metadata log, because nodes need them to become ready.
        if is_early and not (header.api_key == ApiKey.FETCH and is_metadata_fetch(cast(FetchRequest, request))):
            await self._wait_until_ready(len(frame))
        if not route.keeps_frame:
            del frame
            release()
        if connection.unflushed and route.waits_for_flush:
            await self._wait_until_flushed(connection)
        try:
            session = RequestContext(connection, header.version, header.client_id, release=release)
            handling: Awaitable[Mapping[str, object] | EncodedResponse | ForwardedResponse | None]
            if api.forwarded:
                handling = forward_to_controller(request, frame, session, self._broker, api.error_response)
            else:
                handling = api.handler(request, session, self._broker)
            # Drop this reference, so that a handler that waits long can free the frame, of which byte fields are views.
            del request
            if route.keeps_frame:
                del frame
            response = await handling
            route.durations.record((clock.monotonic_us() - start_us) / 1000)
            if response is None:
                return None
            if isinstance(response, ForwardedResponse):
                return [len(response.data).to_bytes(4, "big"), response.data]
            out = ResponseFrame(header.correlation_id, flexible=route.is_response_flexible)
            if isinstance(response, EncodedResponse):
                out[:4] = (len(out) - 4 + len(response.body)).to_bytes(4, "big")
                return [out, response.body]
            route.encode(out, response)
            return out.parts()
        except CloseConnectionError:
            raise
        except Exception as error:
            self.unexpected_errors += 1
            log.exception("request failed", api=ApiKey(header.api_key).name, version=header.version)
            raise CloseConnectionError("the request failed with an unexpected error") from error

    async def _wait_until_ready(self, frame_bytes: int) -> None:
        """Parks a client's request until the cluster has accepted this node.

        Before that, a node serves only ApiVersions and requests of other nodes, because nodes need each other to start.
        Raises CloseConnectionError after `READY_TIMEOUT_S`, or if too many bytes are already parked.
        """
        if self._parked_bytes + frame_bytes > PARKED_BYTES_MAX:
            raise CloseConnectionError("the node is starting and has too many pending requests")
        self._parked_bytes += frame_bytes
        try:
            # A request has no task before its first suspension. asyncio.timeout needs a task, so suspend here.
            await asyncio.sleep(0)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._broker.ready.wait()
        except TimeoutError:
            raise CloseConnectionError(f"the node could not join its cluster within {READY_TIMEOUT_S:.0f} s") from None
        finally:
            self._parked_bytes -= frame_bytes

    async def _wait_until_flushed(self, connection: ClientConnection) -> None:
        """Waits until the records that earlier requests with acks 0 or 1 appended are flushed.

        Then the request finds them below the high watermark if the partition has no other replicas, as in Kafka, which
        does not wait for a flush. An error of the flush is not an error of this request.
        """
        names, connection.unflushed = connection.unflushed, {}
        for name in names:
            partition = self._broker.replica_manager.get(*name)
            if partition is not None:
                with contextlib.suppress(MoldauError):
                    await partition.wait_for_flush()

    def _find_route(self, header: RequestHeader) -> _Route | None:
        """Creates the route of an API version at its first request. Returns None for an unsupported version."""
        api_key, version = header.api_key, header.version
        api = self._registry.get(api_key)  # type: ignore[call-overload]
        if api is None:
            raise CloseConnectionError(f"API {api_key} is not supported")
        if not api.min_version <= version <= api.max_version:
            return None
        flexible = has_flexible_header(api_key, version)
        route = self._routes[api_key, version] = _Route(
            api=api,
            decode=decoder(api_key, version, "request"),
            encode=encoder(api_key, version, "response"),
            is_flexible=flexible,
            # The ApiVersions response always has the oldest header, so that a client of any release can decode it.
            is_response_flexible=flexible and api_key != ApiKey.API_VERSIONS,
            keeps_frame=api_key == ApiKey.PRODUCE or api.forwarded,
            requires_ready_broker=not api.inter_broker and api_key != ApiKey.API_VERSIONS,
            waits_for_flush=api_key != ApiKey.PRODUCE,
            durations=self._broker.request_metrics.of(api_key),
        )
        return route

    def _check_listener(self, header: RequestHeader, connection: ClientConnection) -> None:
        expected = self._broker.settings.broker.inter_broker_listener
        if connection.listener != expected:
            raise CloseConnectionError(
                f"{ApiKey(header.api_key).name} is only for nodes of this cluster, on the listener {expected}; "
                f"{connection.peer} sent it on {connection.listener}"
            )

    def _unsupported_version(self, header: RequestHeader) -> Sequence[Part]:
        if header.api_key != ApiKey.API_VERSIONS:
            raise CloseConnectionError(f"version {header.version} of API {header.api_key} is not supported")
        # The response tells a client that is newer than this broker which versions of ApiVersions are supported.
        api = self._registry[ApiKey.API_VERSIONS]
        supported = {"api_key": ApiKey.API_VERSIONS, "min_version": api.min_version, "max_version": api.max_version}
        out = ResponseFrame(header.correlation_id, flexible=False)
        encoder(ApiKey.API_VERSIONS, 0, "response")(
            out, {"error_code": ErrorCode.unsupported_version, "api_keys": [supported]}
        )
        return out.parts()
