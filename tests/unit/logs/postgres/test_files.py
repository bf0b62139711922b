"""The small files of a node in the table `file`, with a real server."""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from moldau.errors import InconsistentClusterIdError, StorageError
from moldau.logs.postgres.database import Database
from moldau.logs.postgres.files import FileTable
from moldau.node.incarnations import IncarnationStore
from moldau.node.meta_properties import load_or_create
from moldau.platform.disk import read_small_file
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import SnapshotId
from moldau.raft.quorum_state_store import FileQuorumStateStore
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import FileSnapshotStore
from moldau.settings.broker import BrokerSettings
from support.postgres import PostgresServer

ROOT = "postgresql://host/db#moldau"
LOG_DIRECTORY = f"{ROOT}/__cluster_metadata-0"

Body = Callable[[FileTable], Awaitable[None]]


class Schema:
    """A schema of a test. Each use is another process for the server."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"files_{uuid4().hex[:12]}"

    def use(self, body: Body) -> None:
        async def run() -> None:
            database = Database(self.server.url, self.name, uuid4())
            await database.start()
            try:
                files = FileTable(database, ROOT)
                await files.load()
                await body(files)
            finally:
                await database.close()

        asyncio.run(run())


@pytest.fixture
def schema(postgres: PostgresServer) -> Schema:
    return Schema(postgres)


def test_a_replaced_file_is_durable_when_replace_returns(schema: Schema) -> None:
    async def write(files: FileTable) -> None:
        assert not files.exists(f"{ROOT}/a")
        assert read_small_file(files, f"{ROOT}/a") is None
        await files.replace(f"{ROOT}/a", b"one")
        await files.replace(f"{ROOT}/a", b"two")
        await files.replace(f"{ROOT}/dir/b", b"\0\xff")

    async def read(files: FileTable) -> None:
        assert read_small_file(files, f"{ROOT}/a") == b"two"
        assert read_small_file(files, f"{ROOT}/dir/b") == b"\0\xff"
        assert files.list(ROOT) == ["a", "dir"]
        assert files.list(f"{ROOT}/dir") == ["b"]
        assert files.list(f"{ROOT}/missing") == []

    schema.use(write)
    schema.use(read)


def test_the_path_in_the_table_has_no_root(schema: Schema) -> None:
    async def body(files: FileTable) -> None:
        await files.replace(f"{LOG_DIRECTORY}/quorum-state", b"x")
        rows = await files._database.query("select path from file")
        assert rows == [("__cluster_metadata-0/quorum-state",)]

    schema.use(body)


def test_removals_and_renames_are_written_by_the_next_write(schema: Schema) -> None:
    async def write(files: FileTable) -> None:
        for name in ("a", "b", "c"):
            await files.replace(f"{ROOT}/{name}", name.encode())
        files.remove(f"{ROOT}/a")
        files.remove(f"{ROOT}/missing")
        files.rename(f"{ROOT}/b", f"{ROOT}/b.damaged")
        assert files.list(ROOT) == ["b.damaged", "c"]
        await files.sync_directory(ROOT)
        files.remove(f"{ROOT}/c")
        await files.replace(f"{ROOT}/d", b"d")

    async def read(files: FileTable) -> None:
        assert files.list(ROOT) == ["b.damaged", "d"]
        assert read_small_file(files, f"{ROOT}/b.damaged") == b"b"

    schema.use(write)
    schema.use(read)


def test_replacements_of_a_file_take_effect_in_order_even_if_callers_are_cancelled(schema: Schema) -> None:
    async def write(files: FileTable) -> None:
        tasks = [asyncio.create_task(files.replace(f"{ROOT}/a", b"%d" % number)) for number in range(10)]
        await asyncio.sleep(0)
        tasks[9].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert read_small_file(files, f"{ROOT}/a") == b"9"

    async def read(files: FileTable) -> None:
        assert read_small_file(files, f"{ROOT}/a") == b"9"

    schema.use(write)
    schema.use(read)


def test_a_file_that_cannot_be_written_keeps_its_content(schema: Schema) -> None:
    async def body(files: FileTable) -> None:
        await files.replace(f"{ROOT}/a", b"before")
        await files.replace(f"{ROOT}/b", b"b")
        files.remove(f"{ROOT}/b")

        async def forbid(cursor: object) -> None:
            await cursor.execute("alter table file add constraint small check (length(data) < 10)")  # type: ignore[attr-defined]

        await files._database.transaction(forbid)
        with pytest.raises(StorageError):
            await files.replace(f"{ROOT}/a", b"x" * 100)
        assert read_small_file(files, f"{ROOT}/a") == b"before"
        await files.replace(f"{ROOT}/a", b"after")
        assert await files._database.query("select path, data from file") == [("a", b"after")]

    schema.use(body)


def test_the_state_of_a_node_is_found_by_its_next_process(schema: Schema) -> None:
    settings = BrokerSettings(store="postgresql://host/db")
    assert settings.log_dir == ROOT
    incarnation = UUID(int=5)
    election = ElectionState(epoch=7, leader_id=1)
    snapshot = SnapshotContents(SnapshotId(100, 3), (), (b"first", b"second"), 1_700_000_000_000, 2)
    found = []

    async def write(files: FileTable) -> None:
        found.append(await load_or_create(files, random.Random(1), settings))
        await IncarnationStore(files, ROOT).add(incarnation)
        await FileQuorumStateStore(files, LOG_DIRECTORY, "cluster").save(election)
        store = FileSnapshotStore(files, LOG_DIRECTORY)
        for end_offset in (70, 80, 90, 100):
            await store.store(dataclasses.replace(snapshot, id=SnapshotId(end_offset, 3)))

    async def read(files: FileTable) -> None:
        found.append(await load_or_create(files, random.Random(2), settings))
        assert found[0] == found[1]
        with pytest.raises(StorageError, match=r"belongs to node 1, not to node 2: .* with another postgres\.schema"):
            await load_or_create(files, random.Random(2), BrokerSettings(store="postgresql://host/db", node_id=2))
        assert IncarnationStore(files, ROOT).previous_incarnations() == (incarnation,)
        assert FileQuorumStateStore(files, LOG_DIRECTORY, "cluster").load() == election
        with pytest.raises(InconsistentClusterIdError):
            FileQuorumStateStore(files, LOG_DIRECTORY, "other").load()
        store = FileSnapshotStore(files, LOG_DIRECTORY)
        assert (store.oldest(), store.latest()) == (SnapshotId(80, 3), SnapshotId(100, 3))
        assert store.read(SnapshotId(100, 3)) == snapshot
        # The oldest one was removed after the last write.
        await store.store(dataclasses.replace(snapshot, id=SnapshotId(110, 3)))

    schema.use(write)
    schema.use(read)
