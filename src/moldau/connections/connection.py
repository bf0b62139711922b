"""One client connection: requests are started in the order they come and answered in that order, however
long each takes."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from moldau.connections.budget import Budget
from moldau.connections.frames import FrameReader, FrameTooLargeError
from moldau.connections.sender import Part, Sender
from moldau.eager import start_now
from moldau.observe.logging import get_logger

log = get_logger(__name__)

REQUESTS_IN_FLIGHT_MAX = 512
"""Requests of one connection being worked on before it is read no further."""

Answer = Callable[[memoryview], Coroutine[Any, Any, Sequence[Part] | None]]
"""Takes a frame, gives the parts of the answer's frame, or None where the protocol has no answer (acks=0)."""


class CloseConnectionError(Exception):
    """The request cannot be answered, and Kafka closes the connection then; the message says why."""


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("is_ready", "parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_ready = False
        self.parts: Sequence[Part] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        *,
        shared_buffer: memoryview,
        frame_bytes_max: int,
        budget: Budget,
        opened: "Callable[[Connection], Answer | None]",
        closed: "Callable[[Connection], None]",
    ) -> None:
        self._frames = FrameReader(shared_buffer, frame_bytes_max)
        self._budget = budget
        self._opened = opened
        self._closed = closed
        self._answer: Answer | None = None
        self._slots: deque[_Slot] = deque()
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self._is_paused = False
        self._waits_for_budget = False
        self._is_closing = False
        self._flush_is_due = False
        self._tasks: dict[_Slot, asyncio.Task[Any]] = {}
        """Kept so that nobody collects a task that is only waited for."""
        self._on_closed: list[Callable[[], None]] = []
        self.peer: tuple[str, int] = ("", 0)
        self.active_at: float = 0.0
        """The loop's time of the last byte in."""

    def when_closed(self, call: Callable[[], None]) -> None:
        self._on_closed.append(call)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(peer[0]), int(peer[1]))
        self.active_at = asyncio.get_running_loop().time()
        self._answer = self._opened(self)
        if self._answer is None:
            self._transport.abort()
            return
        self._sender = Sender(self._transport, self._flush)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = asyncio.get_running_loop().time()
        # The answers to requests that arrived together leave together: one call to the kernel for all of
        # them.
        self._flush_is_due = True
        try:
            for frame in self._frames.received(nbytes):
                self._begin(frame)
        except FrameTooLargeError as error:
            self._close_because(str(error))
        self._flush()

    def eof_received(self) -> bool:
        # A client that has said its last word still wants the answers; the connection closes when they have
        # left.
        self._is_closing = True
        self._flush()
        return bool(self._slots)

    def pause_writing(self) -> None:
        assert self._sender is not None
        self._sender.pause_writing()

    def resume_writing(self) -> None:
        assert self._sender is not None
        self._sender.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        if self._sender is not None:
            self._sender.close()
        # Requests under way are not cancelled: what was begun on a log is finished, only the answer goes
        # nowhere.
        for slot in self._slots:
            self._budget.give_back(slot.size)
        self._slots.clear()
        for call in self._on_closed:
            call()
        self._closed(self)

    # Requests and answers

    def _begin(self, frame: memoryview) -> None:
        if self._is_closing:
            return
        assert self._answer is not None
        slot = _Slot(len(frame))
        self._slots.append(slot)
        self._budget.take(slot.size)
        if len(self._slots) >= REQUESTS_IN_FLIGHT_MAX or self._budget.is_spent:
            self._pause()

        def done(parts: Sequence[Part] | None, error: BaseException | None) -> None:
            self._tasks.pop(slot, None)
            self._ended(slot, parts, error)

        task = start_now(self._answer(frame), done)
        if task is not None:
            self._tasks[slot] = task

    def _ended(self, slot: _Slot, parts: Sequence[Part] | None, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            return
        if error is not None:
            if not isinstance(error, CloseConnectionError):
                log.error("a request could not be answered", peer=self.peer[0], why=repr(error))
            self._close_because(str(error) or type(error).__name__)
            return
        slot.is_ready = True
        slot.parts = parts
        if self._flush_is_due or not self._slots or self._slots[0] is not slot:
            return
        if len(self._slots) == 1:
            self._flush()
        else:
            # Others may be ready in the same turn of the loop: one sync often completes many.
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Sends what is ready, in order, as long as what was sent before has left."""
        self._flush_is_due = False
        sender, slots = self._sender, self._slots
        if slots and slots[0].is_ready and sender is not None and sender.is_empty:
            parts: list[Part] = []
            while slots and slots[0].is_ready:
                slot = slots.popleft()
                self._budget.give_back(slot.size)
                if slot.parts is not None:
                    parts.extend(slot.parts)
            if parts:
                sender.send(parts)
        if self._is_paused:
            self._resume()
        if self._is_closing and not slots and sender is not None and sender.is_empty:
            self.close()

    # Reading no more for a while

    def _pause(self) -> None:
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_closing or len(self._slots) >= REQUESTS_IN_FLIGHT_MAX // 2:
            return
        if self._budget.is_spent:
            if not self._waits_for_budget:
                self._waits_for_budget = True
                self._budget.wait(self._budget_has_room)
            return
        self._is_paused = False
        assert self._transport is not None
        self._transport.resume_reading()

    def _budget_has_room(self) -> None:
        self._waits_for_budget = False
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._resume()

    # Ending

    @property
    def is_idle(self) -> bool:
        return not self._slots and self._frames.is_idle

    def finish(self) -> None:
        """Takes no more requests; closes once those under way are answered."""
        self._is_closing = True
        self._pause()
        self._flush()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close_because(self, why: str) -> None:
        if not self._is_closing:
            log.warning("connection closed", peer=f"{self.peer[0]}:{self.peer[1]}", why=why)
        self._is_closing = True
        self.close()
