"""Getting answers out: small ones through the transport, stored batches from file to socket inside the
kernel.

Answers leave whole and in order. While the kernel takes no more bytes nothing is queued but references to
files.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from moldau.logs.store import FileSlice
from moldau.world.disk import Buffer

Part = Buffer | FileSlice

_SENDFILE_MAX = 4 * 1024 * 1024
"""Bytes for one client before others get their turn."""


class Sender:
    """Sends the answers of one connection. `drained` is called whenever everything given to it has left."""

    def __init__(self, transport: asyncio.Transport, drained: Callable[[], None]) -> None:
        self._transport = transport
        self._drained = drained
        # With a limit of zero the transport says when its buffer is empty: only then may file bytes go past
        # it.
        transport.set_write_buffer_limits(high=0)
        self._transport_is_empty = True
        self._parts: deque[Part] = deque()
        """What is to be sent past the transport, or waits for the transport to be empty."""
        self._socket: socket.socket | None = None
        self._waits_for_socket = False
        self._closed = False

    @property
    def is_empty(self) -> bool:
        return not self._parts and self._transport_is_empty

    def send(self, parts: Sequence[Part]) -> None:
        if self._parts:
            self._parts.extend(parts)
        elif any(isinstance(part, FileSlice) for part in parts):
            self._parts.extend(parts)
            self._go_on()
        else:
            self._write(cast(Sequence[Buffer], parts))

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def pause_writing(self) -> None:
        self._transport_is_empty = False

    def resume_writing(self) -> None:
        self._transport_is_empty = True
        self._go_on()
        if not self._parts:
            self._drained()

    def _go_on(self) -> None:
        if self._closed or not self._transport_is_empty or self._waits_for_socket or not self._parts:
            return
        if self._past_the_transport():
            self._send_past()
        else:
            self._send_as_buffers()

    def _past_the_transport(self) -> bool:
        if self._socket is not None:
            return True
        if any(isinstance(part, FileSlice) and part.file.descriptor is None for part in self._parts):
            return False
        connected = self._transport.get_extra_info("socket")
        if connected is None or self._transport.get_extra_info("sslcontext") is not None:
            return False
        # A descriptor of our own: loops do not let anybody else watch one that a transport owns.
        self._socket = socket.socket(fileno=os.dup(connected.fileno()))
        return True

    def _send_as_buffers(self) -> None:
        parts = self._parts
        while parts and self._transport_is_empty:
            part = parts.popleft()
            self._transport.write(part.read() if isinstance(part, FileSlice) else part)

    def _send_past(self) -> None:
        assert self._socket is not None
        try:
            blocked = self._push(self._socket)
        except (BrokenPipeError, ConnectionError):
            self._transport.abort()
            return
        if blocked:
            self._waits_for_socket = True
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._socket_is_writable)
        elif not self._parts:
            self._drained()

    def _push(self, out: socket.socket) -> bool:
        """Sends until all has left (False), or the kernel or the turn wants a pause (True)."""
        parts, turn = self._parts, _SENDFILE_MAX
        while parts:
            part = parts[0]
            try:
                if isinstance(part, FileSlice):
                    descriptor = part.file.descriptor
                    assert descriptor is not None
                    sent = os.sendfile(out.fileno(), descriptor, part.position, min(part.size, turn))
                    if sent == 0:
                        raise ConnectionError("a file is shorter than what was promised of it")
                    turn -= sent
                    if sent < part.size:
                        parts[0] = FileSlice(part.file, part.position + sent, part.size - sent)
                        if turn <= 0:
                            return True
                        continue
                else:
                    more = socket.MSG_MORE if len(parts) > 1 else 0
                    sent = out.send(part, more)
                    if sent < len(part):
                        parts[0] = memoryview(part)[sent:]
                        continue
            except (BlockingIOError, InterruptedError):
                return True
            parts.popleft()
        return False

    def _socket_is_writable(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._waits_for_socket = False
        self._go_on()

    def close(self) -> None:
        """The connection is gone: lets go of files and of the descriptor."""
        self._closed = True
        self._parts.clear()
        if self._socket is not None:
            if self._waits_for_socket:
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
