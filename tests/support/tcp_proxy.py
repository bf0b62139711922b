"""A TCP proxy on loopback that stalls and cuts its connections, as a broken network does."""

import asyncio
import threading
from collections.abc import Callable
from typing import Self

PIECE_BYTES = 65_536


class TcpProxy:
    """Forwards connections to a port of this machine. All methods may be called from any thread."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        self._is_cut = True
        self._close_all()
        self._open.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def cut(self) -> None:
        """Resets all connections, and refuses further ones until `restore`."""

        def work() -> None:
            self._is_cut = True
            self._close_all()

        self._call(work)

    def stall(self) -> None:
        """Keeps all connections open, and forwards nothing until `restore`."""
        self._call(self._open.clear)

    def restore(self) -> None:
        def work() -> None:
            self._is_cut = False
            self._open.set()

        self._call(work)

    def _call(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, target_writer}
        self._writers |= both
        directions = [
            asyncio.create_task(self._forward(reader, target_writer)),
            asyncio.create_task(self._forward(target_reader, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._open.wait()
            writer.write(piece)
            await writer.drain()
