"""One connection to a broker: requests go out as they are called and are answered in that order.

Nothing is hidden here: no request is sent twice and no error code inside an answer is looked at. An answer that
does not come in time ends the connection, because those behind it cannot come either.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from moldau import __version__
from moldau.client.errors import (
    ConnectionLostError,
    ErrorCode,
    KafkaError,
    RequestTimedOutError,
    raise_for_code,
)
from moldau.client.net.api_versions import (
    SUPPORTED_VERSIONS,
    VersionRange,
    check_version_usable,
    latest_usable_version,
)
from moldau.client.security.channel_security import SASL_HINT, TLS_HINT, ChannelSecurity, disconnect_error
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import skip_tagged_fields

FRAME_BYTES_MAX = 128 * 1024 * 1024
"""The largest answer that is accepted. Whoever announces more does not speak Kafka."""

_log = get_logger("client.connection")

_SIZE = struct.Struct(">i")
_CODE = struct.Struct(">h")
_HEADER = struct.Struct(">hhih")
_READ_BUFFER_BYTES = 64 * 1024
_CORRELATION_ID_LIMIT = 2**31
_REAUTHENTICATION_FRACTION = 0.85
"""The part of a session's time after which it is not used any more."""


@dataclass(slots=True)
class _InFlightRequest:
    """A request that was sent and not yet answered."""

    correlation_id: int
    api: ApiKey
    version: int
    response: "asyncio.Future[Message]"
    timer: asyncio.TimerHandle


