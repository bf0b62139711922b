"""GroupShard and its driver: commits, append errors, loading, timeouts, cleanup."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import pytest

from moldau.coordinator.result import Now
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InvalidCommitOffsetSizeError,
    MoldauError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    StorageError,
)
from moldau.groups.formats import decode
from moldau.groups.group_shard import GroupShard
from moldau.groups.records import NO_EXPIRY, CommittedOffset, OffsetCommitRecord
from moldau.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    GroupDescription,
    GroupResponse,
    GroupResult,
    GroupState,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    OffsetToCommit,
    Protocol,
    SyncRequest,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.logs.memory import MemoryLog
from moldau.logs.store import LogName
from moldau.metadata.image import PartitionRegistration, TopicImage
from moldau.partitions.partition import Partition
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from moldau.settings.broker import BrokerSettings
from moldau.settings.topic import TopicSettings

T = TypeVar("T")

NAME = LogName("__consumer_offsets", 7)
TOPIC_ID = UUID(int=7)
LIMITS = BrokerSettings(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=0)
LONG_MS = 600_000
PATIENCE_S = 20


class GatedLog(MemoryLog):
    """A log that can be told to wait, or to fail."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(NAME, TOPIC_ID, TopicSettings(**settings), 86_400_000)
        self.synced = asyncio.Event()
        self.synced.set()
        self.append_error: Exception | None = None
        self.read_error: Exception | None = None
        self.sync_errors: list[Exception] = []
        self.offline: str | None = None
        self.reads = 0

    @property
    def failure(self) -> str | None:
        return self.offline

    async def append(self, batches: Sequence[Batch]) -> None:
        if self.append_error is not None:
            raise self.append_error
        await super().append(batches)

    async def flush(self) -> None:
        await self.synced.wait()
        if self.sync_errors:
            raise self.sync_errors.pop()
        await super().flush()

    async def read(self, *arguments: Any, **more: Any) -> Any:
        self.reads += 1
        if self.read_error is not None:
            raise self.read_error
        return await super().read(*arguments, **more)


def image(leader: int = 1, epoch: int = 3) -> PartitionRegistration:
    return PartitionRegistration(NAME.partition, (1,), (1,), leader, epoch, epoch)


