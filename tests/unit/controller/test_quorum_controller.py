"""The control plane of one node: changes are visible at the response and survive a restart."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.controller.requests import ConfigChange, ConfigOperation, NewTopic, PartitionIncrease, TopicRef
from moldau.controller.state import ControllerState
from moldau.errors import NotControllerError, RequestTimedOutError, StorageError, TopicExistsError
from moldau.logs.files.store import FileLogStore
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataDelta, MetadataImage
from moldau.metadata.image_builder import ControllerChange, MetadataChange, apply_changes
from moldau.metadata.records import decode
from moldau.platform.os_disk import OsDisk
from moldau.raft.batches import read_committed_batch
from moldau.raft.quorum_state_store import FileQuorumStateStore
from moldau.raft.raft_client import METADATA_LOG, open_metadata_log
from moldau.records.batch import Batch
from support.control_plane import NODE, ControlPlane, FixedClock, TestLog


def on_both_kinds_of_log(scenario: Callable[[ControlPlane], Coroutine[Any, Any, None]]) -> None:
    """Runs each test with a log that suspends and one that does not."""
    for awaits in (False, True):
        asyncio.run(scenario(ControlPlane(log=TestLog(awaits=awaits))))


def test_a_node_boots_into_a_quorum_of_one_with_an_active_controller() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        assert controller.is_active
        assert (controller.controller_id, controller.epoch) == (NODE, 1)
        assert plane.image.cluster_id == "test-cluster"
        levels = {"metadata.version": 30, "eligible.leader.replicas.version": 1, "transaction.version": 2}
        assert plane.image.features == levels
        broker = plane.image.brokers[NODE]
        assert broker.is_active
        assert broker.epoch == 7, "the offset of its registration record"
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_change_is_published_before_the_response() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        [created] = await controller.create_topics([NewTopic("orders", 3, 1)])
        assert created.error is None
        assert len(plane.image.topics["orders"].partitions) == 3
        assert plane.published[-1][0].topics_created == ("orders",)
        await controller.create_partitions([PartitionIncrease("orders", 4)])
        assert len(plane.image.topics["orders"].partitions) == 4
        resource = ConfigResource(TOPIC_RESOURCE, "orders")
        await controller.alter_configs({resource: [ConfigChange("retention.ms", "5")]}, incremental=True)
        assert plane.image.config(resource) == {"retention.ms": "5"}
        assert plane.settings.topic("orders").retention_ms == 5
        await controller.delete_topics([TopicRef("orders")])
        assert "orders" not in plane.image.topics
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_response_waits_for_a_slow_publisher() -> None:
    async def scenario(plane: ControlPlane) -> None:
        ready = asyncio.Event()

        async def open_logs(delta: MetadataDelta, image: MetadataImage) -> None:
            if delta.topics_created:
                await ready.wait()

        controller = await plane.boot(publisher=open_logs)  # type: ignore[arg-type]
        creating = asyncio.get_running_loop().create_task(controller.create_topics([NewTopic("a", 1, 1)]))
        for _ in range(30):
            await asyncio.sleep(0)
        assert not creating.done()
        assert "a" not in plane.image.topics, "a topic is visible only when its logs are open"
        ready.set()
        await creating
        assert "a" in plane.image.topics
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_concurrent_creations_share_fsyncs_and_see_each_other() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        syncs = plane.log.syncs
        names = [f"topic-{number % 50}" for number in range(100)]
        answers = await asyncio.gather(*(controller.create_topics([NewTopic(name, 1, 1)]) for name in names))
        errors = [type(response[0].error) for response in answers]
        assert errors == [type(None)] * 50 + [TopicExistsError] * 50
        assert len(plane.image.topics) == 50
        if plane.log.awaits:
            assert plane.log.syncs - syncs < 50, "appends during an fsync share the next one"
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_restart_publishes_the_same_image_in_one_delta() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        await controller.create_topics([NewTopic("a", 2, 1, configs={"retention.ms": "9"}), NewTopic("b", 1, 1)])
        await controller.delete_topics([TopicRef("b")])
        block = await controller.allocate_producer_ids(NODE, plane.broker_epoch)
        before = plane.image
        await plane.shut_down()

        plane.published.clear()
        controller = await plane.boot(register=False)
        after = plane.image
        assert (after.topics, after.topic_names, after.configs) == (before.topics, before.topic_names, before.configs)
        assert (after.brokers, after.features) == (before.brokers, before.features)
        assert after.controller_epoch == before.controller_epoch + 1
        [(delta, _)] = plane.published
        assert delta.topics_created == ("a",)
        assert delta.topics_deleted == ()
        await plane.register()
        more = await controller.allocate_producer_ids(NODE, plane.broker_epoch)
        assert more == range(block.stop, block.stop + 1000)
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_restart_starts_new_leader_epochs() -> None:
    """One epoch when the previous incarnation is fenced, one when the new one leads."""

    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        await controller.create_topics([NewTopic("a", 2, 1)])
        for clean, epoch in ((True, 2), (False, 4), (False, 6), (True, 8)):
            await plane.shut_down()
            await plane.boot(clean=clean)
            assert [at.leader_epoch for at in plane.image.topics["a"].partitions] == [epoch, epoch]
            assert [at.leader for at in plane.image.topics["a"].partitions] == [NODE, NODE]
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_after_a_power_loss_all_acknowledged_changes_exist() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        await controller.create_topics([NewTopic("answered", 1, 1)])
        plane.log.sync_gate = asyncio.Event()
        unanswered = asyncio.get_running_loop().create_task(controller.create_topics([NewTopic("unanswered", 1, 1)]))
        for _ in range(30):
            await asyncio.sleep(0)
        assert not unanswered.done()
        assert "unanswered" not in plane.image.topics
        log = plane.log
        await log.lose_power()
        unanswered.cancel()
        plane.log.sync_gate = None
        survivor = ControlPlane(log=log, elections=plane.elections)
        await survivor.boot()
        assert list(survivor.image.topics) == ["answered"]
        await survivor.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_failed_disk_stops_the_controller_and_fails_the_node() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        plane.log.sync_error = StorageError("EIO")
        with pytest.raises(StorageError, match="EIO"):
            await controller.create_topics([NewTopic("a", 1, 1)])
        assert plane.failures == [plane.log.sync_error]
        assert not controller.is_active
        with pytest.raises(NotControllerError):
            await controller.create_topics([NewTopic("b", 1, 1)])
        assert "a" not in plane.image.topics
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_disk_that_fails_while_booting_fails_the_boot() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await plane.boot()
        await plane.shut_down()
        plane.log.append_error = StorageError("EIO")
        with pytest.raises(StorageError):
            await plane.boot()

    on_both_kinds_of_log(scenario)


def test_a_failed_publisher_stops_the_controller_and_fails_the_node() -> None:
    async def scenario(plane: ControlPlane) -> None:
        def broken(delta: MetadataDelta, image: MetadataImage) -> None:
            if delta.topics_created:
                raise OSError("too many open files")

        controller = await plane.boot(publisher=broken)
        with pytest.raises(StorageError, match="too many open files"):
            await controller.create_topics([NewTopic("a", 1, 1)])
        assert [str(failure) for failure in plane.failures] == ["too many open files"]
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_controller_that_shuts_down_rejects_requests() -> None:
    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        await plane.shut_down()
        with pytest.raises(NotControllerError):
            await controller.create_topics([NewTopic("a", 1, 1)])

    on_both_kinds_of_log(scenario)


def test_a_closed_controller_is_not_activated_by_a_late_commit() -> None:
    """It would decide on an image without its last appends."""

    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        plane.log.sync_gate = asyncio.Event()
        creating = asyncio.create_task(controller.create_topics([NewTopic("a", 1, 1)]))
        for _ in range(30):
            await asyncio.sleep(0)
        await controller.close()
        plane.log.sync_gate.set()
        await plane.loader.wait_for_offset(plane.log.end_offset - 1)
        assert "a" in plane.image.topics
        assert not controller.is_active
        with pytest.raises(RequestTimedOutError):
            await creating
        await plane.shut_down()

    on_both_kinds_of_log(scenario)


def test_a_restart_on_files_loads_log_and_quorum_state(tmp_path: Path) -> None:
    disk = OsDisk()

    async def live(clean: bool) -> MetadataImage:
        store = FileLogStore(disk, str(tmp_path), FixedClock())
        await store.start()
        log = await open_metadata_log(store)
        plane = ControlPlane(
            log=log,  # type: ignore[arg-type]
            elections=FileQuorumStateStore(disk, str(tmp_path / str(METADATA_LOG)), "test-cluster"),
        )
        controller = await plane.boot(clean=clean)
        await controller.create_topics([NewTopic(f"topic-{controller.epoch}", 2, 1)])
        await plane.shut_down()
        if clean:
            await store.close()
        return plane.image

    images = [asyncio.run(live(clean)) for clean in (True, False, True)]
    assert [list(image.topics) for image in images] == [
        ["topic-1"],
        ["topic-1", "topic-2"],
        ["topic-1", "topic-2", "topic-3"],
    ]
    assert images[2].topics["topic-2"].topic_id == images[1].topics["topic-2"].topic_id
    assert images[2].controller_epoch == 3
    assert (tmp_path / "__cluster_metadata-0" / "quorum-state").is_file()


# Model test: random admin calls, crashes and restarts

names = st.sampled_from(["a", "b", "a.b", "a_b", "__x", "", "bad name"])
partitions = st.integers(-2, 4)
keys = st.sampled_from(["retention.ms", "cleanup.policy", "segment.bytes", "no.such"])
values = st.sampled_from(["1048576", "compact", "delete", "-1", "x"])
steps = st.one_of(
    st.tuples(st.just("create"), st.lists(st.tuples(names, partitions), min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.lists(names, min_size=1, max_size=2)),
    st.tuples(st.just("grow"), st.tuples(names, partitions)),
    st.tuples(st.just("alter"), st.tuples(names, keys, values, st.sampled_from(ConfigOperation), st.booleans())),
    st.tuples(st.just("ids"), st.none()),
    st.tuples(st.just("together"), st.lists(names, min_size=2, max_size=4)),
    st.tuples(st.just("restart"), st.booleans()),
)


@settings(max_examples=60)
@given(scenario=st.lists(steps, max_size=12), awaits=st.booleans())
def test_replaying_the_log_gives_the_published_image(scenario: list[tuple[str, Any]], awaits: bool) -> None:
    asyncio.run(_live_and_replay(scenario, awaits))


async def _live_and_replay(scenario: list[tuple[str, Any]], awaits: bool) -> None:
    plane = ControlPlane(log=TestLog(awaits=awaits))
    await plane.boot()
    ids: list[range] = []
    model: dict[str, int] = {}
    for step, what in scenario:
        controller = plane.controller
        match step:
            case "create":
                for created in await controller.create_topics([NewTopic(name, n, 1) for name, n in what]):
                    if created.error is None:
                        model[created.name] = created.partitions
            case "delete":
                for deleted in await controller.delete_topics([TopicRef(name) for name in what]):
                    if deleted.error is None and deleted.name is not None:
                        del model[deleted.name]
            case "grow":
                [grown] = await controller.create_partitions([PartitionIncrease(*what)])
                if grown.error is None:
                    model[what[0]] = what[1]
            case "alter":
                name, key, value, operation, incremental = what
                resource = ConfigResource(TOPIC_RESOURCE, name)
                change = ConfigChange(key, value, operation if incremental else ConfigOperation.SET)
                await controller.alter_configs({resource: [change]}, incremental=incremental)
            case "ids":
                ids.append(await controller.allocate_producer_ids(NODE, plane.broker_epoch))
            case "together":
                for [created] in await asyncio.gather(
                    *(controller.create_topics([NewTopic(name, 1, 1)]) for name in what)
                ):
                    if created.error is None:
                        model[created.name] = 1
            case "restart":
                await plane.shut_down()
                await plane.boot(clean=what)
        assert {name: len(topic.partitions) for name, topic in plane.image.topics.items()} == model
    assert len({first for block in ids for first in block}) == 1000 * len(ids)
    await plane.until_published()
    served = plane.image
    await plane.shut_down()
    assert _replayed(plane) == served


def _replayed(plane: ControlPlane) -> MetadataImage:
    """Returns the image replayed from the log, before any election."""
    image = MetadataImage(cluster_id="test-cluster")
    for data in plane.log._batches:
        batch = read_committed_batch(Batch(data))
        changes: list[MetadataChange] = [decode(value) for value in batch.values]
        if batch.leader_id is not None:
            changes.append(ControllerChange(batch.leader_id, batch.epoch))
        image, _ = apply_changes(image, changes, batch.last_offset)
    return image


def test_a_logged_decision_that_cannot_be_applied_fails_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its controller would continue from an image that is behind its log."""

    def fail(self: ControllerState, records: object, end_offset: int) -> None:
        raise ValueError("a bug")

    async def scenario(plane: ControlPlane) -> None:
        controller = await plane.boot()
        with monkeypatch.context() as patched:
            patched.setattr(ControllerState, "apply", fail)
            with pytest.raises(ValueError, match="a bug"):
                await controller.create_topics([NewTopic("orders", 1, 1)])
        assert [str(each) for each in plane.failures] == ["a bug"]
        await asyncio.sleep(0.01)
        assert not controller.is_active
        await plane.shut_down()

    on_both_kinds_of_log(scenario)
