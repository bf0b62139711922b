"""One connection to a broker, with pipelined requests.

This module does not retry requests, and callers must check error codes in responses. A request that times out closes
the connection. Responses arrive in the order of the requests, so the responses to later requests cannot arrive either.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from moldau import __version__
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError, RequestTimedOutError, raise_for_code
from moldau.client.net.api_versions import SUPPORTED_VERSIONS, FinalizedFeatures, VersionRange, choose_version
from moldau.client.security.channel_security import SASL_HINT, TLS_HINT, ChannelSecurity, disconnect_error
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import skip_tagged_fields

FRAME_BYTES_MAX = 128 * 1024 * 1024
"""The largest accepted response, in bytes. A larger size means that the other side does not speak Kafka."""

_log = get_logger("client.connection")

_SIZE = struct.Struct(">i")
_CODE = struct.Struct(">h")
_HEADER = struct.Struct(">hhih")
_READ_BUFFER_BYTES = 64 * 1024
_CORRELATION_ID_LIMIT = 2**31
_REAUTHENTICATION_FRACTION = 0.85
"""The part of a SASL session's lifetime after which a new connection replaces the old one."""


@dataclass(slots=True)
class _InFlightRequest:
    """A request whose response has not arrived yet."""

    correlation_id: int
    api: ApiKey
    version: int
    response: "asyncio.Future[Message]"
    timer: asyncio.TimerHandle