class DriverHarness:
    """A partition, and the shard on it."""

    def __init__(self, log: GatedLog, partition: Partition, commit_timeout_ms: int) -> None:
        self.log = log
        self.partition = partition
        self.topics: dict[str, TopicImage] = {}
        self.shard = GroupShard(
            partition, SystemClock(), commit_timeout_ms=commit_timeout_ms, existing_topics=lambda: self.topics
        )
        self.ids = 0

    def commit(
        self, *offsets: int, group_id: str = "g", metadata: str = "", topic_id: UUID | None = None
    ) -> "asyncio.Future[GroupResponse]":
        """Offset by partition, of a consumer in no group."""
        identity = MemberIdentity(
            group_id=group_id, generation=NO_GENERATION, member_id=UNKNOWN_MEMBER_ID, instance_id=None
        )
        made = [
            OffsetToCommit("orders", p, offset, -1, metadata, NO_EXPIRY, topic_id) for p, offset in enumerate(offsets)
        ]
        request = CommitRequest(identity=identity, offsets=tuple(made))
        return self.shard.driver.submit(
            lambda state, now, request_id: state.commit(now, request, request_id),
            too_large_error=InvalidCommitOffsetSizeError,
        )

    async def offsets(self, group_id: str = "g") -> list[int]:
        reply = await self.shard.driver.submit(
            lambda state, now, request_id: state.fetch_offsets(group_id, None, request_id)
        )
        assert isinstance(reply, dict)
        return [each.offset for each in reply.values() if isinstance(each, CommittedOffset)]

    def join(self, group_id: str = "g", member_id: str = "", **more: Any) -> "asyncio.Future[GroupResponse]":
        self.ids += 1
        details: dict[str, Any] = {
            "new_member_id": f"member-{self.ids}",
            "instance_id": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": LONG_MS,
            "rebalance_timeout_ms": LONG_MS,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b""),),
            "requires_known_member_id": False,
            "supports_skipping_assignment": False,
        }
        request = JoinRequest(group_id=group_id, member_id=member_id, **{**details, **more})
        return self.shard.driver.submit(lambda state, now, request_id: state.groups.join(now, request, request_id))

    def sync(
        self, joined: JoinResponse, group_id: str = "g", assignment: bytes = b"all"
    ) -> "asyncio.Future[GroupResponse]":
        request = SyncRequest(
            group_id=group_id,
            generation=joined.generation,
            member_id=joined.member_id,
            instance_id=None,
            protocol_type=None,
            protocol_name=None,
            assignments={joined.member_id: assignment},
        )
        return self.shard.driver.submit(lambda state, now, request_id: state.groups.sync(now, request, request_id))

    async def member(self, group_id: str = "g", **more: Any) -> JoinResponse:
        joined = await self.join(group_id, **more)
        assert isinstance(joined, JoinResponse)
        await self.sync(joined, group_id)
        return joined

    async def describe(self, group_id: str = "g") -> GroupDescription:
        reply = await self.shard.driver.submit(
            lambda state, now, request_id: state.groups.describe(group_id, request_id)
        )
        assert isinstance(reply, GroupDescription)
        return reply

    async def reopened(self, bytes_per_read: int = 1 << 20) -> "DriverHarness":
        """The same log under a new leader epoch, loaded."""
        await self.shard.driver.close()
        await self.partition.apply_image(image(epoch=self.partition.leader_epoch + 1))
        again = DriverHarness(self.log, self.partition, LONG_MS)
        await again.shard.driver.load(GroupCoordinatorShard(LIMITS), bytes_per_read)
        return again


def run_scene(
    scene: Callable[[DriverHarness], Coroutine[Any, Any, T]], *, commit_timeout_ms: int = LONG_MS, **settings: Any
) -> T:
    async def run() -> T:
        log = GatedLog(**settings)
        partition = Partition(NAME, TOPIC_ID, 1, log, SystemClock())
        await partition.apply_image(image())
        harness = DriverHarness(log, partition, commit_timeout_ms)
        harness.shard.driver.activate(GroupCoordinatorShard(LIMITS), 0)
        result = await asyncio.wait_for(scene(harness), PATIENCE_S)
        log.synced.set()
        await harness.shard.driver.close()
        await partition.close()
        return result

    return asyncio.run(run())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Answers


def test_a_response_waits_for_the_commit_of_its_records() -> None:
    async def scene(harness: DriverHarness) -> None:
        harness.log.synced.clear()
        answered = harness.commit(5)
        await turns()
        assert harness.log.end_offset == 1
        assert not answered.done()
        looking = asyncio.ensure_future(harness.offsets())
        await turns()
        assert not looking.done(), "nobody is shown what a power cut could take back"
        harness.log.synced.set()
        reply = await answered
        assert isinstance(reply, dict)
        assert list(reply.values()) == [None]
        assert await looking == [5]

    run_scene(scene)


def test_operations_do_not_wait_for_each_others_fsync() -> None:
    async def scene(harness: DriverHarness) -> None:
        harness.log.synced.clear()
        answers = [harness.commit(number) for number in range(100)]
        await turns(500)
        assert harness.log.end_offset == 100
        harness.log.synced.set()
        await asyncio.gather(*answers)
        assert await harness.offsets() == [99]

    run_scene(scene)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (NotEnoughReplicasError("two are needed"), CoordinatorNotAvailableError),
        (StorageError("disk full"), NotCoordinatorError),
    ],
)
def test_append_errors_are_mapped_as_in_kafka(why: MoldauError, told: type[MoldauError]) -> None:
    async def scene(harness: DriverHarness) -> None:
        harness.log.append_error = why
        with pytest.raises(told):
            await harness.commit(5)
        joined = await harness.join()
        assert isinstance(joined, JoinResponse)
        with pytest.raises(told):
            await harness.sync(joined)
        harness.log.append_error = None
        await harness.commit(6, group_id="another")
        assert await harness.offsets() == []
        assert await harness.offsets("another") == [6]

    run_scene(scene)


