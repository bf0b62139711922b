"""The replica manager: opens, deletes and renames logs as the metadata changes, and ignores old metadata."""

import asyncio
import errno
import gc
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from moldau.errors import StorageError
from moldau.logs.files import recovery
from moldau.logs.files.store import FileLogStore
from moldau.logs.memory import MemoryLog, MemoryLogStore
from moldau.logs.store import LogName, LogStore, StoreUnavailableError
from moldau.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.topic import TopicSettings
from support.replicas import batch, broker_image

NODE = 1
ORDERS, ORDERS_ANEW, PAYMENTS = UUID(int=11), UUID(int=12), UUID(int=13)
THIS_LIFE, FORMER_LIFE = UUID(int=21), UUID(int=20)


def topic(name: str, topic_id: UUID, *replicas: tuple[int, ...], leader: int = NODE, epoch: int = 0) -> TopicImage:
    partitions = tuple(
        PartitionRegistration(index, each, each, leader, epoch, epoch)
        for index, each in enumerate(replicas or ((1, 2),))
    )
    return TopicImage(name, topic_id, partitions)


def image(*topics: TopicImage, incarnation: UUID | None = None) -> MetadataImage:
    brokers = {node: broker_image(node) for node in (1, 2, 3)}
    if incarnation is not None:
        brokers[NODE] = replace(brokers[NODE], incarnation_id=incarnation)
    return MetadataImage(brokers=brokers, topics={each.name: each for each in topics})


def delta(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    changed = []
    for name, each in after.topics.items():
        for partition in each.partitions:
            old = before.topics.get(name)
            if old is None or partition not in old.partitions or old.topic_id != each.topic_id:
                changed.append((name, partition.index))
    deleted = [
        each
        for name, each in before.topics.items()
        if name not in after.topics or after.topics[name].topic_id != each.topic_id
    ]
    return MetadataDelta(topics_deleted=tuple(deleted), partitions_changed=tuple(changed))


class Table:
    def __init__(self, store: LogStore, incarnation: UUID | None = None) -> None:
        self.store = store
        self.image = MetadataImage()
        settings = EffectiveSettings(BrokerSettings())
        self.table = ReplicaManager(NODE, store, settings, SystemClock(), internal_logs=(LogName("ours", 0),))
        self.table.incarnation_id = incarnation

    async def publish(self, *topics: TopicImage, incarnation: UUID | None = None) -> None:
        before, self.image = self.image, image(*topics, incarnation=incarnation)
        await self.table.publish(delta(before, self.image), self.image)

    async def write(self, name: str, *values: bytes, index: int = 0) -> None:
        partition = self.table.get(name, index)
        assert partition is not None
        await partition.append([batch(*values)])
        await partition.wait_for_flush()

    def end_of(self, name: str, index: int = 0) -> int | None:
        partition = self.table.get(name, index)
        return None if partition is None else partition.log.end_offset

    async def close(self) -> None:
        await self.table.close()
        await self.store.close()


async def files(path: Path) -> FileLogStore:
    store = FileLogStore(OsDisk(), str(path), SystemClock())
    await store.start()
    return store


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir())


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_partitions_with_a_replica_on_this_broker_are_opened() -> None:
    async def test() -> None:
        table = Table(MemoryLogStore())
        notified: list[str] = []
        table.table.on_roles_changed.append(
            lambda changed: notified.extend(f"{each.name} {each.leader_id}" for each in changed)
        )
        await table.publish(
            topic("orders", ORDERS, (1, 2), (2, 3), (2, 1)), topic("payments", PAYMENTS, (2, 1), leader=2)
        )
        assert [str(each.name) for each in table.table] == ["orders-0", "orders-2", "payments-0"]
        assert [str(each.name) for each in table.table.leader_partitions()] == ["orders-0", "orders-2"]
        assert notified == ["orders-0 1", "orders-2 1", "payments-0 2"]
        notified.clear()
        changed = topic("payments", PAYMENTS, (2, 1), leader=1, epoch=1)
        await table.publish(table.image.topics["orders"], changed)
        assert notified == ["payments-0 1"], "only the changed one"
        notified.clear()
        await table.publish(table.image.topics["orders"])
        assert notified == ["payments-0 -1"]

    run(test)