class Connection:
    """Use `open` to make one. When it has ended, `is_open` is false and every call raises ConnectionLostError."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self.address = (host, port)
        self.versions: Mapping[int, VersionRange] = {}
        """What the broker speaks."""
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._in_flight_requests: deque[_InFlightRequest] = deque()
        self._close_reason: str | None = None
        self._disconnect_hint = ""
        """What may be wrong if the broker hangs up now: so they treat those who do not begin as they must."""
        self._closes_when_idle = False
        self.reauthenticate_at: float | None = None
        """Loop time from which on another connection should be used: soon after, the broker wants a new proof."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once, at the moment the other side ends it or the network does; not when this side does."""
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
    ) -> "Connection":
        """Connects, agrees on versions and authenticates; raises ConnectionLostError, RequestTimedOutError or
        AuthenticationError."""
        connection = cls(host, port, client_id)
        connection._disconnect_hint = (
            TLS_HINT if channel_security is None else channel_security.disconnect_hint
        )
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
            connection._terminate("it took too long to connect")
            raise RequestTimedOutError(f"no connection to {host}:{port} within {timeout_ms} ms") from None
        except OSError as error:
            text = f"no connection to {host}:{port}: {error or type(error).__name__}"
            raise disconnect_error(
                text if error.errno else text + connection._disconnect_hint, error
            ) from None
        except BaseException:
            connection._terminate("it could not be set up")
            raise
        return connection

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def is_open(self) -> bool:
        return self._close_reason is None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._in_flight_requests)

    def close(self) -> None:
        self._terminate("this client has closed it")

    def close_when_idle(self) -> None:
        """Closes it as soon as no answer is outstanding; nothing more is to be sent."""
        self._closes_when_idle = True
        if not self._in_flight_requests:
            self.close()

    def close_if_abandoned(self) -> None:
        """Closes it if answers are outstanding and nobody waits for any of them."""
        if self._in_flight_requests and all(each.response.done() for each in self._in_flight_requests):
            self.close()

    # Requests

    async def call(
        self,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int,
        version_max: int | None = None,
        version: int | None = None,
    ) -> Message:
        """The answer to a request; its attribute `api_version` says in which version the two were.

        `version` is for those who need exactly this one, among them nodes, whose messages clients do not send:
        UnsupportedVersionError where the broker does not have it."""
        return await self.send(api, tree, timeout_ms=timeout_ms, version_max=version_max, version=version)

    def send(
        self,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int,
        version_max: int | None = None,
        version: int | None = None,
    ) -> "asyncio.Future[Message]":
        """As `call`, without waiting: requests leave in the order of these calls."""
        if version is None:
            version = latest_usable_version(api, self.versions, version_max)
        else:
            check_version_usable(api, self.versions, version)
        return self._send(api, version, tree, timeout_ms)

    def send_without_response(
        self, api: ApiKey, tree: Mapping[str, Any], *, version_max: int | None = None
    ) -> None:
        """For the one kind of request that brokers do not answer: Produce with acks=0."""
        self._write(api, latest_usable_version(api, self.versions, version_max), tree)

    async def drain(self) -> None:
        """Waits until what was sent has left, but for a little: for those whose requests nothing else holds back."""
        await self._writable.wait()

    async def _fetch_api_versions(self, timeout_ms: int) -> None:
        software = {"client_software_name": "moldau", "client_software_version": __version__}
        version = SUPPORTED_VERSIONS[ApiKey.API_VERSIONS].maximum
        response = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        if response.error_code == ErrorCode.unsupported_version:
            offered = {
                each.api_key: VersionRange(each.min_version, each.max_version) for each in response.api_keys
            }
            # Brokers of old say nothing of what they have; version 0 they all do.
            version = latest_usable_version(
                ApiKey.API_VERSIONS, {ApiKey.API_VERSIONS: VersionRange(0, 0)} | offered
            )
            response = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        raise_for_code(response.error_code, f"{self} does not say which versions it has")
        self._disconnect_hint = SASL_HINT
        self.versions = {
            each.api_key: VersionRange(each.min_version, each.max_version) for each in response.api_keys
        }

    async def _authenticate(self, channel_security: ChannelSecurity, timeout_ms: int) -> None:
        if channel_security.sasl is not None:
            self._disconnect_hint = ""
        lifetime_ms = await channel_security.authenticate(self, timeout_ms)
        if lifetime_ms > 0:
            self.reauthenticate_at = (
                asyncio.get_running_loop().time() + lifetime_ms * _REAUTHENTICATION_FRACTION / 1000
            )

    def _send(
        self, api: ApiKey, version: int, tree: Mapping[str, Any], timeout_ms: int
    ) -> "asyncio.Future[Message]":
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
            raise ConnectionLostError(f"the connection to {self} has ended: {self._close_reason}")
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
        timed_out = next(
            (each for each in self._in_flight_requests if each.correlation_id == correlation_id), None
        )
        if timed_out is not None:
            text = f"{self} did not answer {timed_out.api.name} within {timeout_ms} ms"
            _set_exception(timed_out.response, RequestTimedOutError(text))
            self._terminate(text)

    # Answers

    def _on_connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        if self._close_reason is not None:
            transport.abort()

    def _handle_frame(self, frame: memoryview) -> None:
        if self._close_reason is not None:
            # It had arrived before the connection failed, but nobody waits for it any more.
            return
        correlation_id = _SIZE.unpack_from(frame)[0]
        if not self._in_flight_requests or self._in_flight_requests[0].correlation_id != correlation_id:
            self._handle_protocol_error(f"it sent an answer to request {correlation_id}, which was not due")
            return
        request = self._in_flight_requests[0]
        try:
            response = _decode_response(frame, request.api, request.version)
        except DecodeError as error:
            text = f"its answer to {request.api.name} version {request.version} cannot be read: {error}"
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
        """The other side does not keep to the protocol, which no retry mends: somebody should know."""
        reason += self._disconnect_hint
        _log.error("the broker does not keep to the protocol", broker=str(self), why=reason)
        self._terminate(reason)

    def _on_connection_lost(self, cause: Exception | None) -> None:
        was_open = self._close_reason is None
        if cause is None:
            self._terminate(f"the broker closed it{self._disconnect_hint}")
        else:
            self._terminate(f"the broker closed it ({cause}){self._disconnect_hint}", cause)
        if was_open and self.on_disconnect is not None:
            self.on_disconnect()

    def _terminate(self, reason: str, cause: Exception | None = None) -> None:
        """Ends the connection; whoever waits for an answer hears of it."""
        if self._close_reason is None:
            self._close_reason = reason
            self._writable.set()
            if self._transport is not None:
                self._transport.abort()
        while self._in_flight_requests:
            request = self._in_flight_requests.popleft()
            request.timer.cancel()
            text = f"the connection to {self} ended before {request.api.name} was answered: {reason}"
            _set_exception(request.response, disconnect_error(text, cause))


def _decode_response(frame: memoryview, api: ApiKey, version: int) -> Message:
    start = _SIZE.size
    if api is ApiKey.API_VERSIONS:
        # Its header has no tags in any version, and a broker that lacks the version answers in version 0:
        # whoever asks cannot know yet what the broker understands.
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
        # The sender of a pipelined request may have gone on: that nobody looks at the error is no bug.
        response.exception()


class _FrameProtocol(asyncio.BufferedProtocol):
    """Cuts what arrives into frames. Small ones are copied out of one buffer, the rest of a large one is received
    straight into its place; a frame owns its memory, so record data in it may be kept."""

    def __init__(self, connection: Connection, frame_bytes_max: int) -> None:
        self._connection = connection
        self._frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        self._partial_bytes = 0
        """Bytes at the start of the buffer: at most three, of a frame's size."""
        self._frame: memoryview | None = None
        self._filled_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted, for uvloop's transports are no subclasses.
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
                    f"it sent a frame of {size} bytes; {self._frame_bytes_max} is the limit"
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
