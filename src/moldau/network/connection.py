"""One client connection. It executes requests in the order of arrival and sends the responses in the same order.

    bytes → frames → pending frames → requests in flight (one response slot each) → responses → response sender

A request starts when all earlier requests have completed, as in Kafka. Only requests of a pipelined API (Produce,
Envelope) also start while earlier requests of the same API have not completed. No client can observe the difference.

Every stage is bounded. A full stage stops the stage before it, so in the end the connection stops reading.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, cast

from moldau.concurrency.eager import start_eagerly
from moldau.logs.store import FileSlice
from moldau.network.buffer_pool import BufferPool
from moldau.network.frame_reader import LARGE_FRAME_BYTES_MIN, FrameReader, FrameTooLargeError
from moldau.network.limits import MemoryPool, PartialFrameLimiter
from moldau.network.response_sender import Part, ResponseSender
from moldau.observe.logging import get_logger

log = get_logger(__name__)

REQUESTS_IN_FLIGHT_MAX = 512
"""The maximum number of requests of one connection that have started and whose responses are not sent."""
REQUESTS_PER_ITERATION_MAX = 16
"""The maximum number of requests that one connection starts in one iteration of the event loop."""
UNSENT_BYTES_MAX = 1024 * 1024
"""The connection starts no more requests while this many bytes of responses wait for earlier responses."""
STALL_TIMEOUT_S = 30.0
"""A client that sends nothing for this long in the middle of a request is disconnected."""

Release = Callable[[], None]
RequestProcessor = Callable[[memoryview, Release], Coroutine[Any, Any, Sequence[Part] | None]]
"""Processes a request frame and returns the parts of the response frame, or None if there is no response (acks=0).
The processor may call `Release` before it returns, as soon as it no longer needs the bytes of the request frame. If the
API is pipelined, the next request of this API may start from then on."""


class CloseConnectionError(Exception):
    """The request gets no response and the connection is closed, as in Kafka. The message is the reason."""


class _ResponseSlot:
    """The place of one request in the order of responses."""

    __slots__ = ("close_reason", "is_ready", "is_released", "parts", "reserved_bytes", "unsent_bytes")

    def __init__(self, reserved_bytes: int) -> None:
        self.reserved_bytes = reserved_bytes
        """Bytes that the frame of the request reserves in the memory pool until it is released."""
        self.is_released = False
        self.is_ready = False
        self.parts: Sequence[Part] | None = None
        self.unsent_bytes = 0
        self.close_reason: str | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        *,
        shared_buffer: memoryview,
        buffers: BufferPool,
        frame_bytes_max: int,
        memory_pool: MemoryPool,
        partial_frames: PartialFrameLimiter,
        pipelined_api_keys: Collection[int],
        on_opened: "Callable[[Connection], RequestProcessor | None]",
        on_closed: "Callable[[Connection], None]",
    ) -> None:
        self._frames = FrameReader(shared_buffer, buffers, frame_bytes_max)
        self._buffers = buffers
        self._memory_pool = memory_pool
        self._partial_frames = partial_frames
        self._pipelined_api_keys = pipelined_api_keys
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._process_request: RequestProcessor | None = None
        self._transport: asyncio.Transport | None = None
        self._response_sender: ResponseSender | None = None
        self._pending_frames: deque[memoryview] = deque()
        """Frames whose requests have not started. All were completed by the same read, so their number is bounded."""
        self._in_flight: deque[_ResponseSlot] = deque()
        """Requests that have started and whose responses are not sent yet."""
        self._uncompleted = 0
        """The number of requests in flight that have not completed. They all have the API key `_current_api_key`."""
        self._unreleased = 0
        """The number of requests in flight that still use their frame."""
        self._current_api_key = -1
        """The API key of the request that started last."""
        self._tasks: dict[_ResponseSlot, asyncio.Task[Any]] = {}
        """Strong references to the tasks, because the event loop only keeps weak references."""
        self._unsent_bytes = 0
        self._reserved_bytes = 0
        """Bytes that the frames of this connection have reserved in the memory pool."""
        self._last_sent_bytes = 0
        """The number of sent bytes at the last call of `is_expired`."""
        self._paused_at: float = 0.0
        """The loop time when reading was last paused."""
        self._close_reason: str | None = None
        """If set, the connection starts no more requests and closes after the responses in flight."""
        self._is_draining = False
        self._is_paused = False
        self._is_advancing = False
        self._is_advance_scheduled = False
        self._is_waiting_for_memory = False
        self.close_callbacks: list[Callable[[], None]] = []
        self.peer: tuple[str, int] = ("", 0)
        self.last_active_s: float = 0.0
        """The loop time when bytes were last received or sent."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(peer[0]), int(peer[1]))
        self._record_activity()
        self._process_request = self._on_opened(self)
        if self._process_request is None:
            self._transport.abort()
            return
        self._response_sender = ResponseSender(self._transport, self._on_drained)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._record_activity()
        if self._is_draining:
            return
        was_large = self._frames.is_frame_large
        try:
            for frame in self._frames.bytes_received(nbytes):
                self._memory_pool.reserve(len(frame))
                self._reserved_bytes += len(frame)
                self._pending_frames.append(frame)
        except FrameTooLargeError as error:
            self._close_after_responses(str(error))
        if self._frames.is_frame_large:
            self._partial_frames.bytes_received(self, nbytes)
        elif was_large:
            self._partial_frames.frame_ended(self)
        self._advance()

    def eof_received(self) -> bool:
        # A client that has closed its sending side still gets its responses.
        self._is_draining = True
        self._advance()
        return not self._is_finished

    def resume_writing(self) -> None:
        if self._response_sender is not None:
            self._response_sender.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        # Requests in flight are not cancelled, because appends to a log must complete. When such a request completes,
        # its response is dropped and its frame is released.
        self._is_draining = True
        if self._response_sender is not None:
            self._response_sender.close()
        self._partial_frames.frame_ended(self)
        self._discard_pending_frames()
        self._in_flight.clear()
        for callback in self.close_callbacks:
            callback()
        self._on_closed(self)

    # Requests and responses

    def _advance(self) -> None:
        """Starts pending requests, sends ready responses, and resumes or pauses reading."""
        if self._is_advancing or self._transport is None or self._response_sender is None:
            return
        self._is_advancing = True
        self._is_advance_scheduled = False
        begun = 0
        while self._pending_frames and begun < REQUESTS_PER_ITERATION_MAX and self._can_start_request:
            self._start_request(self._pending_frames.popleft())
            begun += 1
        self._send_ready_responses()
        if self._pending_frames and self._can_start_request:
            self._schedule_advance()
        self._is_advancing = False
        if self._is_finished:
            self.close()
        else:
            self._update_reading()

    @property
    def _can_start_request(self) -> bool:
        assert self._response_sender is not None
        return (
            (not self._uncompleted or self._is_pipelined(self._pending_frames[0]))
            and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX
            and self._unsent_bytes < UNSENT_BYTES_MAX
            and self._response_sender.is_empty
        )

    def _is_pipelined(self, frame: memoryview) -> bool:
        """Returns whether the request may start although earlier requests have not completed."""
        api_key = _read_api_key(frame)
        return not self._unreleased and api_key == self._current_api_key and api_key in self._pipelined_api_keys

    def _start_request(self, frame: memoryview) -> None:
        assert self._process_request is not None
        slot = _ResponseSlot(len(frame))
        self._in_flight.append(slot)
        self._uncompleted += 1
        self._unreleased += 1
        self._current_api_key = _read_api_key(frame)
        buffer = frame.obj if len(frame) >= LARGE_FRAME_BYTES_MIN else None

        def release() -> None:
            nonlocal buffer
            if slot.is_released:
                return
            slot.is_released = True
            self._unreleased -= 1
            self._release_memory(slot.reserved_bytes)
            # Drop the reference to the frame, because the request may wait for days after it has released the frame.
            released, buffer = buffer, None
            if isinstance(released, bytearray):
                self._buffers.release(released)
            if self._pending_frames and not self._is_advancing:
                self._schedule_advance()

        def done(parts: Sequence[Part] | None, error: BaseException | None) -> None:
            self._tasks.pop(slot, None)
            release()
            self._complete_request(slot, parts, error)

        request_processing = self._process_request(frame, release)
        del frame
        task = start_eagerly(request_processing, done)
        if task is not None:
            self._tasks[slot] = task

    def _complete_request(self, slot: _ResponseSlot, parts: Sequence[Part] | None, error: BaseException | None) -> None:
        self._uncompleted -= 1
        slot.is_ready = True
        slot.parts = parts
        if error is not None:
            slot.close_reason = str(error) or type(error).__name__
            self._close_after_responses(slot.close_reason)
            self._discard_pending_frames()
            if not isinstance(error, CloseConnectionError | asyncio.CancelledError):
                log.error("request failed, closing the connection", peer=self.peer[0], reason=repr(error))
        for part in parts or ():
            if not isinstance(part, FileSlice):
                slot.unsent_bytes += len(part)
        self._unsent_bytes += slot.unsent_bytes
        if len(self._in_flight) == 1:
            self._advance()
        elif self._in_flight and self._in_flight[0].is_ready:
            # Wait for the next iteration of the event loop, because one flush of a log often completes many requests.
            # All their responses are then sent together.
            self._schedule_advance()

    def _schedule_advance(self) -> None:
        if not self._is_advance_scheduled:
            self._is_advance_scheduled = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _send_ready_responses(self) -> None:
        assert self._response_sender is not None
        slots, parts = self._in_flight, list[Part]()
        if not self._response_sender.is_empty:
            return
        while slots and slots[0].is_ready and slots[0].close_reason is None:
            slot = slots.popleft()
            self._unsent_bytes -= slot.unsent_bytes
            if slot.parts is not None:
                parts.extend(slot.parts)
        if parts:
            self._response_sender.send(parts)

    def _on_drained(self) -> None:
        self._record_activity()
        self._advance()

    # Pausing

    def _update_reading(self) -> None:
        is_large = self._frames.is_frame_large
        # A connection without reserved memory can send a small request even if the pool is exhausted, because the
        # requests that exhaust the pool may be waiting for fetches of other nodes. Each connection therefore exceeds
        # the limit of the pool by at most one read.
        must_wait = self._memory_pool.is_exhausted and (is_large or self._reserved_bytes > 0)
        if must_wait and not self._is_waiting_for_memory:
            self._is_waiting_for_memory = True
            self._memory_pool.notify_when_available(self._on_memory_available)
        if is_large and self._partial_frames.must_pause(self):
            must_wait = True
        is_full = (
            self._pending_frames or self._close_reason is not None or len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX
        )
        should_pause = bool(is_full) or must_wait or self._is_draining
        if should_pause != self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = should_pause
            now = asyncio.get_running_loop().time()
            if should_pause:
                self._paused_at = now
                self._transport.pause_reading()
            else:
                # The duration of the pause is not idle time of the client.
                self.last_active_s = min(now, self.last_active_s + now - self._paused_at)
                self._transport.resume_reading()

    def _release_memory(self, size: int) -> None:
        self._reserved_bytes -= size
        self._memory_pool.release(size)
        if self._is_waiting_for_memory and not self._reserved_bytes:
            self.resume_reading()

    def _on_memory_available(self) -> None:
        self._is_waiting_for_memory = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._update_reading()

    # Closing

    @property
    def _is_finished(self) -> bool:
        """Whether the connection starts no more requests and has sent all responses."""
        assert self._response_sender is not None
        if not self._response_sender.is_empty:
            return False
        if self._in_flight:
            return self._in_flight[0].close_reason is not None
        return (self._close_reason is not None or self._is_draining) and not self._pending_frames

    @property
    def pending_count(self) -> int:
        """The number of requests that were received and have not started."""
        return len(self._pending_frames)

    @property
    def in_flight_count(self) -> int:
        """The number of requests that have started and whose responses are not sent."""
        return len(self._in_flight)

    def is_expired(self, now: float, idle_s: float) -> bool:
        """Returns whether the client was idle for too long.

        An idle client sends no request, sends only a part of a request, or does not read its responses. A connection
        with a request in flight does not expire, because a JoinGroup may wait for days. It does expire if the client
        has closed its sending side, or has sent more requests, because they hold memory and stop the reading, so that
        the end of the client is not noticed. Kafka expires connections with requests in flight, too.
        """
        if self._response_sender is None:
            return False
        if self._response_sender.sent_bytes != self._last_sent_bytes:
            self._last_sent_bytes = self._response_sender.sent_bytes
            self.last_active_s = now
        # A connection that holds memory for which other connections wait has a shorter idle timeout.
        blocks_others = self._reserved_bytes > 0 and self._memory_pool.is_exhausted
        if not self._response_sender.is_empty or self._pending_frames:
            return self.last_active_s + (min(idle_s, STALL_TIMEOUT_S) if blocks_others else idle_s) < now
        if self._in_flight and not self._is_draining:
            return False
        if not self._frames.is_between_frames and not self._is_paused:
            idle_s = min(idle_s, STALL_TIMEOUT_S)
        return self.last_active_s + idle_s < now

    def drain(self) -> None:
        """Starts no more requests and closes the connection after the responses in flight."""
        self._is_draining = True
        self._discard_pending_frames()
        self._advance()

    def _discard_pending_frames(self) -> None:
        size = sum(map(len, self._pending_frames))
        self._pending_frames.clear()
        self._release_memory(size)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close_after_responses(self, reason: str) -> None:
        if self._close_reason is None and not self._is_draining:
            log.warning("closing the connection", peer=f"{self.peer[0]}:{self.peer[1]}", reason=reason)
        self._close_reason = self._close_reason or reason

    def _record_activity(self) -> None:
        self.last_active_s = asyncio.get_running_loop().time()


def _read_api_key(frame: memoryview) -> int:
    """Returns the API key, with which every request starts. If the frame is too short, the result has no meaning."""
    return int.from_bytes(frame[:2], "big")
