"""One client connection: requests are started in the order they come and answered in that order, however
long each takes.

    bytes → frames → waiting → under way (a slot each, in order) → answers → sender

Every stage is bounded, and whatever is full holds back the stage before it: at the end of the chain the
connection is not read for a while.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from moldau.eager import start_now
from moldau.logs.store import FileSlice
from moldau.network.budget import Budget
from moldau.network.buffers import BufferPool
from moldau.network.frames import LARGE_FROM, FrameReader, FrameTooLargeError
from moldau.network.large_frames import LargeFrames
from moldau.network.sender import Part, Sender
from moldau.observe.logging import get_logger

log = get_logger(__name__)

REQUESTS_IN_FLIGHT_MAX = 512
"""Requests of one connection being worked on."""
REQUESTS_PER_TURN_MAX = 16
"""Requests begun before other connections get their turn."""
UNSENT_BYTES_MAX = 1024 * 1024
"""Bytes of answers that are ready and wait for those before them, before no more requests are begun."""
STALLED_AFTER_S = 30.0
"""A client that stops in the middle of a request for so long is sent home."""

Release = Callable[[], None]
Answer = Callable[[memoryview, Release], Coroutine[Any, Any, Sequence[Part] | None]]
"""Takes a frame, gives the parts of the answer's frame, or None where the protocol has no answer (acks=0).
Calls the second argument as soon as it needs the frame's bytes no longer, if that is before it ends."""