def test_a_commit_too_large_for_a_batch_is_rejected() -> None:
    async def scene(harness: DriverHarness) -> None:
        with pytest.raises(InvalidCommitOffsetSizeError):
            await harness.commit(*range(100), metadata="m" * 100)
        await harness.commit(5)
        assert await harness.offsets() == [5]

    run_scene(scene, max_message_bytes=2000)


def test_an_assignment_too_large_for_a_batch_is_an_unknown_error() -> None:
    async def scene(harness: DriverHarness) -> None:
        joined = await harness.join()
        assert isinstance(joined, JoinResponse)
        with pytest.raises(MoldauError) as refused:
            await harness.sync(joined, assignment=b"x" * 3000)
        assert type(refused.value) is MoldauError

    run_scene(scene, max_message_bytes=2000)


def test_a_slow_commit_fails_with_coordinator_not_available() -> None:
    async def scene(harness: DriverHarness) -> None:
        harness.log.synced.clear()
        with pytest.raises(CoordinatorNotAvailableError):
            await harness.commit(5)
        with pytest.raises(CoordinatorNotAvailableError):
            await harness.offsets()
        harness.log.synced.set()
        await harness.commit(6)
        assert await harness.offsets() == [6]

    run_scene(scene, commit_timeout_ms=300)


def test_a_request_that_timed_out_in_the_queue_does_not_run() -> None:
    async def scene(harness: DriverHarness) -> None:
        async with harness.partition._lock:
            commit_future, joining = harness.commit(5, group_id="another"), harness.join()
            for late in (commit_future, joining):
                with pytest.raises(CoordinatorNotAvailableError):
                    await late
        await turns()
        assert await harness.offsets("another") == [5], "what was decided is written"
        with pytest.raises(GroupIdNotFoundError):
            await harness.describe()

    run_scene(scene, commit_timeout_ms=300)


def test_groups_continue_after_a_transient_fsync_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def scene(harness: DriverHarness) -> None:
        joined = await harness.join()
        assert isinstance(joined, JoinResponse)
        harness.log.sync_errors = [StorageError("no descriptors")] * 3
        await harness.sync(joined)
        assert (await harness.describe()).state is GroupState.STABLE

    run_scene(scene)


def test_a_cancelled_caller_leaks_nothing() -> None:
    async def scene(harness: DriverHarness) -> None:
        waiting = asyncio.ensure_future(_awaited(harness.commit(5)))
        await asyncio.sleep(0)
        waiting.cancel()
        await turns()
        assert await harness.offsets() == [5], "what was asked for is done all the same"
        assert not harness.shard.driver._pending_responses
        assert not harness.shard.driver._pending_operations

    run_scene(scene)


async def _awaited(future: "asyncio.Future[GroupResponse]") -> GroupResponse:
    return await future


# Ending


def test_unloading_fails_all_pending_requests() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member()
        parked = harness.join()
        harness.log.synced.clear()
        commit_future = harness.commit(5, group_id="another")
        await turns()
        assert not parked.done()
        harness.shard.driver.unload(NotCoordinatorError("elsewhere"))
        for each in (parked, commit_future):
            with pytest.raises(NotCoordinatorError, match="elsewhere"):
                await each
        with pytest.raises(NotCoordinatorError):
            harness.commit(6)

    run_scene(scene)


def test_a_failed_partition_unloads_its_groups() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member()
        parked = harness.join()
        await turns()
        harness.partition.guarded_log.mark_offline(StorageError("the disk is gone"))
        with pytest.raises(NotCoordinatorError):
            await parked
        with pytest.raises(NotCoordinatorError):
            harness.commit(6)

    run_scene(scene)


