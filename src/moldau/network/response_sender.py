"""Sends responses. Buffers go through the transport, and stored batches from file to socket with sendfile.

Responses are sent completely and in order. While the socket is not writable, stored batches are queued as references to
files, so they take no memory.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from moldau.logs.store import FileSlice
from moldau.observe.logging import get_logger
from moldau.platform.disk import Buffer

log = get_logger(__name__)

Part = Buffer | FileSlice

_SENDFILE_BYTES_MAX = 4 * 1024 * 1024
"""The maximum number of bytes that one connection sends in one iteration of the event loop."""
_COALESCE_BYTES_MAX = 64 * 1024
"""Up to this total size, joining small buffers is cheaper than one system call per buffer."""


class ResponseSender:
    """Sends the responses of one connection and calls `on_drained` when all are sent."""

    def __init__(self, transport: asyncio.Transport, on_drained: Callable[[], None]) -> None:
        self._transport = transport
        self._on_drained = on_drained
        # Sendfile must not overtake buffered bytes, so let the transport call resume_writing when its buffer is empty.
        transport.set_write_buffer_limits(high=0)
        self._parts: deque[Part] = deque()
        """Parts that are not sent yet. They wait until the transport's buffer is empty or the socket is writable."""
        self._socket: socket.socket | None = None
        self._is_awaiting_writable = False
        self._is_closed = False
        self._accepted_bytes = 0
        """Bytes that the transport or the kernel has accepted."""

    @property
    def sent_bytes(self) -> int:
        """The number of bytes sent so far. The number grows as long as the client reads."""
        return self._accepted_bytes - self._transport.get_write_buffer_size()

    @property
    def is_empty(self) -> bool:
        return not self._parts and self._transport.get_write_buffer_size() == 0

    def send(self, parts: Sequence[Part]) -> None:
        if self._parts or FileSlice in map(type, parts):
            self._parts.extend(parts)
            self._send_pending()
            return
        buffers: Sequence[Buffer] = parts  # type: ignore[assignment]
        size = sum(map(len, buffers))
        self._accepted_bytes += size
        if len(buffers) > 1 and size <= _COALESCE_BYTES_MAX:
            self._transport.write(b"".join(buffers))
        else:
            # Do not use `writelines`, because after it some releases of asyncio do not call resume_writing.
            for buffer in buffers:
                self._transport.write(buffer)

    def resume_writing(self) -> None:
        self._send_pending()
        if self.is_empty:
            self._on_drained()

    def _send_pending(self) -> None:
        if self._is_closed or self._is_awaiting_writable or self._transport.get_write_buffer_size():
            return
        try:
            if not self._can_bypass_transport():
                self._send_through_transport()
            elif self._socket is not None and not self._send_parts(self._socket):
                self._is_awaiting_writable = True
                asyncio.get_running_loop().add_writer(self._socket.fileno(), self._on_socket_writable)
        except OSError as error:
            if not isinstance(error, ConnectionError):
                log.error("could not send stored records, aborting the connection", reason=str(error))
            self._transport.abort()

    def _can_bypass_transport(self) -> bool:
        if self._socket is not None:
            return True
        if any(isinstance(part, FileSlice) and part.file.descriptor is None for part in self._parts):
            return False
        connected = self._transport.get_extra_info("socket")
        if connected is None or self._transport.get_extra_info("sslcontext") is not None:
            return False
        # Duplicate the descriptor, because event loops reject add_writer for a descriptor that a transport owns.
        self._socket = socket.socket(fileno=os.dup(connected.fileno()))
        return True

    def _send_through_transport(self) -> None:
        parts = self._parts
        while parts and not self._transport.get_write_buffer_size():
            part = parts.popleft()
            buffer = part.read() if isinstance(part, FileSlice) else part
            self._accepted_bytes += len(buffer)
            self._transport.write(buffer)

    def _send_parts(self, out: socket.socket) -> bool:
        """Returns whether all parts were sent. Stops if the socket is full or after `_SENDFILE_BYTES_MAX` bytes."""
        parts, bytes_left = self._parts, _SENDFILE_BYTES_MAX
        while parts:
            if bytes_left <= 0:
                return False
            part = parts[0]
            try:
                sent = self._send_part(out, part, bytes_left, is_last=len(parts) == 1)
            except (BlockingIOError, InterruptedError):
                return False
            bytes_left -= sent
            self._accepted_bytes += sent
            if sent == (part.size if isinstance(part, FileSlice) else len(part)):
                parts.popleft()
            elif isinstance(part, FileSlice):
                parts[0] = FileSlice(part.file, part.position + sent, part.size - sent)
            else:
                parts[0] = memoryview(part)[sent:]
        return True

    def _send_part(self, out: socket.socket, part: Part, size_max: int, *, is_last: bool) -> int:
        if not isinstance(part, FileSlice):
            return out.send(part, 0 if is_last else socket.MSG_MORE)
        descriptor = part.file.descriptor
        assert descriptor is not None
        sent = os.sendfile(out.fileno(), descriptor, part.position, min(part.size, size_max))
        if sent == 0 and part.size:
            raise OSError(errno.EIO, "the file is shorter than the response says", part.file.path)
        return sent

    def _on_socket_writable(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._is_awaiting_writable = False
        self._send_pending()
        if self.is_empty and not self._is_closed:
            self._on_drained()

    def close(self) -> None:
        """Drops all parts and closes the duplicated socket. Called when the connection was lost."""
        self._is_closed = True
        self._parts.clear()
        if self._socket is not None:
            if self._is_awaiting_writable:
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