def test_a_reassigned_replica_is_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(await files(tmp_path))
        await table.publish(topic("orders", ORDERS, (1, 2)))
        await table.write("orders", b"a")
        before = table.table.get("orders", 0)
        assert before is not None
        waiting = before.commit_future(5, before.leader_epoch)
        assert waiting is not None
        await table.publish(topic("orders", ORDERS, (2, 3), leader=2, epoch=1))
        assert table.end_of("orders") is None
        assert names(tmp_path) == []
        assert waiting.done()
        waiting.exception()
        await table.publish(topic("orders", ORDERS, (1, 2, 3), leader=2, epoch=2))
        assert table.end_of("orders") == 0, "a new replica starts empty"
        await table.close()

    run(test)


def test_a_topic_can_be_deleted_and_created_again(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(await files(tmp_path))
        await table.publish(topic("orders", ORDERS))
        await table.write("orders", b"a")
        await table.publish(topic("orders", ORDERS_ANEW))
        assert table.end_of("orders") == 0
        assert names(tmp_path) == ["orders-0"]
        await table.close()

    run(test)


def test_stray_logs_are_renamed_and_kept(tmp_path: Path) -> None:
    async def test() -> None:
        store = await files(tmp_path)
        before = Table(store)
        await before.publish(topic("orders", ORDERS, (1,), (1,)), topic("payments", PAYMENTS, (1,), (1,)))
        await before.write("orders", b"deleted meanwhile")
        await before.write("payments", b"stays")
        await before.close()
        table = Table(await files(tmp_path), THIS_LIFE)
        await table.publish(
            topic("orders", ORDERS_ANEW, (1,)), topic("payments", PAYMENTS, (1,), (2,), epoch=1), incarnation=THIS_LIFE
        )
        assert table.end_of("orders") == 0
        assert table.end_of("payments") == 1
        assert names(tmp_path) == [
            "orders-0",
            f"orders-0.{ORDERS.hex}-stray",
            f"orders-1.{ORDERS.hex}-stray",
            "payments-0",
            f"payments-1.{PAYMENTS.hex}-stray",
        ]
        aside = tmp_path / f"orders-0.{ORDERS.hex}-stray" / "00000000000000000000.log"
        assert b"deleted meanwhile" in aside.read_bytes()
        await table.close()
        reopened = await files(tmp_path)
        assert sorted(str(name) for name, _ in reopened.list_logs()) == ["orders-0", "payments-0"]
        await reopened.close()

    run(test)


def test_a_second_stray_log_of_the_same_name_is_kept_too(tmp_path: Path) -> None:
    async def test() -> None:
        for _ in range(2):
            store = await files(tmp_path)
            before = Table(store)
            await before.publish(topic("orders", ORDERS, (1,)))
            await before.write("orders", b"a")
            await store.move_to_stray(LogName("orders", 0))
            assert store.list_logs() == []
        assert len(names(tmp_path)) == 2

    run(test)


def test_old_metadata_neither_deletes_nor_opens_logs(tmp_path: Path) -> None:
    """A starting broker replays replicas that were moved away and back, and topics with earlier ids."""

    async def test() -> None:
        before = Table(await files(tmp_path))
        await before.publish(topic("orders", ORDERS_ANEW, (1, 2), epoch=5))
        await before.write("orders", b"a")
        await before.close()
        table = Table(await files(tmp_path), THIS_LIFE)
        await table.publish(topic("orders", ORDERS, (1, 2)), incarnation=FORMER_LIFE)
        await table.publish(topic("orders", ORDERS_ANEW, (1, 2), epoch=1), incarnation=FORMER_LIFE)
        await table.publish(topic("orders", ORDERS_ANEW, (2, 3), leader=2, epoch=2), incarnation=FORMER_LIFE)
        assert len(table.table) == 0
        assert names(tmp_path) == ["orders-0"]
        await table.publish(topic("orders", ORDERS_ANEW, (1, 2), leader=2, epoch=6), incarnation=THIS_LIFE)
        assert table.end_of("orders") == 1
        assert names(tmp_path) == ["orders-0"]
        await table.close()

    run(test)


def test_the_high_watermark_survives_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        before = Table(await files(tmp_path))
        await before.publish(topic("orders", ORDERS, (1,)))
        await before.write("orders", b"a", b"b")
        await before.table.checkpoint_high_watermarks()
        # A crash: nothing is closed.
        after = Table(await files(tmp_path))
        await after.publish(topic("orders", ORDERS, (1, 2), leader=2, epoch=1))
        partition = after.table.get("orders", 0)
        assert partition is not None
        assert partition.high_watermark == 2
        assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
        await after.close()

    run(test)


def test_the_restored_high_watermark_is_limited_by_the_end_of_the_log() -> None:
    async def test() -> None:
        store = MemoryLogStore()
        log = await store.open(LogName("orders", 0), ORDERS, EffectiveSettings(BrokerSettings()).topic("orders"))
        log.checkpointed_high_watermark = 50
        table = Table(store)
        await table.publish(topic("orders", ORDERS, (1, 2), leader=2))
        partition = table.table.get("orders", 0)
        assert partition is not None
        assert partition.high_watermark == 0

    run(test)


def test_a_log_that_cannot_be_opened_is_reported_and_the_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = MemoryLogStore()
        opening = store.open

        async def open_log(name: LogName, *more: object) -> object:
            if name.partition == 1:
                raise StorageError("it is damaged")
            return await opening(name, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "open", open_log)
        table = Table(store)
        await table.publish(topic("orders", ORDERS, (1,), (1,)))
        assert table.end_of("orders") == 0
        [not_ready] = table.table.offline_replicas()
        assert (not_ready.topic_id, not_ready.partition, not_ready.broker_id) == (ORDERS, 1, NODE)
        assert not_ready.reason == "it is damaged"
        with pytest.raises(StorageError):
            table.table.get("orders", 1)

    run(test)


def test_a_log_that_fails_later_is_reported_at_once() -> None:
    async def test() -> None:
        table = Table(MemoryLogStore())
        await table.publish(topic("orders", ORDERS, (1,), (1,)))
        notified: list[str] = []
        table.table.on_offline_replicas_changed.append(
            lambda: notified.extend(f"{each.partition}: {each.reason}" for each in table.table.offline_replicas())
        )
        partition = table.table.get("orders", 1)
        assert partition is not None
        partition.guarded_log.mark_offline(StorageError("EIO"))
        assert notified == ["1: EIO"]
        await table.publish()
        assert table.table.offline_replicas() == ()

    run(test)


def test_a_log_opened_by_a_retry_gets_its_role_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = MemoryLogStore()
        opening = store.open
        is_full = True

        async def open_log(name: LogName, *more: object) -> object:
            if is_full:
                raise StorageError("no descriptors") from OSError("EMFILE")
            return await opening(name, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "open", open_log)
        table = Table(store)
        roles: list[str] = []
        not_ready: list[int] = []
        table.table.on_roles_changed.append(lambda changed: roles.extend(str(each.name) for each in changed))
        table.table.on_offline_replicas_changed.append(lambda: not_ready.append(len(table.table.offline_replicas())))
        await table.publish(topic("orders", ORDERS, (2, 1), leader=2))
        assert len(table.table.offline_replicas()) == 1
        await table.table.retry_offline_logs()
        assert (roles, not_ready) == ([], []), "still full"
        is_full = False
        await table.table.retry_offline_logs()
        assert (roles, not_ready) == (["orders-0"], [0])

    run(test)


def test_a_log_that_cannot_be_opened_keeps_no_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def test() -> None:
        table = Table(await files(tmp_path))
        await table.publish(topic("orders", ORDERS, (1,)))
        await table.write("orders", b"a")
        await table.close()
        store = await files(tmp_path)
        log_path = f"{tmp_path}/orders-0/{0:020}.log"
        table = Table(store)
        gc.collect()
        gc.disable()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(recovery, "rebuild_producer_state", fail)
                await table.publish(topic("orders", ORDERS, (1,)))
                assert open_paths().count(log_path) == 0
                for _ in range(3):
                    with pytest.raises(StorageError, match="too many open files") as notified:
                        table.table.get("orders", 0)
                    assert len(notified.traceback) == 2, "and the error keeps no frames of earlier callers"
        finally:
            gc.enable()
        await table.table.retry_offline_logs(transient_only=True)
        assert table.end_of("orders") == 1
        await table.close()

    run(test)


def test_a_stray_log_that_cannot_be_moved_for_now_does_not_stop_the_broker() -> None:
    class AwayStore(MemoryLogStore):
        async def move_to_stray(self, name: LogName) -> None:
            raise StoreUnavailableError("the server is away")

    async def test() -> None:
        store = AwayStore()
        await store.open(LogName("orders", 0), ORDERS, TopicSettings())
        table = Table(store, THIS_LIFE)
        await table.publish(topic("payments", PAYMENTS, (1,)), incarnation=THIS_LIFE)
        assert table.end_of("payments") == 0

    run(test)


def test_a_log_is_opened_when_the_server_of_its_store_is_back() -> None:
    class AwayStore(MemoryLogStore):
        is_away = True

        async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> MemoryLog:
            if self.is_away:
                raise StoreUnavailableError("the server is away")
            return await super().open(name, topic_id, settings)

    async def test() -> None:
        store = AwayStore()
        table = Table(store)
        await table.publish(topic("orders", ORDERS, (1,)))
        await table.table.retry_offline_logs(transient_only=True)
        with pytest.raises(StorageError, match="the server is away"):
            table.table.get("orders", 0)
        store.is_away = False
        await table.table.retry_offline_logs(transient_only=True)
        assert table.end_of("orders") == 0
        await table.close()

    run(test)


def open_paths() -> list[str]:
    return [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


def test_partitions_that_become_writable_are_reported_once() -> None:
    async def test() -> None:
        table = Table(MemoryLogStore())
        names = [f"topic-{number}" for number in range(20)]
        await table.publish(*(topic(name, UUID(int=number)) for number, name in enumerate(names, 1)))
        not_ready: list[int] = []
        table.table.on_offline_replicas_changed.append(lambda: not_ready.append(len(table.table.offline_replicas())))
        for name in names:
            partition = table.table.get(name, 0)
            assert partition is not None
            partition.guarded_log._set_transient_error(StorageError("no room"))
        assert not_ready == list(range(1, 21))
        assert table.table.probe_disk_space()
        assert not_ready[20:] == [0]

    run(test)


def test_a_topic_deleted_during_a_retry_of_its_logs_stays_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = MemoryLogStore()
        opening = store.open
        opened = asyncio.Event()
        attempts = 0

        async def open_log(name: LogName, *more: object) -> object:
            nonlocal attempts
            attempts += 1
            if attempts <= 2:
                raise StorageError("no descriptors") from OSError("EMFILE")
            await opened.wait()
            return await opening(name, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "open", open_log)
        table = Table(store)
        await table.publish(topic("orders", ORDERS, (1,), (1,)))
        reopened = asyncio.ensure_future(table.table.retry_offline_logs())
        await asyncio.sleep(0)
        deletion = asyncio.ensure_future(table.publish())
        await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(reopened, deletion)
        assert len(table.table) == 0
        assert table.table.unopened_logs == {}
        assert store.list_logs() == []

    run(test)


def test_only_logs_of_the_deleted_topic_id_are_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(await files(tmp_path))
        await table.publish(topic("orders", ORDERS_ANEW, (1,)))
        await table.write("orders", b"a")
        await table.table.publish(MetadataDelta(topics_deleted=(topic("orders", ORDERS, (1,)),)), table.image)
        assert table.end_of("orders") == 1
        assert names(tmp_path) == ["orders-0"]

    run(test)


def test_leaders_get_broker_changes() -> None:
    async def test() -> None:
        table = Table(MemoryLogStore())
        await table.publish(topic("orders", ORDERS, (1, 2)))
        fenced = replace(table.image, brokers={**table.image.brokers, 2: broker_image(2, fenced=True)})
        await table.table.publish(MetadataDelta(brokers_changed=(2,)), fenced)
        partition = table.table.get("orders", 0)
        assert partition is not None
        assert partition.require_leader().brokers[2].fenced

    run(test)