def test_a_log_that_fails_on_append_unloads_its_groups() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member()
        parked = harness.join()
        harness.log.append_error = StorageError("EIO")
        harness.log.offline = "EIO"
        with pytest.raises(NotCoordinatorError):
            await harness.commit(5, group_id="another")
        with pytest.raises(NotCoordinatorError):
            await parked

    run_scene(scene)


def test_a_background_operation_on_a_failed_log_unloads_its_groups() -> None:
    """The caller publishes metadata, which must not fail for all partitions because of one disk error."""

    async def scene(harness: DriverHarness) -> None:
        await harness.commit(5)
        harness.log.append_error = StorageError("EIO")
        harness.log.offline = "EIO"
        harness.shard.on_topics_deleted([("orders", None)])
        await turns()
        with pytest.raises(NotCoordinatorError):
            await harness.commit(6)

    run_scene(scene)


def test_losing_leadership_unloads_the_shard() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member()
        parked = harness.join()
        await turns()
        await harness.partition.apply_image(image(leader=2, epoch=4))
        with pytest.raises(NotCoordinatorError):
            await parked

    run_scene(scene)


# Loading


@pytest.mark.parametrize("bytes_per_read", [1, 500, 1 << 20])
def test_groups_and_offsets_are_loaded_from_the_log(bytes_per_read: int) -> None:
    async def scene(harness: DriverHarness) -> None:
        joined = await harness.member("members")
        for number in range(50):
            await harness.commit(number, number + 1, group_id=f"group-{number % 5}")
        before = await harness.describe("members")
        reads = harness.log.reads
        again = await harness.reopened(bytes_per_read)
        assert again.shard.driver.is_active
        assert await again.describe("members") == before
        assert before.state is GroupState.STABLE
        assert [each.member_id for each in before.members] == [joined.member_id]
        assert await again.offsets("group-3") == [48, 49]
        if bytes_per_read == 1:
            assert harness.log.reads - reads > 50, "in pieces as small as was asked for"
        await again.commit(100, group_id="group-3")
        assert await again.offsets("group-3") == [100, 49]
        await again.shard.driver.close()

    run_scene(scene)


def test_requests_fail_while_loading_and_the_loop_is_not_blocked() -> None:
    async def scene(harness: DriverHarness) -> None:
        await asyncio.gather(*(harness.commit(number, group_id=f"group-{number}") for number in range(3000)))
        await harness.shard.driver.close()
        again = DriverHarness(harness.log, harness.partition, LONG_MS)
        with pytest.raises(CoordinatorLoadInProgressError):
            again.commit(1)
        loading = asyncio.ensure_future(again.shard.driver.load(GroupCoordinatorShard(LIMITS), 1 << 20))
        taken = 0
        while not loading.done():
            await asyncio.sleep(0)
            taken += 1
            if not loading.done():
                with pytest.raises(CoordinatorLoadInProgressError):
                    again.commit(1)
        assert taken > 5
        assert await again.offsets("group-2999") == [2999]
        await again.shard.driver.close()

    run_scene(scene)


def test_loading_waits_for_uncommitted_records() -> None:
    async def scene(harness: DriverHarness) -> None:
        harness.log.synced.clear()
        lost = harness.commit(5)
        await turns()
        await harness.shard.driver.close()
        with pytest.raises(NotCoordinatorError):
            await lost
        again = DriverHarness(harness.log, harness.partition, LONG_MS)
        loading = asyncio.ensure_future(again.shard.driver.load(GroupCoordinatorShard(LIMITS), 1 << 20))
        await turns()
        assert again.shard.driver.is_loading
        harness.log.synced.set()
        await loading
        assert await again.offsets() == [5]
        await again.shard.driver.close()

    run_scene(scene)


