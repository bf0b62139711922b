"""Getting answers out: small ones through the transport, stored batches from file to socket inside the
kernel.

Answers leave whole and in order. While the kernel takes no more bytes nothing is queued but references to
files.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from moldau.logs.store import FileSlice
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer

log = get_logger(__name__)

Part = Buffer | FileSlice

_SENDFILE_MAX = 4 * 1024 * 1024
"""Bytes for one client before others get their turn."""
_JOIN_MAX = 64 * 1024
"""Up to here it is cheaper to copy small buffers together than to call the kernel for each."""


class Sender:
    """Sends the answers of one connection. `drained` is called when everything given to it has left."""

    def __init__(self, transport: asyncio.Transport, drained: Callable[[], None]) -> None:
        self._transport = transport
        self._drained = drained
        # With a limit of zero the transport says when its buffer is empty: only then may file bytes go
        # past it.
        transport.set_write_buffer_limits(high=0)
        self._parts: deque[Part] = deque()
        """What is to be sent past the transport, or waits for the transport to be empty."""
        self._socket: socket.socket | None = None
        self._waits_for_socket = False
        self._closed = False
        self._handed_on_bytes = 0
        """Bytes that the transport or the kernel has taken."""

    @property
    def sent_bytes(self) -> int:
        """How many bytes have left so far: as long as it grows, the client reads."""
        return self._handed_on_bytes - self._transport.get_write_buffer_size()

    @property
    def is_empty(self) -> bool:
        return not self._parts and self._transport.get_write_buffer_size() == 0

    def send(self, parts: Sequence[Part]) -> None:
        if self._parts or any(isinstance(part, FileSlice) for part in parts):
            self._parts.extend(parts)
            self._go_on()
        else:
            self._write(cast(Sequence[Buffer], parts))

    def _write(self, buffers: Sequence[Buffer]) -> None:
        # Not `writelines`: some releases of asyncio do not say when what it buffered has left.
        size = sum(map(len, buffers))
        self._handed_on_bytes += size
        if len(buffers) > 1 and size <= _JOIN_MAX:
            self._transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                self._transport.write(buffer)

    def resume_writing(self) -> None:
        self._go_on()
        if self.is_empty:
            self._drained()

    def _go_on(self) -> None:
        if self._closed or self._waits_for_socket or self._transport.get_write_buffer_size():
            return
        try:
            if self._past_the_transport():
                self._send_past()
            else:
                self._send_as_buffers()
        except OSError as error:
            if not isinstance(error, ConnectionError):
                log.error("stored records could not be sent", why=str(error))
            self._transport.abort()

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
        while parts and not self._transport.get_write_buffer_size():
            part = parts.popleft()
            buffer = part.read() if isinstance(part, FileSlice) else part
            self._handed_on_bytes += len(buffer)
            self._transport.write(buffer)

    def _send_past(self) -> None:
        assert self._socket is not None
        if self._push(self._socket):
            return
        self._waits_for_socket = True
        asyncio.get_running_loop().add_writer(self._socket.fileno(), self._socket_is_writable)

    def _push(self, out: socket.socket) -> bool:
        """Sends until all has left (True), or the kernel or the other connections want a pause (False)."""
        parts, turn = self._parts, _SENDFILE_MAX
        while parts:
            if turn <= 0:
                return False
            part = parts[0]
            try:
                sent = self._push_part(out, part, turn, is_last=len(parts) == 1)
            except (BlockingIOError, InterruptedError):
                return False
            turn -= sent
            self._handed_on_bytes += sent
            if isinstance(part, FileSlice):
                rest: Part = FileSlice(part.file, part.position + sent, part.size - sent)
                is_sent = sent == part.size
            else:
                rest = memoryview(part)[sent:]
                is_sent = sent == len(part)
            if is_sent:
                parts.popleft()
            else:
                parts[0] = rest
        return True

    def _push_part(self, out: socket.socket, part: Part, size_max: int, *, is_last: bool) -> int:
        if not isinstance(part, FileSlice):
            return out.send(part, 0 if is_last else socket.MSG_MORE)
        descriptor = part.file.descriptor
        assert descriptor is not None
        sent = os.sendfile(out.fileno(), descriptor, part.position, min(part.size, size_max))
        if sent == 0 and part.size:
            raise OSError(errno.EIO, "a file is shorter than what was promised of it", part.file.path)
        return sent

    def _socket_is_writable(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._waits_for_socket = False
        self._go_on()
        if self.is_empty and not self._closed:
            self._drained()

    def close(self) -> None:
        """The connection is gone: lets go of files and of the descriptor."""
        self._closed = True
        self._parts.clear()
        if self._socket is not None:
            if self._waits_for_socket:
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
