"""One end of a simulated TCP connection, as an asyncio transport.

Packets may arrive late, twice and in any order. The receiver orders the packets and drops duplicates. Reads return
chunks of other sizes than the writes. A writer that is faster than its reader is paused. A close delivers all written
data, and a reset drops undelivered data.
"""

import asyncio
import contextvars
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.testing.simulation.platform.loop import Incarnation

if TYPE_CHECKING:
    from moldau.testing.simulation.platform.network import SimulatedNetwork

Address = tuple[str, int]

READ_BYTES_MAX = 256 * 1024
SEGMENT_BYTES_MAX = 64 * 1024
WRITE_BUFFER_BYTES_HIGH = 64 * 1024

FIN = b""
"""The end of the stream, sent as a packet without data."""


class SimulatedTransport(asyncio.Transport):
    def __init__(
        self,
        network: "SimulatedNetwork",
        incarnation: Incarnation,
        context: contextvars.Context,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__()
        self.context = context
        """The contextvars context of the protocol's callbacks, which tells the incarnation that owns the callbacks."""
        self.host = incarnation.host
        self.peer: SimulatedTransport
        self.is_vanished = False
        self.on_lost: Callable[[SimulatedTransport], None] | None = None
        self.number = network.register(self)
        self._network = network
        self._loop = network.loop
        self._local = local
        self._remote = remote
        self._protocol: asyncio.BaseProtocol
        self._buffered_protocol: asyncio.BufferedProtocol | None = None
        """The protocol if it provides the buffers."""
        self._window = network.random.randint(network.settings.window_bytes_min, network.settings.window_bytes_max)
        self._unsent = bytearray()
        self._in_flight = 0
        self._packets_sent = 0
        self._packets_read = 0
        """The number of packets from this end that the peer has received in order."""
        self._out_of_order: dict[int, bytes] = {}
        """Packets from this end that the peer has received before an earlier packet, by packet number."""
        self._is_eof_requested = False
        self._fin_sent = False
        self._writing_paused = False
        self._high = WRITE_BUFFER_BYTES_HIGH
        self._low = WRITE_BUFFER_BYTES_HIGH // 4
        self._received = bytearray()
        self._fin_received = False
        self._is_eof_delivered = False
        self._reading_paused = False
        self._read_scheduled = False
        self._closing = False
        self._is_lost = False

    def open(self, protocol: asyncio.BaseProtocol, opened: "asyncio.Future[None] | None") -> None:
        """Calls the protocol's `connection_made`, then completes `opened`."""
        self.set_protocol(protocol)
        self._reading_paused = True

        def begin() -> None:
            if not self._is_lost:
                self._protocol.connection_made(self)
                self._reading_paused = False
                self._schedule_read()
            if opened is not None and not opened.done():
                opened.set_result(None)

        self._loop.call_soon(begin, context=self.context)

    # asyncio.BaseTransport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._remote, "sockname": self._local, "socket": None}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered_protocol = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def is_closing(self) -> bool:
        return self._closing or self._is_lost

    def close(self) -> None:
        if self._closing or self._is_lost:
            return
        self._closing = True
        self._is_eof_requested = True
        self._send_buffered()

    # asyncio.ReadTransport

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_read()

    # asyncio.WriteTransport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_eof_requested and not self._closing:
            raise RuntimeError("cannot write after write_eof")
        if self.is_closing() or not data:
            return
        self._unsent += data
        self._send_buffered()
        if len(self._unsent) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._is_eof_requested and not self._is_lost:
            self._is_eof_requested = True
            self._send_buffered()

    def abort(self) -> None:
        if not self._is_lost:
            self._send_reset()
            self._drop_connection(None)

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_BUFFER_BYTES_HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}) and low at least 0")
        self._high, self._low = high, low

    # Sending

    def _send_buffered(self) -> None:
        """Sends as much data as the window allows. Then sends FIN if all data was sent and EOF was requested."""
        while self._unsent and self._in_flight < self._window and not self._is_lost:
            size = min(len(self._unsent), self._window - self._in_flight, SEGMENT_BYTES_MAX)
            if self._network.random.random() < self._network.settings.partial_read_chance:
                size = self._network.random.randint(1, size)
            self._in_flight += size
            self._send(bytes(self._unsent[:size]))
            del self._unsent[:size]
        if self._is_eof_requested and not self._unsent and not self._fin_sent and not self._is_lost:
            self._fin_sent = True
            self._send(FIN)
        if self._closing and not self._unsent and not self._is_lost:
            if self._received:
                # As in the kernel, closing a connection with unread data resets the connection.
                self._send_reset()
            self._drop_connection(None)

    def _send(self, data: bytes) -> None:
        number = self._packets_sent
        self._packets_sent += 1
        self._network.send_in_stream(self.host, self.peer.host, lambda: self._packet_arrives(number, data))

    def _packet_arrives(self, number: int, data: bytes) -> None:
        if number < self._packets_read or number in self._out_of_order:
            self._network.counts["duplicates dropped"] += 1
            return
        self._out_of_order[number] = data
        while self._packets_read in self._out_of_order:
            self.peer._receive(self._out_of_order.pop(self._packets_read))
            self._packets_read += 1

    def _send_reset(self) -> None:
        self._network.send(self.host, self.peer.host, self.peer.reset)

    def _acknowledged(self, size: int) -> None:
        self._in_flight -= size
        if (self._unsent or self._writing_paused) and not self._is_lost:
            self._loop.call_soon(self._continue_writing, context=self.context)

    def _continue_writing(self) -> None:
        self._send_buffered()
        if self._writing_paused and len(self._unsent) <= self._low and not self._is_lost:
            self._writing_paused = False
            self._protocol.resume_writing()

    # Receiving

    def _receive(self, data: bytes) -> None:
        if self.is_vanished and self.host in self._network.down:
            return
        if self._is_lost:
            if data:
                self._send_reset()
            return
        if data:
            self._received += data
        else:
            self._fin_received = True
        self._schedule_read()

    def _schedule_read(self) -> None:
        if self._reading_paused or self._read_scheduled or self.is_closing():
            return
        if self._received or (self._fin_received and not self._is_eof_delivered):
            self._read_scheduled = True
            self._loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._read_scheduled = False
        if self._reading_paused or self.is_closing():
            return
        try:
            if self._received:
                self._deliver()
            else:
                self._is_eof_delivered = True
                self._loop.trace.add(self._loop.now_ns, "eof", self.peer.host, self.host)
                assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
                if not self._protocol.eof_received():
                    self.close()
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "a protocol raised in data_received or eof_received", "exception": error, "transport": self}
            )
            self._send_reset()
            self._drop_connection(error)
        self._schedule_read()

    def _deliver(self) -> None:
        size = min(len(self._received), READ_BYTES_MAX)
        if self._network.random.random() < self._network.settings.partial_read_chance:
            size = self._network.random.randint(1, size)
        buffered = self._buffered_protocol
        if buffered is not None:
            target = memoryview(buffered.get_buffer(size)).cast("B")
            if not len(target):
                raise RuntimeError("get_buffer() returned an empty buffer")
            size = min(size, len(target))
            data = bytes(self._received[:size])
            target[:size] = data
            target.release()
        else:
            data = bytes(self._received[:size])
        del self._received[:size]
        self._loop.trace.add(self._loop.now_ns, "deliver", self.peer.host, self.host, data)
        self._network.send(self.host, self.peer.host, lambda: self.peer._acknowledged(size))
        if buffered is not None:
            buffered.buffer_updated(size)
        else:
            assert isinstance(self._protocol, asyncio.Protocol)
            self._protocol.data_received(data)

    # Loss of the connection

    def reset(self) -> None:
        """Handles a reset by the peer."""
        if not self._is_lost:
            self._loop.trace.add(self._loop.now_ns, "reset", self.peer.host, self.host)
            self._drop_connection(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def vanish(self, *, reset_peer: bool) -> None:
        """Ends this side of the connection, because its host has crashed. The protocol is not called."""
        if not self._is_lost:
            self.is_vanished = True
            self._is_lost = True
            self._network.unregister(self.number)
            if reset_peer:
                self._send_reset()

    def _drop_connection(self, error: Exception | None) -> None:
        self._is_lost = True
        self._unsent.clear()
        self._received.clear()
        self._loop.call_soon(self._connection_lost, error, context=self.context)

    def _connection_lost(self, error: Exception | None) -> None:
        self._network.unregister(self.number)
        try:
            self._protocol.connection_lost(error)
        finally:
            if self.on_lost is not None:
                self.on_lost(self)

    def __repr__(self) -> str:
        return f"SimulatedTransport({self.host} to {self._remote[0]}:{self._remote[1]})"
