"""The small files of a node in the table `file`: meta.properties, incarnations, quorum-state and metadata snapshots."""

import asyncio
from collections.abc import Mapping, Sequence

from moldau.logs.postgres.database import Cursor, Database


class FileTable:
    """Files with their contents in memory, because they are read without waiting.

    `replace` writes a file in a transaction, and returns when it is committed. Removals and renames are written by the
    next `replace` or `sync_directory`.
    """

    def __init__(self, database: Database, root: str) -> None:
        """Paths start with `root`, which is not part of the path in the table."""
        self._database = database
        self._prefix = root + "/"
        self._contents: dict[str, bytes] = {}
        self._unwritten: dict[str, bytes | None] = {}
        """Removals (None) and renames that are not in the table yet."""
        self._write_lock = asyncio.Lock()

    async def load(self) -> None:
        rows = await self._database.query("select path, data from file")
        self._contents = {self._prefix + path: bytes(data) for path, data in rows}

    def open(self, path: str) -> "StoredFile":
        if path not in self._contents:
            raise FileNotFoundError(2, "no such row in the table file", path)
        return StoredFile(self._contents[path])

    def exists(self, path: str) -> bool:
        return path in self._contents

    def list(self, directory: str) -> Sequence[str]:
        prefix = directory + "/"
        names = [path.removeprefix(prefix) for path in self._contents if path.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in names})

    def rename(self, old: str, new: str) -> None:
        data = self._contents.pop(old)
        self._contents[new] = data
        self._unwritten |= {old: None, new: data}

    def remove(self, path: str) -> None:
        if self._contents.pop(path, None) is not None:
            self._unwritten[path] = None

    async def sync_directory(self, path: str) -> None:
        """Writes all removals and renames."""
        await self._database.run_to_end(self._write({}))

    async def replace(self, path: str, data: bytes) -> None:
        """Replaces the content of a file durably. Calls take effect in order, even if a caller is cancelled."""
        await self._database.run_to_end(self._write({path: data}))

    async def _write(self, replaced: Mapping[str, bytes]) -> None:
        async with self._write_lock:
            changes: dict[str, bytes | None] = {**self._unwritten, **replaced}
            self._unwritten = {}

            async def work(cursor: Cursor) -> None:
                for path, data in changes.items():
                    key = path.removeprefix(self._prefix)
                    if data is None:
                        await cursor.execute("delete from file where path = %s", (key,))
                    else:
                        await cursor.execute(
                            "insert into file (path, data) values (%s, %s) "
                            "on conflict (path) do update set data = excluded.data",
                            (key, data),
                        )

            try:
                await self._database.unbounded_transaction(work)
            except BaseException:
                earlier = {path: data for path, data in changes.items() if path not in replaced}
                self._unwritten = {**earlier, **self._unwritten}
                raise
            self._contents |= replaced


class StoredFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]

    def close(self) -> None:
        """Does nothing: the content is in memory."""
