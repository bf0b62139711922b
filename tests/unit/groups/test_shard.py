"""A shard: when answers leave, what is said when the log fails, what loading takes and gives, whose timers run."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import pytest

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
from moldau.groups.records import NO_EXPIRY, OffsetCommitRecord
from moldau.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    CommitResponse,
    GroupCoordinatorConfig,
    GroupDescription,
    GroupResponse,
    GroupResult,
    GroupState,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    Now,
    OffsetsResponse,
    OffsetToCommit,
    Protocol,
    SyncRequest,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.groups.shard_driver import ShardDriver
from moldau.logs.memory import MemoryLog
from moldau.logs.store import LogName
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from moldau.settings.topic import TopicSettings

T = TypeVar("T")

NAME = LogName("__consumer_offsets", 7)
TOPIC_ID = UUID(int=7)
LIMITS = GroupCoordinatorConfig(session_timeout_ms_min=1, initial_rebalance_delay_ms=0)
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


class Stage:
    """A partition, and the shard on it."""

    def __init__(self, log: GatedLog, partition: Partition, commit_timeout_ms: int) -> None:
        self.log = log
        self.partition = partition
        self.shard = ShardDriver(partition, SystemClock(), commit_timeout_ms=commit_timeout_ms)
        self.ids = 0

    def commit(
        self, *offsets: int, group_id: str = "g", metadata: str = "", topic_id: UUID | None = None
    ) -> "asyncio.Future[GroupResponse]":
        """Offset by partition, of a consumer in no group."""
        identity = MemberIdentity(
            group_id=group_id, generation=NO_GENERATION, member_id=UNKNOWN_MEMBER_ID, instance_id=None
        )
        made = [
            OffsetToCommit("orders", p, offset, -1, metadata, NO_EXPIRY, topic_id)
            for p, offset in enumerate(offsets)
        ]
        request = CommitRequest(identity=identity, offsets=tuple(made))
        return self.shard.submit(
            lambda state, now, request_id: state.commit(now, request, request_id), is_commit=True
        )

    async def offsets(self, group_id: str = "g") -> list[int]:
        reply = await self.shard.submit(
            lambda state, now, request_id: state.fetch_offsets(group_id, None, request_id)
        )
        assert isinstance(reply, OffsetsResponse)
        return [each.offset for each in reply.offsets.values() if each is not None]

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
        return self.shard.submit(lambda state, now, request_id: state.groups.join(now, request, request_id))

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
        return self.shard.submit(lambda state, now, request_id: state.groups.sync(now, request, request_id))

    async def member(self, group_id: str = "g", **more: Any) -> JoinResponse:
        joined = await self.join(group_id, **more)
        assert isinstance(joined, JoinResponse)
        await self.sync(joined, group_id)
        return joined

    async def describe(self, group_id: str = "g") -> GroupDescription:
        reply = await self.shard.submit(
            lambda state, now, request_id: state.groups.describe(group_id, request_id)
        )
        assert isinstance(reply, GroupDescription)
        return reply

    async def reopened(self, bytes_per_read: int = 1 << 20) -> "Stage":
        """The same log under a new leader epoch, loaded."""
        await self.shard.close()
        await self.partition.apply_image(image(epoch=self.partition.leader_epoch + 1))
        again = Stage(self.log, self.partition, LONG_MS)
        await again.shard.load(GroupCoordinatorShard(LIMITS), bytes_per_read)
        return again


def on_stage(
    scene: Callable[[Stage], Coroutine[Any, Any, T]], *, commit_timeout_ms: int = LONG_MS, **settings: Any
) -> T:
    async def run() -> T:
        log = GatedLog(**settings)
        partition = Partition(NAME, TOPIC_ID, 1, log, SystemClock())
        await partition.apply_image(image())
        stage = Stage(log, partition, commit_timeout_ms)
        stage.shard.activate(GroupCoordinatorShard(LIMITS), 0)
        result = await asyncio.wait_for(scene(stage), PATIENCE_S)
        log.synced.set()
        await stage.shard.close()
        await partition.close()
        return result

    return asyncio.run(run())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Answers


def test_an_answer_leaves_when_its_records_are_safe_and_not_before() -> None:
    async def scene(stage: Stage) -> None:
        stage.log.synced.clear()
        answered = stage.commit(5)
        await turns()
        assert stage.log.end_offset == 1
        assert not answered.done()
        looking = asyncio.ensure_future(stage.offsets())
        await turns()
        assert not looking.done(), "nobody is shown what a power cut could take back"
        stage.log.synced.set()
        reply = await answered
        assert isinstance(reply, CommitResponse)
        assert list(reply.errors.values()) == [None]
        assert await looking == [5]

    on_stage(scene)


def test_decisions_do_not_wait_for_each_others_syncs() -> None:
    async def scene(stage: Stage) -> None:
        stage.log.synced.clear()
        answers = [stage.commit(number) for number in range(100)]
        await turns(500)
        assert stage.log.end_offset == 100
        stage.log.synced.set()
        await asyncio.gather(*answers)
        assert await stage.offsets() == [99]

    on_stage(scene)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (NotEnoughReplicasError("two are needed"), CoordinatorNotAvailableError),
        (StorageError("disk full"), NotCoordinatorError),
    ],
)
def test_a_log_that_takes_no_records_is_told_as_kafka_tells_it(
    why: MoldauError, told: type[MoldauError]
) -> None:
    async def scene(stage: Stage) -> None:
        stage.log.append_error = why
        with pytest.raises(told):
            await stage.commit(5)
        joined = await stage.join()
        assert isinstance(joined, JoinResponse)
        with pytest.raises(told):
            await stage.sync(joined)
        stage.log.append_error = None
        await stage.commit(6, group_id="another")
        assert await stage.offsets() == []
        assert await stage.offsets("another") == [6]

    on_stage(scene)


def test_a_commit_that_does_not_fit_a_batch_is_refused_and_others_are_not() -> None:
    async def scene(stage: Stage) -> None:
        with pytest.raises(InvalidCommitOffsetSizeError):
            await stage.commit(*range(100), metadata="m" * 100)
        await stage.commit(5)
        assert await stage.offsets() == [5]

    on_stage(scene, max_message_bytes=2000)


def test_an_assignment_that_does_not_fit_a_batch_is_an_error_without_a_name() -> None:
    async def scene(stage: Stage) -> None:
        joined = await stage.join()
        assert isinstance(joined, JoinResponse)
        with pytest.raises(MoldauError) as refused:
            await stage.sync(joined, assignment=b"x" * 3000)
        assert type(refused.value) is MoldauError

    on_stage(scene, max_message_bytes=2000)


def test_who_waits_too_long_for_a_sync_is_told_to_try_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.log.synced.clear()
        with pytest.raises(CoordinatorNotAvailableError):
            await stage.commit(5)
        with pytest.raises(CoordinatorNotAvailableError):
            await stage.offsets()
        stage.log.synced.set()
        await stage.commit(6)
        assert await stage.offsets() == [6]

    on_stage(scene, commit_timeout_ms=20)


def test_a_request_that_was_given_up_before_it_was_decided_comes_to_nothing() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.partition._lock:
            commit_future, joining = stage.commit(5, group_id="another"), stage.join()
            for late in (commit_future, joining):
                with pytest.raises(CoordinatorNotAvailableError):
                    await late
        await turns()
        assert await stage.offsets("another") == [5], "what was decided is written"
        with pytest.raises(GroupIdNotFoundError):
            await stage.describe()

    on_stage(scene, commit_timeout_ms=20)


def test_after_a_sync_that_failed_for_the_moment_the_groups_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.partitions.log_flusher.FLUSH_RETRY_S_MIN", 0.001)

    async def scene(stage: Stage) -> None:
        joined = await stage.join()
        assert isinstance(joined, JoinResponse)
        stage.log.sync_errors = [StorageError("no descriptors")] * 3
        await stage.sync(joined)
        assert (await stage.describe()).state is GroupState.STABLE

    on_stage(scene)


def test_a_caller_that_has_gone_leaves_nothing_behind() -> None:
    async def scene(stage: Stage) -> None:
        waiting = asyncio.ensure_future(_awaited(stage.commit(5)))
        await asyncio.sleep(0)
        waiting.cancel()
        await turns()
        assert await stage.offsets() == [5], "what was asked for is done all the same"
        assert not stage.shard._pending_responses
        assert not stage.shard._pending_operations

    on_stage(scene)


async def _awaited(future: "asyncio.Future[GroupResponse]") -> GroupResponse:
    return await future


# Ending


def test_all_who_wait_are_told_when_the_shard_is_unloaded() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member()
        parked = stage.join()
        stage.log.synced.clear()
        commit_future = stage.commit(5, group_id="another")
        await turns()
        assert not parked.done()
        stage.shard.unload(NotCoordinatorError("elsewhere"))
        for each in (parked, commit_future):
            with pytest.raises(NotCoordinatorError, match="elsewhere"):
                await each
        with pytest.raises(NotCoordinatorError):
            stage.commit(6)

    on_stage(scene)


def test_a_partition_that_fails_takes_its_groups_with_it() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member()
        parked = stage.join()
        await turns()
        stage.partition.guarded_log.mark_offline(StorageError("the disk is gone"))
        with pytest.raises(NotCoordinatorError):
            await parked
        with pytest.raises(NotCoordinatorError):
            stage.commit(6)

    on_stage(scene)


def test_a_log_that_goes_offline_at_an_append_takes_its_groups_with_it() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member()
        parked = stage.join()
        stage.log.append_error = StorageError("EIO")
        stage.log.offline = "EIO"
        with pytest.raises(NotCoordinatorError):
            await stage.commit(5, group_id="another")
        with pytest.raises(NotCoordinatorError):
            await parked

    on_stage(scene)


def test_a_leader_that_is_one_no_more_lets_go() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member()
        parked = stage.join()
        await turns()
        await stage.partition.apply_image(image(leader=2, epoch=4))
        with pytest.raises(NotCoordinatorError):
            await parked

    on_stage(scene)


# Loading


@pytest.mark.parametrize("bytes_per_read", [1, 500, 1 << 20])
def test_groups_and_offsets_are_loaded_from_the_log(bytes_per_read: int) -> None:
    async def scene(stage: Stage) -> None:
        joined = await stage.member("members")
        for number in range(50):
            await stage.commit(number, number + 1, group_id=f"group-{number % 5}")
        before = await stage.describe("members")
        reads = stage.log.reads
        again = await stage.reopened(bytes_per_read)
        assert again.shard.is_active
        assert await again.describe("members") == before
        assert before.state is GroupState.STABLE
        assert [each.member_id for each in before.members] == [joined.member_id]
        assert await again.offsets("group-3") == [48, 49]
        if bytes_per_read == 1:
            assert stage.log.reads - reads > 50, "in pieces as small as was asked for"
        await again.commit(100, group_id="group-3")
        assert await again.offsets("group-3") == [100, 49]
        await again.shard.close()

    on_stage(scene)


def test_while_it_loads_everybody_is_told_so_and_other_work_goes_on() -> None:
    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(stage.commit(number, group_id=f"group-{number}") for number in range(3000)))
        await stage.shard.close()
        again = Stage(stage.log, stage.partition, LONG_MS)
        with pytest.raises(CoordinatorLoadInProgressError):
            again.commit(1)
        loading = asyncio.ensure_future(again.shard.load(GroupCoordinatorShard(LIMITS), 1 << 20))
        taken = 0
        while not loading.done():
            await asyncio.sleep(0)
            taken += 1
            if not loading.done():
                with pytest.raises(CoordinatorLoadInProgressError):
                    again.commit(1)
        assert taken > 5
        assert await again.offsets("group-2999") == [2999]
        await again.shard.close()

    on_stage(scene)


def test_loading_waits_for_what_is_not_safe_yet() -> None:
    async def scene(stage: Stage) -> None:
        stage.log.synced.clear()
        lost = stage.commit(5)
        await turns()
        await stage.shard.close()
        with pytest.raises(NotCoordinatorError):
            await lost
        again = Stage(stage.log, stage.partition, LONG_MS)
        loading = asyncio.ensure_future(again.shard.load(GroupCoordinatorShard(LIMITS), 1 << 20))
        await turns()
        assert again.shard.is_loading
        stage.log.synced.set()
        await loading
        assert await again.offsets() == [5]
        await again.shard.close()

    on_stage(scene)


def _flip(stage: Stage) -> None:
    data = bytearray(stage.log._batches[1])
    data[-3] ^= 4
    stage.log._batches[1] = bytes(data)


def _put(stage: Stage, key: bytes | None, value: bytes | None) -> None:
    stage.log._batches[1] = build_batch([Record(key=key, value=value)], base_offset=1)


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        lambda stage: _put(stage, b"\x00\x01\x00", b""),
        lambda stage: _put(stage, None, b"value"),
        lambda stage: _put(stage, b"\x00\x02\x00\x01g", b"\x00\x03\xff"),
    ],
    ids=["a flipped bit", "a torn key", "no key", "a torn value"],
)
def test_a_log_that_cannot_be_read_is_not_served(damage: Callable[[Stage], None], caplog: Any) -> None:
    async def scene(stage: Stage) -> None:
        for number in range(3):
            await stage.commit(number)
        damage(stage)
        again = await stage.reopened()
        assert not again.shard.is_loading
        assert not again.shard.is_active
        assert again.shard.unexpected_errors == 0
        with pytest.raises(NotCoordinatorError):
            again.commit(6)

    on_stage(scene)
    assert "moldau log verify" in caplog.text


def test_a_log_that_cannot_be_read_for_the_moment_is_loaded_when_it_can(caplog: Any) -> None:
    async def scene(stage: Stage) -> None:
        await stage.commit(5)
        stage.log.read_error = StorageError("no descriptors")
        again = await stage.reopened()
        assert again.shard.is_loading
        with pytest.raises(CoordinatorLoadInProgressError):
            again.commit(6)
        stage.log.read_error = None
        await again.shard.load(GroupCoordinatorShard(LIMITS), 1 << 20)
        assert await again.offsets() == [5]
        await again.shard.close()

    on_stage(scene)
    assert "loading groups failed, retrying" in caplog.text
    assert "backup" not in caplog.text


def test_a_log_that_is_offline_is_not_waited_for(caplog: Any) -> None:
    async def scene(stage: Stage) -> None:
        await stage.commit(5)
        stage.log.read_error = StorageError("EIO")
        stage.log.offline = "EIO"
        again = await stage.reopened()
        assert not again.shard.is_loading
        assert not again.shard.is_active

    on_stage(scene)
    assert "backup" in caplog.text


def test_a_new_leader_epoch_ends_the_loading_of_the_old_one(caplog: Any) -> None:
    async def scene(stage: Stage) -> None:
        for number in range(3):
            await stage.commit(number)
        await stage.shard.close()
        again = Stage(stage.log, stage.partition, LONG_MS)
        stage.log.synced.clear()
        loading = asyncio.ensure_future(again.shard.load(GroupCoordinatorShard(LIMITS), 1))
        await turns(1)
        again.shard.unload(NotCoordinatorError("a new epoch"))
        await stage.partition.apply_image(image(epoch=4))
        await loading
        assert not again.shard.is_active
        assert not again.shard.is_loading

    on_stage(scene)
    assert "cannot be loaded" not in caplog.text


# Time


def test_a_member_that_falls_silent_is_given_up() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member(session_timeout_ms=20)
        assert (await stage.describe()).state is GroupState.STABLE
        while (await stage.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)

    on_stage(scene)


def test_the_timers_of_loaded_groups_run() -> None:
    async def scene(stage: Stage) -> None:
        await stage.member(session_timeout_ms=50)
        again = await stage.reopened()
        while (await again.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)
        await again.shard.close()

    on_stage(scene)


def test_timers_try_again_when_the_log_takes_records_again(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr("moldau.groups.shard_driver.TICK_BACKOFF_MS", 10)

    async def scene(stage: Stage) -> None:
        await stage.member(session_timeout_ms=20)
        stage.log.append_error = StorageError("disk full")
        while "writing a group change failed" not in caplog.text:
            await asyncio.sleep(0.005)
        stage.log.append_error = None
        while (await stage.describe()).state is not GroupState.EMPTY:
            await asyncio.sleep(0.005)
        assert stage.shard.unexpected_errors == 0

    on_stage(scene)


def test_a_bug_in_a_timer_is_counted_and_does_not_keep_the_loop_busy(caplog: Any) -> None:
    async def scene(stage: Stage) -> None:
        def breaks(state: GroupCoordinatorShard, now: object) -> Any:
            raise KeyError("a bug")

        stage.shard.run(breaks)
        await turns()
        assert stage.shard.unexpected_errors == 1
        await stage.commit(5)
        assert await stage.offsets() == [5]

    on_stage(scene)


# Forgetting


def test_tombstones_that_do_not_fit_one_batch_come_in_several() -> None:
    async def scene(stage: Stage) -> None:
        for start in range(0, 100, 10):
            await asyncio.gather(*(stage.commit(*range(9), group_id=f"g{start + n}") for n in range(10)))
        written = len(stage.log._batches)
        stage.shard.on_topics_deleted([("orders", None)])
        await turns(200)
        assert not stage.shard.deleted_topics
        assert await stage.offsets("g42") == []
        offset_tombstones = [
            decode(record.key or b"", record.value)
            for data in stage.log._batches[written:]
            for batch in split(data)
            for record in iterate_records(batch)
        ]
        assert len(offset_tombstones) == 900
        assert all(
            isinstance(each, OffsetCommitRecord) and each.committed is None for each in offset_tombstones
        )
        assert len(stage.log._batches) - written > 10

    on_stage(scene, max_message_bytes=2000)


def test_what_could_not_be_forgotten_is_tried_again() -> None:
    async def scene(stage: Stage) -> None:
        await stage.commit(5)
        stage.log.append_error = StorageError("disk full")
        stage.shard.on_topics_deleted([("orders", None)])
        await turns()
        assert await stage.offsets() == [5]
        stage.log.append_error = None
        stage.shard.cleanup()
        await turns()
        assert await stage.offsets() == []
        assert not stage.shard.deleted_topics

    on_stage(scene)


def test_what_is_committed_of_a_topic_made_anew_is_not_forgotten_with_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = 1_000
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: now_ms)

    async def scene(stage: Stage) -> None:
        nonlocal now_ms
        await stage.commit(5, group_id="old")
        stage.log.append_error = StorageError("disk full")
        stage.shard.on_topics_deleted([("orders", None)])
        await turns()
        stage.log.append_error = None
        now_ms += 1
        await stage.commit(7, group_id="new")
        stage.shard.cleanup()
        await turns()
        assert [await stage.offsets(group_id) for group_id in ("old", "new")] == [[], [7]]
        assert not stage.shard.deleted_topics

    on_stage(scene)


def test_two_topics_of_one_name_that_are_no_more_are_both_forgotten() -> None:
    async def scene(stage: Stage) -> None:
        first, second, third = (UUID(int=number) for number in (1, 2, 3))
        for group_id, topic_id in (("a", first), ("b", second), ("c", third)):
            await stage.commit(5, group_id=group_id, topic_id=topic_id)
        stage.log.append_error = StorageError("disk full")
        stage.shard.on_topics_deleted([("orders", first)])
        stage.shard.on_topics_deleted([("orders", second)])
        await turns()
        stage.log.append_error = None
        stage.shard.cleanup()
        await turns()
        assert [await stage.offsets(group_id) for group_id in "abc"] == [[], [], [5]]
        assert not stage.shard.deleted_topics

    on_stage(scene)


def test_upkeep_comes_to_all_groups_in_steps_between_which_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moldau.groups.shard.OFFSETS_PER_EXPIRATION_PASS", 4)

    async def scene(stage: Stage) -> None:
        for number in range(100):
            await stage.commit(number, group_id=f"group-{number}")
        looks = 0

        def counted(state: GroupCoordinatorShard, now: Now) -> GroupResult | None:
            nonlocal looks
            looks += 1
            return state.expire_offsets(now)

        stage.shard.run_repeatedly(counted)
        assert await stage.offsets("group-7") == [7]
        assert looks < 5
        while stage.shard._pending_operations:
            await asyncio.sleep(0)
        assert looks == 51

    on_stage(scene)