def _flip(harness: DriverHarness) -> None:
    data = bytearray(harness.log._batches[1])
    data[-3] ^= 4
    harness.log._batches[1] = bytes(data)


def _put(harness: DriverHarness, key: bytes | None, value: bytes | None) -> None:
    harness.log._batches[1] = build_batch([Record(key=key, value=value)], base_offset=1)


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        lambda harness: _put(harness, b"\x00\x01\x00", b""),
        lambda harness: _put(harness, None, b"value"),
        lambda harness: _put(harness, b"\x00\x02\x00\x01g", b"\x00\x03\xff"),
    ],
    ids=["a flipped bit", "a torn key", "no key", "a torn value"],
)
def test_a_corrupt_log_is_not_served(damage: Callable[[DriverHarness], None], caplog: Any) -> None:
    async def scene(harness: DriverHarness) -> None:
        for number in range(3):
            await harness.commit(number)
        damage(harness)
        again = await harness.reopened()
        assert not again.shard.driver.is_loading
        assert not again.shard.driver.is_active
        assert again.shard.driver.unexpected_errors == 0
        with pytest.raises(NotCoordinatorError):
            again.commit(6)

    run_scene(scene)
    assert "moldau log verify" in caplog.text


def test_a_transient_read_error_keeps_the_shard_loading(caplog: Any) -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.commit(5)
        harness.log.read_error = StorageError("no descriptors")
        again = await harness.reopened()
        assert again.shard.driver.is_loading
        with pytest.raises(CoordinatorLoadInProgressError):
            again.commit(6)
        harness.log.read_error = None
        await again.shard.driver.load(GroupCoordinatorShard(LIMITS), 1 << 20)
        assert await again.offsets() == [5]
        await again.shard.driver.close()

    run_scene(scene)
    assert "loading groups failed, retrying" in caplog.text
    assert "backup" not in caplog.text


def test_an_offline_log_is_not_retried(caplog: Any) -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.commit(5)
        harness.log.read_error = StorageError("EIO")
        harness.log.offline = "EIO"
        again = await harness.reopened()
        assert not again.shard.driver.is_loading
        assert not again.shard.driver.is_active

    run_scene(scene)
    assert "backup" in caplog.text


def test_a_new_leader_epoch_cancels_loading(caplog: Any) -> None:
    async def scene(harness: DriverHarness) -> None:
        for number in range(3):
            await harness.commit(number)
        await harness.shard.driver.close()
        again = DriverHarness(harness.log, harness.partition, LONG_MS)
        harness.log.synced.clear()
        loading = asyncio.ensure_future(again.shard.driver.load(GroupCoordinatorShard(LIMITS), 1))
        await turns(1)
        again.shard.driver.unload(NotCoordinatorError("a new epoch"))
        await harness.partition.apply_image(image(epoch=4))
        await loading
        assert not again.shard.driver.is_active
        assert not again.shard.driver.is_loading

    run_scene(scene)
    assert "cannot be loaded" not in caplog.text


# Time


def test_a_member_without_heartbeats_is_removed() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member(session_timeout_ms=300)
        assert (await harness.describe()).state is GroupState.STABLE
        while (await harness.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)

    run_scene(scene)


def test_session_timeouts_of_loaded_groups_run() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.member(session_timeout_ms=300)
        again = await harness.reopened()
        while (await again.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)
        await again.shard.driver.close()

    run_scene(scene)


