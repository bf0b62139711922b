"""A TCP proxy in front of a Postgres server that loses connections at chosen places of the protocol."""

import asyncio
import re
from typing import Self

from support.postgres import PostgresServer

_COMMIT = re.compile(rb"COMMIT\x00|with owner as")
"""The end of a transaction, or a transaction in one statement (not yet prepared)."""
_KEY_DATA = re.compile(rb"K\x00\x00\x00[\x0c-\xff](....)", re.DOTALL)


class PostgresProxy:
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.refuses = False
        """Whether connections are refused."""
        self.cut_after_bytes: int | None = None
        """All connections are lost after this many further bytes of clients."""
        self.loses_commit = False
        """The next COMMIT and its connection are lost before the server receives it."""
        self.loses_answer = False
        """The connection of the next COMMIT is lost after the server has executed it, and before the client knows."""
        self.replaces_pid = False
        """Whether clients get another process id than that of their session, as from PgBouncer."""
        self.cuts = 0
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        # The tasks of the connections end when their sockets are closed.
        while self._connections:
            await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        return f"postgresql://moldau@127.0.0.1:{self._port}/moldau"

    def cut(self) -> None:
        """Loses all connections now."""
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.refuses:
            to_client.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            to_client.transport.abort()
            return
        both = {to_client, to_server}
        self._connections |= both
        answers_lost = asyncio.Event()
        try:
            await asyncio.gather(
                self._pass_requests(from_client, to_server, both, answers_lost),
                self._pass_responses(from_server, to_client, both, answers_lost),
            )
        except OSError:
            pass  # The other side was cut.
        finally:
            self._cut(both)
            self._connections -= both

    def _cut(self, both: set[asyncio.StreamWriter]) -> None:
        for writer in both:
            writer.transport.abort()

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
        answers_lost: asyncio.Event,
    ) -> None:
        while data := await reader.read(65_536):
            if self.cut_after_bytes is not None:
                writer.write(data[: self.cut_after_bytes])
                self.cut_after_bytes -= len(data)
                if self.cut_after_bytes < 0:
                    self.cut_after_bytes = None
                    await writer.drain()
                    self.cuts += 1
                    self.cut()
                    return
                continue
            if _COMMIT.search(data):
                if self.loses_commit:
                    self.loses_commit = False
                    self.cuts += 1
                    self._cut(both)
                    return
                if self.loses_answer:
                    self.loses_answer = False
                    self.cuts += 1
                    answers_lost.set()
            writer.write(data)
            await writer.drain()
        self._cut(both)

    async def _pass_responses(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
        answers_lost: asyncio.Event,
    ) -> None:
        while data := await reader.read(65_536):
            if answers_lost.is_set():
                self._cut(both)
                return
            if self.replaces_pid:
                data = _KEY_DATA.sub(lambda found: found[0][:5] + b"\x00\x00\x00\x01", data)
            writer.write(data)
            await writer.drain()
        self._cut(both)
