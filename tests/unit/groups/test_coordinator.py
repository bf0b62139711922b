"""GroupCoordinator in a node: offsets topic, loading, restart, shutdown."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.requests import NewTopic, TopicRef
from moldau.coordinator.java_hash import java_hash, partition_for
from moldau.coordinator.state_partition import load
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidConfigError,
    InvalidGroupIdError,
    NotCoordinatorError,
    RecordTooLargeError,
    StorageError,
    UnknownMemberIdError,
)
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.group_shard import GroupShard
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.groups.records import NO_EXPIRY
from moldau.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    MemberIdentity,
    OffsetToCommit,
    Protocol,
    SyncRequest,
)
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource
from moldau.observe.logging import FIELDS
from moldau.settings.sources import build_settings
from moldau.testing import Broker
from support.raw_group_member import JOIN_GROUP, NOT_COORDINATOR, RawGroupMember, join_tree
from support.wire import WireClient


@pytest.mark.parametrize(
    ("group_id", "code", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("my-group", -1906497762, 12),
        ("consumer-group-1", 147483020, 20),
        ("analytics", -1693017210, 10),
        ("polygenelubricants", -(2**31), 0),
        ("Vltava-řeka 水", -1187374827, 27),
        ("🙂", 1772965, 15),
    ],
)
def test_groups_have_the_same_partition_as_in_kafka(group_id: str, code: int, partition: int) -> None:
    """The numbers are what Java's String.hashCode and Kafka's Utils.abs give."""
    assert java_hash(group_id) == code
    assert partition_for(group_id, 50) == partition


def nobody(group_id: str) -> MemberIdentity:
    return MemberIdentity(group_id=group_id, generation=NO_GENERATION, member_id=UNKNOWN_MEMBER_ID, instance_id=None)


def commit_of(
    group_id: str, topic: str, *offsets: int, identity: MemberIdentity | None = None, topic_id: UUID | None = None
) -> CommitRequest:
    made = [OffsetToCommit(topic, index, offset, -1, "", NO_EXPIRY, topic_id) for index, offset in enumerate(offsets)]
    return CommitRequest(identity=identity or nobody(group_id), offsets=tuple(made))


async def committed(groups: GroupCoordinator, group_id: str) -> dict[tuple[str, int], int]:
    reply = await groups.fetch_offsets(group_id, None)
    return {key: found.offset for key, found in reply.items() if found is not None}


def join_of(group_id: str, member_id: str = "", **more: Any) -> JoinRequest:
    details: dict[str, Any] = {
        "new_member_id": f"fresh-{group_id}",
        "instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 600_000,
        "rebalance_timeout_ms": 600_000,
        "protocol_type": "consumer",
        "protocols": (Protocol("range", b""),),
        "requires_known_member_id": False,
        "supports_skipping_assignment": False,
    }
    return JoinRequest(group_id=group_id, member_id=member_id, **{**details, **more})


async def member(groups: GroupCoordinator, group_id: str, **more: Any) -> MemberIdentity:
    """Joins and syncs as the only one."""
    joined = await groups.join(join_of(group_id, **more))
    assert isinstance(joined, JoinResponse)
    request = SyncRequest(
        group_id=group_id,
        generation=joined.generation,
        member_id=joined.member_id,
        instance_id=None,
        protocol_type=None,
        protocol_name=None,
        assignments={joined.member_id: b"all"},
    )
    await groups.sync(request)
    return MemberIdentity(group_id=group_id, generation=joined.generation, member_id=joined.member_id, instance_id=None)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# The topic


def test_concurrent_lookups_create_the_offsets_topic_once() -> None:
    async def scene() -> None:
        async with Broker(settings={"offsets.topic.num.partitions": "5"}) as broker:
            parts = broker.node.broker
            creations = 0
            create = parts.controller.create_topics

            async def counted(topics: list[NewTopic], **more: Any) -> Any:
                nonlocal creations
                creations += 1
                return await create(topics, **more)

            parts.controller.create_topics = counted  # type: ignore[method-assign]
            with pytest.raises(NotCoordinatorError):
                await parts.groups.commit(commit_of("g", "orders", 1))
            found = await asyncio.gather(*(parts.groups.coordinator_partition(f"group-{n}") for n in range(20)))
            assert creations == 1
            assert {each.leader for each in found} == {1}
            topic = parts.metadata.image.topics[OFFSETS_TOPIC]
            assert len(topic.partitions) == 5
            configs = parts.metadata.image.config(ConfigResource(TOPIC_RESOURCE, OFFSETS_TOPIC))
            assert configs["cleanup.policy"] == "compact"
            assert configs["segment.bytes"] == "104857600"
            await parts.groups.commit(commit_of("g", "orders", 1))
            assert await committed(parts.groups, "g") == {("orders", 0): 1}

    asyncio.run(scene())


def test_a_failed_creation_of_the_offsets_topic_is_retried() -> None:
    async def scene() -> None:
        async with Broker(settings={"offsets.topic.replication.factor": "3"}) as broker:
            groups = broker.node.broker.groups
            for _ in range(2):
                asked = [groups.coordinator_partition("g") for _ in range(3)]
                for refused in await asyncio.gather(*asked, return_exceptions=True):
                    assert isinstance(refused, CoordinatorNotAvailableError)

    asyncio.run(scene())


def test_deleting_the_offsets_topic_deletes_all_groups() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            parts = broker.node.broker
            await parts.groups.ensure_topic()
            await parts.groups.commit(commit_of("g", "orders", 1))
            identity = await member(parts.groups, "members")
            parked = asyncio.ensure_future(parts.groups.join(join_of("members", new_member_id="another")))
            await turns()
            await parts.controller.delete_topics([TopicRef(OFFSETS_TOPIC)])
            with pytest.raises(NotCoordinatorError):
                await parked
            with pytest.raises(NotCoordinatorError):
                await parts.groups.heartbeat(identity)
            await parts.groups.ensure_topic()
            with pytest.raises(UnknownMemberIdError):
                await parts.groups.heartbeat(identity)
            assert await committed(parts.groups, "g") == {}

    asyncio.run(scene())


# What is kept


@pytest.fixture
def on_files(tmp_path: Path) -> dict[str, str]:
    return {"store": "files", "data.dir": str(tmp_path / "data")}


async def on_loaded(groups: GroupCoordinator) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await groups.list_groups()
            except CoordinatorLoadInProgressError:
                await asyncio.sleep(0.001)
            else:
                return


def test_groups_and_offsets_survive_a_restart(on_files: dict[str, str]) -> None:
    async def scene() -> None:
        async with Broker(topics={"orders": 2}, settings=on_files) as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            identity = await member(groups, "members")
            await groups.commit(commit_of("members", "orders", 7, 8, identity=identity))
            for number in range(30):
                await groups.commit(commit_of(f"group-{number}", "orders", number))
            described = await groups.describe("members")
        async with Broker(settings=on_files) as broker:
            groups = broker.node.broker.groups
            await on_loaded(groups)
            assert await groups.describe("members") == described
            await groups.heartbeat(identity)
            assert await committed(groups, "members") == {("orders", 0): 7, ("orders", 1): 8}
            for number in range(30):
                assert await committed(groups, f"group-{number}") == {("orders", 0): number}
            assert len(await groups.list_groups()) == 31

    asyncio.run(scene())


def test_offsets_of_a_deleted_topic_are_deleted(on_files: dict[str, str]) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders", "payments"], settings=on_files) as broker:
            parts = broker.node.broker
            await parts.groups.ensure_topic()
            for group_id in ("a", "b", "c"):
                await parts.groups.commit(commit_of(group_id, "orders", 1))
                await parts.groups.commit(commit_of(group_id, "payments", 2))
            await parts.controller.delete_topics([TopicRef("orders")])
            await parts.controller.create_topics([NewTopic("orders", 1)])
            for group_id in ("a", "b", "c"):
                assert await committed(parts.groups, group_id) == {("payments", 0): 2}
        async with Broker(settings=on_files) as broker:
            await on_loaded(broker.node.broker.groups)
            for group_id in ("a", "b", "c"):
                assert await committed(broker.node.broker.groups, group_id) == {("payments", 0): 2}

    asyncio.run(scene())


def test_a_recreated_topic_has_no_offsets_after_a_crash_before_the_tombstones(
    on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        with monkeypatch.context() as crash:
            crash.setattr(GroupShard, "on_topics_deleted", lambda shard, topics: None)
            async with Broker(topics=["orders", "payments", "gone"], settings=on_files) as broker:
                parts = broker.node.broker
                await parts.groups.ensure_topic()
                for name in ("orders", "payments", "gone"):
                    topic_id = parts.metadata.image.topics[name].topic_id
                    await parts.groups.commit(commit_of("g", name, 1, topic_id=topic_id))
                await parts.groups.commit(commit_of("nameless", "orders", 2))
                await parts.controller.delete_topics([TopicRef("orders"), TopicRef("gone")])
                await parts.controller.create_topics([NewTopic("orders", 1)])
                topic_id = parts.metadata.image.topics["orders"].topic_id
                await parts.groups.commit(commit_of("later", "orders", 3, topic_id=topic_id))
        for _ in range(2):
            async with Broker(settings=on_files) as broker:
                groups = broker.node.broker.groups
                await on_loaded(groups)
                assert await committed(groups, "g") == {("payments", 0): 1}
                assert await committed(groups, "later") == {("orders", 0): 3}
                assert await committed(groups, "nameless") == {("orders", 0): 2}, "nobody knows whose it is"

    asyncio.run(scene())


def test_loading_is_retried_after_a_transient_error(on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.coordinator.shard_manager.LOAD_RETRY_BACKOFF_S", 0.001)
    failures = 0

    async def load_at_last(*arguments: Any) -> int:
        nonlocal failures
        if failures < 60:
            failures += 1
            raise StorageError("no descriptors")
        return await load(*arguments)

    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            for number in range(30):
                await groups.commit(commit_of(f"g{number}", "orders", number))
        monkeypatch.setattr("moldau.coordinator.shard_driver.load", load_at_last)
        async with Broker(settings=on_files) as broker:
            groups = broker.node.broker.groups
            await on_loaded(groups)
            assert failures == 60
            for number in range(30):
                assert await committed(groups, f"g{number}") == {("orders", 0): number}

    asyncio.run(scene())


def test_groups_are_reloaded_after_an_unexpected_unload_error(
    on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            await groups.commit(commit_of("g", "orders", 5))
            shards = groups._shards
            driver = shards.shard_of("g").driver
            close = driver.close

            async def breaks_once() -> None:
                monkeypatch.setattr(driver, "close", close)
                raise KeyError("a bug")

            monkeypatch.setattr(driver, "close", breaks_once)
            index = driver.partition.name.partition
            shards._on_resignation(index)
            shards._on_partition_changed(shards.image.topics[OFFSETS_TOPIC].partitions[index])
            await on_loaded(groups)
            assert groups.unexpected_errors == 1
            shards._past_unexpected_errors = 0
            assert await committed(groups, "g") == {("orders", 0): 5}

    asyncio.run(scene())


def test_offsets_of_a_topic_deleted_during_loading_are_deleted(
    on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        may_load = asyncio.Event()

        async def load_when_told(*arguments: Any) -> int:
            await may_load.wait()
            return await load(*arguments)

        monkeypatch.setattr("moldau.coordinator.shard_driver.load", load_when_told)
        async with Broker(topics=["orders"], settings=on_files) as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            for number in range(20):
                await groups.commit(commit_of(f"g{number}", "orders", 1))
        async with Broker(settings=on_files) as broker:
            parts = broker.node.broker
            with pytest.raises(CoordinatorLoadInProgressError):
                await parts.groups.list_groups()
            await parts.controller.delete_topics([TopicRef("orders")])
            may_load.set()
            await on_loaded(parts.groups)
            for number in range(20):
                assert await committed(parts.groups, f"g{number}") == {}

    asyncio.run(scene())


def test_a_recreated_topic_keeps_its_offsets_in_a_later_epoch(
    on_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"], settings=on_files) as broker:
            parts = broker.node.broker
            groups = parts.groups
            await groups.ensure_topic()
            now_ms = groups._clock.wall_ms()
            monkeypatch.setattr(groups._clock, "wall_ms", lambda: now_ms)
            await groups.commit(commit_of("g", "orders", 5, 5))
            with monkeypatch.context() as too_few_in_sync:
                too_few_in_sync.setattr(GroupShard, "_delete_offsets_of_deleted_topics", lambda shard: None)
                await parts.controller.delete_topics([TopicRef("orders")])
                await parts.controller.create_topics([NewTopic("orders", 1)])
            now_ms += 1
            await groups.commit(commit_of("g", "orders", 7))
            now_ms += 1
            shards = groups._shards
            driver = shards.shard_of("g").driver
            driver.leader_epoch -= 1
            index = driver.partition.name.partition
            shards._on_partition_changed(shards.image.topics[OFFSETS_TOPIC].partitions[index])
            await on_loaded(groups)
            assert await committed(groups, "g") == {("orders", 0): 7}

    asyncio.run(scene())


def test_expired_offsets_are_deleted_in_the_background() -> None:
    async def scene() -> None:
        settings = {"offsets.retention.check.interval.ms": "5"}
        async with Broker(topics=["orders"], settings=settings) as broker:
            parts = broker.node.broker
            await parts.groups.ensure_topic()
            offset = OffsetToCommit("orders", 0, 5, -1, "", parts.platform.clock.wall_ms() + 20)
            await parts.groups.commit(CommitRequest(identity=nobody("g"), offsets=(offset,)))
            await parts.groups.commit(commit_of("h", "orders", 6))
            while await committed(parts.groups, "g"):
                await asyncio.sleep(0.005)
            assert await committed(parts.groups, "h") == {("orders", 0): 6}

    asyncio.run(scene())


# Names


def test_invalid_group_ids() -> None:
    async def scene() -> None:
        async with Broker() as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            with pytest.raises(InvalidGroupIdError):
                await groups.join(join_of(""))
            with pytest.raises(InvalidGroupIdError):
                await groups.leave("", [])
            await groups.commit(commit_of("x" * 32_767, "orders", 1))

    asyncio.run(scene())


def test_a_member_too_large_for_a_record_is_rejected() -> None:
    async def scene() -> None:
        async with Broker() as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            halves = tuple(Protocol(name, bytes(600_000)) for name in ("range", "sticky"))
            with pytest.raises(RecordTooLargeError):
                await groups.join(join_of("g", protocols=halves))
            assert await groups.list_groups() == []
            assert sizes(groups) == (0, 0, 0)
            assert (await groups.join(join_of("g", protocols=halves[:1]))).generation == 1

    asyncio.run(scene())


def test_join_and_leave_reasons_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Broker() as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            joined = await groups.join(join_of("g", reason="a rack burns"))
            await groups.leave("g", [LeavingMember(joined.member_id, None, "it rains")])

    with caplog.at_level("DEBUG", logger="moldau"):
        asyncio.run(scene())
    facts = [getattr(record, FIELDS) for record in caplog.records]
    assert [each["reason"] for each in facts if each.get("group") == "g"] == ["a rack burns", "it rains"]


# Ending


def test_stopping_fails_parked_joins() -> None:
    with Broker() as broker:
        with WireClient(broker.bootstrap) as finder:
            finder.request(10, 2, {"key": "g", "key_type": 0})
        one = RawGroupMember(broker.bootstrap, "g").join_alone()
        another = RawGroupMember(broker.bootstrap, "g")
        another.wire.send(JOIN_GROUP, 3, join_tree("g", rebalance_timeout=2**31 - 1))
        one.heartbeat_until_rebalance()
    answer = another.receive_join(version=3)
    assert answer["error_code"] == NOT_COORDINATOR
    one.close()
    another.close()


def test_requests_after_close_fail() -> None:
    async def scene() -> None:
        async with Broker(topics=["orders"]) as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            groups.stop()
            with pytest.raises(NotCoordinatorError):
                await groups.commit(commit_of("g", "orders", 1))
            assert await groups.list_groups() == []

    asyncio.run(scene())


# Nothing is left behind


def sizes(groups: GroupCoordinator) -> tuple[int, int, int]:
    drivers = [shard.driver for shard in groups._shards.shards]
    return (
        sum(len(driver._pending_responses) for driver in drivers),
        sum(len(driver._pending_operations) for driver in drivers),
        sum(len(driver.shard.groups.groups) for driver in drivers if driver.shard is not None),
    )


def test_many_joins_and_leaves_leak_nothing() -> None:
    async def scene() -> None:
        async with Broker() as broker:
            groups = broker.node.broker.groups
            await groups.ensure_topic()
            for number in range(400):
                group_id = f"g{number % 7}"
                joined = await groups.join(join_of(group_id))
                reply = await groups.leave(group_id, [LeavingMember(joined.member_id, None)])
                assert [each.error for each in reply] == [None]
            assert sizes(groups) == (0, 0, 7), "empty groups stay until they expire"
            for number in range(7):
                await groups.delete_group(f"g{number}")
            assert sizes(groups) == (0, 0, 0)

    asyncio.run(scene())


# Settings


def test_conflicting_session_timeout_settings_are_rejected() -> None:
    with pytest.raises(InvalidConfigError, match=r"group\.min\.session\.timeout\.ms"):
        build_settings(flags={"group.min.session.timeout.ms": "100", "group.max.session.timeout.ms": "99"})