class Connection:
    """A connection made by `open`. Once closed, `is_open` is false and every call raises ConnectionLostError."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self.address = (host, port)
        self.versions: Mapping[int, VersionRange] = {}
        """The API versions that the broker supports, by API key."""
        self.finalized_features = FinalizedFeatures()
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._in_flight_requests: deque[_InFlightRequest] = deque()
        self._close_reason: str | None = None
        self._has_hints = False
        self._disconnect_hint = ""
        """A hint for error messages: the likely misconfiguration if the broker disconnects now without a reason."""
        self._closes_when_idle = False
        self.reauthenticate_at: float | None = None
        """The loop time from which callers should use a new connection, because the SASL session expires."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once when the broker or the network, and not this client, closes the connection."""
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "moldau",
        timeout_ms: int = 30_000,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        channel_security: ChannelSecurity | None = None,
        hints: bool = False,
    ) -> "Connection":
        """Connects, fetches the broker's API versions and authenticates.

        With `hints`, the errors of connections that the broker closes at once name security settings as a likely cause.
        Raises ConnectionLostError, RequestTimedOutError or AuthenticationError.
        """
        connection = cls(host, port, client_id)
        connection._has_hints = hints
        if hints:
            connection._disconnect_hint = TLS_HINT if channel_security is None else channel_security.disconnect_hint
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.create_connection(
                    lambda: _FrameProtocol(connection, frame_bytes_max),
                    host,
                    port,
                    ssl=None if channel_security is None else channel_security.tls,
                )
                await connection._fetch_api_versions(timeout_ms)
                if channel_security is not None:
                    await connection._authenticate(channel_security, timeout_ms)
        except TimeoutError:
            connection._terminate("the connection attempt timed out")
            raise RequestTimedOutError(f"no connection to {host}:{port} within {timeout_ms} ms") from None
        except OSError as error:
            text = f"no connection to {host}:{port}: {error or type(error).__name__}"
            raise disconnect_error(text if error.errno else text + connection._disconnect_hint, error) from None
        except BaseException:
            connection._terminate("the connection could not be set up")
            raise
        return connection

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def is_open(self) -> bool:
        return self._close_reason is None

    @property
    def in_flight(self) -> int:
        """The number of requests whose response has not arrived yet."""
        return len(self._in_flight_requests)

    def close(self) -> None:
        self._terminate("this client closed it")

    def close_when_idle(self) -> None:
        """Closes the connection when all responses have arrived. The caller must not send more requests."""
        self._closes_when_idle = True
        if not self._in_flight_requests:
            self.close()

    def close_if_abandoned(self) -> None:
        """Closes the connection if the callers of all in-flight requests have been cancelled."""
        if self._in_flight_requests and all(each.response.done() for each in self._in_flight_requests):
            self.close()

    # Requests

    def call(
        self,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int,
        version_max: int | None = None,
        version: int | None = None,
    ) -> "asyncio.Future[Message]":
        """Sends a request now and returns a future of the response, whose `api_version` is the version that was used.

        `version` is an exact version, which requests between nodes need. Raises UnsupportedVersionError.
        """
        chosen = choose_version(api, self.versions, version_max=version_max, version=version)
        return self._send(api, chosen, tree, timeout_ms)

    def send_without_response(self, api: ApiKey, tree: Mapping[str, Any]) -> None:
        """Sends the one kind of request that has no response: Produce with acks=0."""
        self._write(api, choose_version(api, self.versions), tree)

    async def drain(self) -> None:
        """Waits until the write buffer has room. Callers without a limit of in-flight requests must call this."""
        await self._writable.wait()

    async def _fetch_api_versions(self, timeout_ms: int) -> None:
        software = {"client_software_name": "moldau", "client_software_version": __version__}
        version = SUPPORTED_VERSIONS[ApiKey.API_VERSIONS].maximum
        response = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        if response.error_code == ErrorCode.unsupported_version:
            offered = {each.api_key: VersionRange(each.min_version, each.max_version) for each in response.api_keys}
            # Old brokers return UNSUPPORTED_VERSION without a list of versions, but all of them support version 0.
            version = choose_version(ApiKey.API_VERSIONS, {ApiKey.API_VERSIONS: VersionRange(0, 0)} | offered)
            response = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        raise_for_code(response.error_code, f"{self} rejected ApiVersions")
        if self._has_hints:
            self._disconnect_hint = SASL_HINT
        self.versions = {each.api_key: VersionRange(each.min_version, each.max_version) for each in response.api_keys}
        epoch = response.get("finalized_features_epoch")
        if epoch is not None:
            levels = {each.name: each.max_version_level for each in response.get("finalized_features") or ()}
            self.finalized_features = FinalizedFeatures(epoch, levels)

    async def _authenticate(self, channel_security: ChannelSecurity, timeout_ms: int) -> None:
        if channel_security.sasl is not None:
            self._disconnect_hint = ""
        lifetime_ms = await channel_security.authenticate(self, timeout_ms)
        if lifetime_ms > 0:
            self.reauthenticate_at = asyncio.get_running_loop().time() + lifetime_ms * _REAUTHENTICATION_FRACTION / 1000

    def _send(self, api: ApiKey, version: int, tree: Mapping[str, Any], timeout_ms: int) -> "asyncio.Future[Message]":
        correlation_id = self._write(api, version, tree)
        loop = asyncio.get_running_loop()
        request = _InFlightRequest(
            correlation_id,
            api,
            version,
            loop.create_future(),
            loop.call_later(timeout_ms / 1000, self._handle_timeout, correlation_id, timeout_ms),
        )
        self._in_flight_requests.append(request)
        return request.response

    def _write(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> int:
        if self._close_reason is not None or self._transport is None:
            raise ConnectionLostError(f"the connection to {self} is closed: {self._close_reason}")
        correlation_id = (self._correlation_id + 1) % _CORRELATION_ID_LIMIT
        frame = bytearray(4)
        frame += _HEADER.pack(api, version, correlation_id, len(self._client_id))
        frame += self._client_id
        if has_flexible_header(api, version):
            frame.append(0)
        encoder(api, version, "request")(frame, tree)
        _SIZE.pack_into(frame, 0, len(frame) - 4)
        self._correlation_id = correlation_id
        self._transport.write(frame)
        return correlation_id

    def _handle_timeout(self, correlation_id: int, timeout_ms: int) -> None:
        timed_out = next((each for each in self._in_flight_requests if each.correlation_id == correlation_id), None)
        if timed_out is not None:
            text = f"{self} did not respond to {timed_out.api.name} within {timeout_ms} ms"
            _set_exception(timed_out.response, RequestTimedOutError(text))
            self._terminate(text)

    # Responses

    def _on_connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        if self._close_reason is not None:
            transport.abort()

    def _handle_frame(self, frame: memoryview) -> None:
        if self._close_reason is not None:
            # Ignore the frame, because its request failed when the connection was closed.
            return
        correlation_id = _SIZE.unpack_from(frame)[0]
        if not self._in_flight_requests or self._in_flight_requests[0].correlation_id != correlation_id:
            self._handle_protocol_error(f"unexpected response to request {correlation_id}")
            return
        request = self._in_flight_requests[0]
        try:
            response = _decode_response(frame, request.api, request.version)
        except DecodeError as error:
            text = f"its response to {request.api.name} version {request.version} cannot be decoded: {error}"
            self._handle_protocol_error(text)
            return
        self._in_flight_requests.popleft()
        request.timer.cancel()
        if not request.response.done():
            request.response.set_result(response)
        if request.api is not ApiKey.API_VERSIONS:
            self._disconnect_hint = ""
        if self._closes_when_idle and not self._in_flight_requests:
            self.close()

    def _handle_protocol_error(self, reason: str) -> None:
        """Closes the connection and logs an error, because no retry helps against a protocol violation."""
        reason += self._disconnect_hint
        _log.error("the broker violated the protocol", broker=str(self), reason=reason)
        self._terminate(reason)

    def _on_connection_lost(self, cause: Exception | None) -> None:
        was_open = self._close_reason is None
        text = "" if cause is None else f" ({cause})"
        self._terminate(f"the broker closed it{text}{self._disconnect_hint}", cause)
        if was_open and self.on_disconnect is not None:
            self.on_disconnect()

    def _terminate(self, reason: str, cause: Exception | None = None) -> None:
        """Closes the connection and fails all in-flight requests."""
        if self._close_reason is None:
            self._close_reason = reason
            self._writable.set()
            if self._transport is not None:
                self._transport.abort()
        while self._in_flight_requests:
            request = self._in_flight_requests.popleft()
            request.timer.cancel()
            text = f"the connection to {self} was lost before the response to {request.api.name}: {reason}"
            _set_exception(request.response, disconnect_error(text, cause))


def _decode_response(frame: memoryview, api: ApiKey, version: int) -> Message:
    start = _SIZE.size
    if api is ApiKey.API_VERSIONS:
        # The header of an ApiVersions response never has tagged fields. A broker that does not support the version of
        # the request responds in version 0.
        if len(frame) >= start + 2 and _CODE.unpack_from(frame, start)[0] == ErrorCode.unsupported_version:
            version = 0
    elif has_flexible_header(api, version):
        start = skip_tagged_fields(frame, start)
    response = decoder(api, version, "response")(frame[start:])
    response.api_version = version
    return response


def _set_exception(response: "asyncio.Future[Message]", error: KafkaError) -> None:
    if not response.done():
        response.set_exception(error)
        # Retrieve the exception, so that asyncio does not report it if the caller no longer awaits the response.
        response.exception()


class _FrameProtocol(asyncio.BufferedProtocol):
    """Splits the received bytes into frames.

    Small frames are copied out of a shared buffer. The rest of a large frame is received directly into the memory of
    that frame. Every frame has its own memory, so callers may keep the record data in a frame.
    """

    def __init__(self, connection: Connection, frame_bytes_max: int) -> None:
        self._connection = connection
        self._frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        self._partial_bytes = 0
        """The number of bytes (0 to 3) of an incomplete frame size at the start of the buffer."""
        self._frame: memoryview | None = None
        self._filled_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast is needed, because uvloop's transports are not subclasses of asyncio's transports.
        self._connection._on_connected(cast(asyncio.Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._connection._on_connection_lost(error)

    def pause_writing(self) -> None:
        self._connection._writable.clear()

    def resume_writing(self) -> None:
        self._connection._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled_bytes :]
        return self._buffer[self._partial_bytes :]

    def buffer_updated(self, count: int) -> None:
        for frame in self._split_frames(count):
            self._connection._handle_frame(frame)

    def _split_frames(self, count: int) -> Iterator[memoryview]:
        if self._frame is not None:
            self._filled_bytes += count
            if self._filled_bytes == len(self._frame):
                frame, self._frame = self._frame, None
                yield frame
            return
        view = self._buffer[: self._partial_bytes + count]
        self._partial_bytes = 0
        position, end = 0, len(view)
        while end - position >= _SIZE.size:
            size = _SIZE.unpack_from(view, position)[0]
            if not _SIZE.size <= size <= self._frame_bytes_max:
                self._connection._handle_protocol_error(
                    f"invalid frame size of {size} bytes; the limit is {self._frame_bytes_max}"
                )
                return
            position += _SIZE.size
            if end - position < size:
                self._frame = memoryview(bytearray(size))
                self._filled_bytes = end - position
                self._frame[: self._filled_bytes] = view[position:]
                return
            yield memoryview(bytes(view[position : position + size]))
            position += size
        rest = bytes(view[position:])
        self._buffer[: len(rest)] = rest
        self._partial_bytes = len(rest)
