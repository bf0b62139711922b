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
    check,
)
from moldau.client.net.versions import VERSIONS, Versions, check_offered, choose
from moldau.client.security.secure_channel import SASL_IS_MISSING, TLS_IS_MISSING, Securing, lost
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, uses_flexible_headers
from moldau.wire.frames import skip_tags

FRAME_BYTES_MAX = 128 * 1024 * 1024
"""The largest answer that is accepted. Whoever announces more does not speak Kafka."""

_log = get_logger("client.connection")

_SIZE = struct.Struct(">i")
_CODE = struct.Struct(">h")
_HEADER = struct.Struct(">hhih")
_BUFFER_BYTES = 64 * 1024
_CORRELATION_LIMIT = 2**31
_LIFETIME_USED = 0.85
"""The part of a session's time after which it is not used any more."""


@dataclass(slots=True)
class _Waiting:
    """A request that was sent and not yet answered."""

    correlation_id: int
    api: ApiKey
    version: int
    answer: "asyncio.Future[Message]"
    timer: asyncio.TimerHandle


class Connection:
    """Use `open` to make one. When it has ended, `is_open` is false and every call raises ConnectionLostError."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self.address = (host, port)
        self.versions: Mapping[int, Versions] = {}
        """What the broker speaks."""
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._waiting: deque[_Waiting] = deque()
        self._end: str | None = None
        self._suspicion = ""
        """What may be wrong if the broker hangs up now: so they treat those who do not begin as they must."""
        self._is_leaving = False
        self.renew_at: float | None = None
        """Loop time from which on another connection should be used: soon after, the broker wants a new proof."""
        self.on_lost: Callable[[], None] | None = None
        """Called once, at the moment the other side ends it or the network does; not when this side does."""
        self._may_write = asyncio.Event()
        self._may_write.set()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "moldau",
        timeout_ms: int = 30_000,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        securing: Securing | None = None,
    ) -> "Connection":
        """Connects, agrees on versions and authenticates; raises ConnectionLostError, RequestTimedOutError or
        AuthenticationError."""
        connection = cls(host, port, client_id)
        connection._suspicion = TLS_IS_MISSING if securing is None else securing.suspicion
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.create_connection(
                    lambda: _Frames(connection, frame_bytes_max),
                    host,
                    port,
                    ssl=None if securing is None else securing.tls,
                )
                await connection._learn_versions(timeout_ms)
                if securing is not None:
                    await connection._authenticate(securing, timeout_ms)
        except TimeoutError:
            connection._fail("it took too long to connect")
            raise RequestTimedOutError(f"no connection to {host}:{port} within {timeout_ms} ms") from None
        except OSError as error:
            text = f"no connection to {host}:{port}: {error or type(error).__name__}"
            raise lost(text if error.errno else text + connection._suspicion, error) from None
        except BaseException:
            connection._fail("it could not be set up")
            raise
        return connection

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def is_open(self) -> bool:
        return self._end is None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._waiting)

    def close(self) -> None:
        self._fail("this client has closed it")

    def close_when_answered(self) -> None:
        """Closes it as soon as no answer is outstanding; nothing more is to be sent."""
        self._is_leaving = True
        if not self._waiting:
            self.close()

    def close_if_deserted(self) -> None:
        """Closes it if answers are outstanding and nobody waits for any of them."""
        if self._waiting and all(each.answer.done() for each in self._waiting):
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
            version = choose(api, self.versions, version_max)
        else:
            check_offered(api, self.versions, version)
        return self._send(api, version, tree, timeout_ms)

    def send_unanswered(
        self, api: ApiKey, tree: Mapping[str, Any], *, version_max: int | None = None
    ) -> None:
        """For the one kind of request that brokers do not answer: Produce with acks=0."""
        self._write(api, choose(api, self.versions, version_max), tree)

    async def drained(self) -> None:
        """Waits until what was sent has left, but for a little: for those whose requests nothing else holds back."""
        await self._may_write.wait()

    async def _learn_versions(self, timeout_ms: int) -> None:
        software = {"client_software_name": "moldau", "client_software_version": __version__}
        version = VERSIONS[ApiKey.API_VERSIONS].high
        answer = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        if answer.error_code == ErrorCode.unsupported_version:
            offered = {each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys}
            # Brokers of old say nothing of what they have; version 0 they all do.
            version = choose(ApiKey.API_VERSIONS, {ApiKey.API_VERSIONS: Versions(0, 0)} | offered)
            answer = await self._send(ApiKey.API_VERSIONS, version, software, timeout_ms)
        check(answer.error_code, f"{self} does not say which versions it has")
        self._suspicion = SASL_IS_MISSING
        self.versions = {
            each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys
        }

    async def _authenticate(self, securing: Securing, timeout_ms: int) -> None:
        if securing.sasl is not None:
            self._suspicion = ""
        lifetime_ms = await securing.authenticate(self, timeout_ms)
        if lifetime_ms > 0:
            self.renew_at = asyncio.get_running_loop().time() + lifetime_ms * _LIFETIME_USED / 1000

    def _send(
        self, api: ApiKey, version: int, tree: Mapping[str, Any], timeout_ms: int
    ) -> "asyncio.Future[Message]":
        correlation_id = self._write(api, version, tree)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            correlation_id,
            api,
            version,
            loop.create_future(),
            loop.call_later(timeout_ms / 1000, self._time_out, correlation_id, timeout_ms),
        )
        self._waiting.append(waiting)
        return waiting.answer

    def _write(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> int:
        if self._end is not None or self._transport is None:
            raise ConnectionLostError(f"the connection to {self} has ended: {self._end}")
        correlation_id = (self._correlation_id + 1) % _CORRELATION_LIMIT
        frame = bytearray(4)
        frame += _HEADER.pack(api, version, correlation_id, len(self._client_id))
        frame += self._client_id
        if uses_flexible_headers(api, version):
            frame.append(0)
        encoder(api, version, "request")(frame, tree)
        _SIZE.pack_into(frame, 0, len(frame) - 4)
        self._correlation_id = correlation_id
        self._transport.write(frame)
        return correlation_id

    def _time_out(self, correlation_id: int, timeout_ms: int) -> None:
        late = next((each for each in self._waiting if each.correlation_id == correlation_id), None)
        if late is not None:
            text = f"{self} did not answer {late.api.name} within {timeout_ms} ms"
            _raise_in(late.answer, RequestTimedOutError(text))
            self._fail(text)

    # Answers

    def _connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        if self._end is not None:
            transport.abort()

    def _received(self, frame: memoryview) -> None:
        if self._end is not None:
            # It had arrived before the connection failed, but nobody waits for it any more.
            return
        correlation_id = _SIZE.unpack_from(frame)[0]
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            self._give_up_on(f"it sent an answer to request {correlation_id}, which was not due")
            return
        waiting = self._waiting[0]
        try:
            answer = _read_answer(frame, waiting.api, waiting.version)
        except DecodeError as error:
            text = f"its answer to {waiting.api.name} version {waiting.version} cannot be read: {error}"
            self._give_up_on(text)
            return
        self._waiting.popleft()
        waiting.timer.cancel()
        if not waiting.answer.done():
            waiting.answer.set_result(answer)
        if waiting.api is not ApiKey.API_VERSIONS:
            self._suspicion = ""
        if self._is_leaving and not self._waiting:
            self.close()

    def _give_up_on(self, reason: str) -> None:
        """The other side does not keep to the protocol, which no retry mends: somebody should know."""
        reason += self._suspicion
        _log.error("the broker does not keep to the protocol", broker=str(self), why=reason)
        self._fail(reason)

    def _lost(self, cause: Exception | None) -> None:
        was_open = self._end is None
        if cause is None:
            self._fail(f"the broker closed it{self._suspicion}")
        else:
            self._fail(f"the broker closed it ({cause}){self._suspicion}", cause)
        if was_open and self.on_lost is not None:
            self.on_lost()

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        """Ends the connection; whoever waits for an answer hears of it."""
        if self._end is None:
            self._end = reason
            self._may_write.set()
            if self._transport is not None:
                self._transport.abort()
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.timer.cancel()
            text = f"the connection to {self} ended before {waiting.api.name} was answered: {reason}"
            _raise_in(waiting.answer, lost(text, cause))


def _read_answer(frame: memoryview, api: ApiKey, version: int) -> Message:
    start = _SIZE.size
    if api is ApiKey.API_VERSIONS:
        # Its header has no tags in any version, and a broker that lacks the version answers in version 0:
        # whoever asks cannot know yet what the broker understands.
        if len(frame) >= start + 2 and _CODE.unpack_from(frame, start)[0] == ErrorCode.unsupported_version:
            version = 0
    elif uses_flexible_headers(api, version):
        start = skip_tags(frame, start)
    answer = decoder(api, version, "response")(frame[start:])
    answer.api_version = version
    return answer


def _raise_in(answer: "asyncio.Future[Message]", error: KafkaError) -> None:
    if not answer.done():
        answer.set_exception(error)
        # The sender of a pipelined request may have gone on: that nobody looks at the error is no bug.
        answer.exception()


class _Frames(asyncio.BufferedProtocol):
    """Cuts what arrives into frames. Small ones are copied out of one buffer, the rest of a large one is received
    straight into its place; a frame owns its memory, so record data in it may be kept."""

    def __init__(self, connection: Connection, frame_bytes_max: int) -> None:
        self._connection = connection
        self._frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._kept = 0
        """Bytes at the start of the buffer: at most three, of a frame's size."""
        self._frame: memoryview | None = None
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted, for uvloop's transports are no subclasses.
        self._connection._connected(cast(asyncio.Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._connection._lost(error)

    def pause_writing(self) -> None:
        self._connection._may_write.clear()

    def resume_writing(self) -> None:
        self._connection._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._buffer[self._kept :]

    def buffer_updated(self, count: int) -> None:
        for frame in self._frames(count):
            self._connection._received(frame)

    def _frames(self, count: int) -> Iterator[memoryview]:
        if self._frame is not None:
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                yield frame
            return
        view = self._buffer[: self._kept + count]
        self._kept = 0
        position, end = 0, len(view)
        while end - position >= _SIZE.size:
            size = _SIZE.unpack_from(view, position)[0]
            if not _SIZE.size <= size <= self._frame_bytes_max:
                self._connection._give_up_on(
                    f"it sent a frame of {size} bytes; {self._frame_bytes_max} is the limit"
                )
                return
            position += _SIZE.size
            if end - position < size:
                self._frame = memoryview(bytearray(size))
                self._filled = end - position
                self._frame[: self._filled] = view[position:]
                return
            yield memoryview(bytes(view[position : position + size]))
            position += size
        rest = bytes(view[position:])
        self._buffer[: len(rest)] = rest
        self._kept = len(rest)