class CloseConnectionError(Exception):
    """The request cannot be answered, and Kafka closes the connection then; the message says why."""


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("charge", "closes_because", "is_ready", "parts", "unsent_bytes")

    def __init__(self, charge: int) -> None:
        self.charge = charge
        """Bytes of the budget that its frame takes up."""
        self.is_ready = False
        self.parts: Sequence[Part] | None = None
        self.unsent_bytes = 0
        self.closes_because: str | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        *,
        shared_buffer: memoryview,
        buffers: BufferPool,
        frame_bytes_max: int,
        budget: Budget,
        large_frames: LargeFrames,
        opened: "Callable[[Connection], Answer | None]",
        closed: "Callable[[Connection], None]",
    ) -> None:
        self._frames = FrameReader(shared_buffer, buffers, frame_bytes_max)
        self._buffers = buffers
        self._budget = budget
        self._large_frames = large_frames
        self._opened = opened
        self._closed = closed
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self._waiting: deque[memoryview] = deque()
        """Frames whose requests have not begun. What was received at once fits one shared buffer."""
        self._slots: deque[_Slot] = deque()
        self._tasks: dict[_Slot, asyncio.Task[Any]] = {}
        """Kept so that nobody collects a task that is only waited for."""
        self._unsent_bytes = 0
        self._held_bytes = 0
        """What the frames of this connection take up of the budget."""
        self._sent_bytes = 0
        """What had left when it was last asked whether the client is still there."""
        self._paused_at: float = 0.0
        """Loop time since when it is not read, if it is not."""
        self._refusal: str | None = None
        """Why nothing more is taken from this client: it is closed when the answers under way have left."""
        self._is_ending = False
        self._is_paused = False
        self._is_advancing = False
        self._turn_is_due = False
        self._waits_for_budget = False
        self._on_closed: list[Callable[[], None]] = []
        self.peer: tuple[str, int] = ("", 0)
        self.active_at: float = 0.0
        """The loop's time when bytes last came or left."""

    def when_closed(self, call: Callable[[], None]) -> None:
        self._on_closed.append(call)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(peer[0]), int(peer[1]))
        self._note_activity()
        self._answer = self._opened(self)
        if self._answer is None:
            self._transport.abort()
            return
        self._sender = Sender(self._transport, self._drained)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._note_activity()
        if self._is_ending:
            return
        was_large = self._frames.large_frame_size
        try:
            for frame in self._frames.received(nbytes):
                self._budget.take(len(frame))
                self._held_bytes += len(frame)
                self._waiting.append(frame)
        except FrameTooLargeError as error:
            self._refuse(str(error))
        if self._frames.large_frame_size:
            self._large_frames.received(self, nbytes)
        elif was_large:
            self._large_frames.ended(self)
        self._advance()

    def eof_received(self) -> bool:
        # A client that has said its last word still wants the answers.
        self._is_ending = True
        self._advance()
        return not self._is_done

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        # Requests under way are not cancelled: what was begun on a log is finished, only the answer goes
        # nowhere. Their frames are given back as they end.
        self._is_ending = True
        if self._sender is not None:
            self._sender.close()
        self._large_frames.ended(self)
        self._drop_waiting()
        self._slots.clear()
        for call in self._on_closed:
            call()
        self._closed(self)

    # Requests and answers

    def _advance(self) -> None:
        """Does what can be done now: begins requests that wait, sends answers that are ready, and reads on or
        not."""
        if self._is_advancing or self._transport is None or self._sender is None:
            return
        self._is_advancing = True
        self._turn_is_due = False
        begun = 0
        while self._waiting and begun < REQUESTS_PER_TURN_MAX and self._may_begin:
            self._begin(self._waiting.popleft())
            begun += 1
        self._send_ready()
        if self._waiting and self._may_begin:
            self._take_another_turn()
        self._is_advancing = False
        if self._is_done:
            self.close()
        else:
            self._read_or_pause()

    @property
    def _may_begin(self) -> bool:
        assert self._sender is not None
        return (
            len(self._slots) < REQUESTS_IN_FLIGHT_MAX
            and self._unsent_bytes < UNSENT_BYTES_MAX
            and self._sender.is_empty
        )

    def _begin(self, frame: memoryview) -> None:
        assert self._answer is not None
        slot = _Slot(len(frame))
        self._slots.append(slot)
        buffer = frame.obj if len(frame) >= LARGE_FROM else None

        def release() -> None:
            # Whoever waits for days after this must not keep the frame for so long.
            nonlocal buffer
            charge, slot.charge = slot.charge, 0
            self._give_back(charge)
            released, buffer = buffer, None
            if isinstance(released, bytearray):
                self._buffers.give_back(released)

        def done(parts: Sequence[Part] | None, error: BaseException | None) -> None:
            self._tasks.pop(slot, None)
            release()
            self._ended(slot, parts, error)

        answering = self._answer(frame, release)
        del frame
        task = start_now(answering, done)
        if task is not None:
            self._tasks[slot] = task

    def _ended(self, slot: _Slot, parts: Sequence[Part] | None, error: BaseException | None) -> None:
        slot.is_ready = True
        slot.parts = parts
        if error is not None:
            slot.closes_because = str(error) or type(error).__name__
            self._refuse(slot.closes_because)
            self._drop_waiting()
            if not isinstance(error, CloseConnectionError | asyncio.CancelledError):
                log.error("a request could not be answered", peer=self.peer[0], why=repr(error))
        for part in parts or ():
            if not isinstance(part, FileSlice):
                slot.unsent_bytes += len(part)
        self._unsent_bytes += slot.unsent_bytes
        if len(self._slots) == 1:
            self._advance()
        elif self._slots and self._slots[0].is_ready:
            # Others may be ready in the same turn of the loop, since one sync often completes many; their
            # answers leave together.
            self._take_another_turn()

    def _take_another_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _send_ready(self) -> None:
        assert self._sender is not None
        slots, parts = self._slots, list[Part]()
        if not self._sender.is_empty:
            return
        while slots and slots[0].is_ready and slots[0].closes_because is None:
            slot = slots.popleft()
            self._unsent_bytes -= slot.unsent_bytes
            if slot.parts is not None:
                parts.extend(slot.parts)
        if parts:
            self._sender.send(parts)

    def _drained(self) -> None:
        self._note_activity()
        self._advance()

    # Reading no more for a while

    def _read_or_pause(self) -> None:
        is_large = self._frames.large_frame_size > 0
        # Who holds nothing of a spent budget may still ask for something small: other nodes do, and the requests that
        # hold it may be waiting for just that. So each connection adds one read at most.
        must_wait = self._budget.is_spent and (is_large or self._held_bytes > 0)
        if must_wait and not self._waits_for_budget:
            self._waits_for_budget = True
            self._budget.wait(self._budget_has_room)
        if is_large and self._large_frames.is_held_back(self):
            must_wait = True
        is_full = self._waiting or self._refusal is not None or len(self._slots) >= REQUESTS_IN_FLIGHT_MAX
        should_pause = bool(is_full) or must_wait or self._is_ending
        if (
            should_pause != self._is_paused
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._is_paused = should_pause
            now = asyncio.get_running_loop().time()
            if should_pause:
                self._paused_at = now
                self._transport.pause_reading()
            else:
                # While it was not read a client could not show that it is there.
                self.active_at = min(now, self.active_at + now - self._paused_at)
                self._transport.resume_reading()

    def _give_back(self, size: int) -> None:
        self._held_bytes -= size
        self._budget.give_back(size)
        if self._waits_for_budget and not self._held_bytes:
            self.may_read_on()

    def _budget_has_room(self) -> None:
        self._waits_for_budget = False
        self.may_read_on()

    def may_read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._read_or_pause()

    # Ending

    @property
    def _is_done(self) -> bool:
        """Whether nothing will come any more and everything has left."""
        assert self._sender is not None
        if not self._sender.is_empty:
            return False
        if self._slots:
            return self._slots[0].closes_because is not None
        return (self._refusal is not None or self._is_ending) and not self._waiting

    def may_be_closed(self, now: float, idle_s: float) -> bool:
        """Whether the client has been silent for too long: between requests, in the middle of one, since it hung up
        while a request waits, or since it last took any of its answers. (Who joins a group says itself for how many
        days it would wait.)"""
        if self._sender is None:
            return False
        if self._sender.sent_bytes != self._sent_bytes:
            self._sent_bytes = self._sender.sent_bytes
            self.active_at = now
        # Nothing of it is begun before its answers have left, and who needs the room that it takes up waits too.
        holds_up_others = self._held_bytes > 0 and self._budget.is_spent
        is_full = bool(self._waiting) and self._unsent_bytes >= UNSENT_BYTES_MAX
        if not self._sender.is_empty or (is_full and holds_up_others):
            return self.active_at + (min(idle_s, STALLED_AFTER_S) if holds_up_others else idle_s) < now
        if self._waiting:
            return False
        if self._slots and not self._is_ending:
            return False
        if not self._frames.is_between_frames and not self._is_paused:
            idle_s = min(idle_s, STALLED_AFTER_S)
        return self.active_at + idle_s < now

    def finish(self) -> None:
        """Takes no more requests; closes once those under way are answered."""
        self._is_ending = True
        self._drop_waiting()
        self._advance()

    def _drop_waiting(self) -> None:
        dropped = sum(map(len, self._waiting))
        self._waiting.clear()
        self._give_back(dropped)

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        if self._refusal is None and not self._is_ending:
            log.warning("connection closed", peer=f"{self.peer[0]}:{self.peer[1]}", why=why)
        self._refusal = self._refusal or why

    def _note_activity(self) -> None:
        self.active_at = asyncio.get_running_loop().time()