def test_timeouts_are_retried_after_a_failed_write(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("moldau.coordinator.shard_driver.TICK_BACKOFF_MS", 10)

    async def scene(harness: DriverHarness) -> None:
        await harness.member(session_timeout_ms=300)
        harness.log.append_error = StorageError("disk full")
        while "writing a change of groups failed" not in caplog.text:
            await asyncio.sleep(0.005)
        harness.log.append_error = None
        while (await harness.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)
        assert harness.shard.driver.unexpected_errors == 0

    run_scene(scene)


def test_an_unexpected_error_in_a_background_operation_is_counted(caplog: Any) -> None:
    async def scene(harness: DriverHarness) -> None:
        def breaks(state: GroupCoordinatorShard, now: object) -> Any:
            raise KeyError("a bug")

        harness.shard.driver.run(breaks)
        await turns()
        assert harness.shard.driver.unexpected_errors == 1
        await harness.commit(5)
        assert await harness.offsets() == [5]

    run_scene(scene)


# Forgetting


def test_many_tombstones_are_split_into_batches() -> None:
    async def scene(harness: DriverHarness) -> None:
        for start in range(0, 100, 10):
            await asyncio.gather(*(harness.commit(*range(9), group_id=f"g{start + n}") for n in range(10)))
        written = len(harness.log._batches)
        harness.shard.on_topics_deleted([("orders", None)])
        await turns(200)
        assert not harness.shard.deleted_topics
        assert await harness.offsets("g42") == []
        offset_tombstones = [
            decode(record.key or b"", record.value)
            for data in harness.log._batches[written:]
            for batch in split(data)
            for record in iterate_records(batch)
        ]
        assert len(offset_tombstones) == 900
        assert all(isinstance(each, OffsetCommitRecord) and each.committed is None for each in offset_tombstones)
        assert len(harness.log._batches) - written > 10

    run_scene(scene, max_message_bytes=2000)


def test_a_failed_deletion_of_offsets_is_retried() -> None:
    async def scene(harness: DriverHarness) -> None:
        await harness.commit(5)
        harness.log.append_error = StorageError("disk full")
        harness.shard.on_topics_deleted([("orders", None)])
        await turns()
        assert await harness.offsets() == [5]
        harness.log.append_error = None
        harness.shard.cleanup()
        await turns()
        assert await harness.offsets() == []
        assert not harness.shard.deleted_topics

    run_scene(scene)


def test_offsets_of_a_recreated_topic_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: now_ms)

    async def scene(harness: DriverHarness) -> None:
        nonlocal now_ms
        await harness.commit(5, group_id="old")
        harness.log.append_error = StorageError("disk full")
        harness.shard.on_topics_deleted([("orders", None)])
        await turns()
        harness.log.append_error = None
        now_ms += 1
        await harness.commit(7, group_id="new")
        harness.shard.cleanup()
        await turns()
        assert [await harness.offsets(group_id) for group_id in ("old", "new")] == [[], [7]]
        assert not harness.shard.deleted_topics

    run_scene(scene)


def test_offsets_of_two_deleted_topics_of_one_name_are_deleted() -> None:
    async def scene(harness: DriverHarness) -> None:
        first, second, third = (UUID(int=number) for number in (1, 2, 3))
        for group_id, topic_id in (("a", first), ("b", second), ("c", third)):
            await harness.commit(5, group_id=group_id, topic_id=topic_id)
        harness.log.append_error = StorageError("disk full")
        harness.shard.on_topics_deleted([("orders", first)])
        harness.shard.on_topics_deleted([("orders", second)])
        await turns()
        harness.log.append_error = None
        harness.shard.cleanup()
        await turns()
        assert [await harness.offsets(group_id) for group_id in "abc"] == [[], [], [5]]
        assert not harness.shard.deleted_topics

    run_scene(scene)


def test_cleanup_runs_in_steps_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.groups.shard.OFFSETS_PER_EXPIRATION_PASS", 4)

    async def scene(harness: DriverHarness) -> None:
        for number in range(100):
            await harness.commit(number, group_id=f"group-{number}")
        looks = 0

        def counted(state: GroupCoordinatorShard, now: Now) -> GroupResult | None:
            nonlocal looks
            looks += 1
            return state.expire_offsets(now)

        harness.shard.driver.run_repeatedly(counted)
        assert await harness.offsets("group-7") == [7]
        assert looks < 5
        while harness.shard.driver._pending_operations:
            await asyncio.sleep(0)
        assert looks == 51

    run_scene(scene)
