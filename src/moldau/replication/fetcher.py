"""Copies from one leader all that this node follows of it: one task, one connection, one fetch at a time.

What an answer brings is appended and synced, partition by partition side by side, before the next fetch asks past it:
by asking, a follower says what it has on disk. One partition's trouble is its own; the others go on.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from moldau.client.errors import ErrorCode, code_of
from moldau.eager import start_now
from moldau.errors import (
    FencedLeaderEpochError,
    MoldauError,
    NotLeaderError,
    PeerUnreachableError,
    StorageError,
    UnknownLeaderEpochError,
)
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.peers.peers import Peers
from moldau.platform.clock import Clock
from moldau.raft.messages import LogEnd
from moldau.replication.requests import fetch_request
from moldau.replication.session import FetchSession, PartitionKey, Position
from moldau.replication.state import FollowedPartitions, Rest, Verdict, begins_anew, jittered, judge
from moldau.replication.throttle import Throttle
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey

log = get_logger(__name__)

LANE = "replication"
FETCH_VERSION = 17
ANSWER_MS = 5_000
"""How long an answer may take beyond the wait that was asked for."""
BYTES_MIN = 65_536
"""What is asked for at least of a leader whose answers do not come through in time."""
NUDGE_MS = 10
"""How long an answer that may be on its way is waited for before a waiting fetch is given up for a new partition."""
NUDGES_APART_MS = 50
"""How far apart such give-ups are at least, and a millisecond more for each partition: all are asked for anew."""
TURN_BYTES, TURN_PARTITIONS = 1_048_576, 100
"""How much is appended, or of how many partitions, before others have a turn on the event loop."""

_SESSION_ERRORS = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)
_ROLE_IS_OVER = (NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError)


class FollowedPartition(Protocol):
    """What a fetcher asks of a partition. Each call names the leader epoch of the fetch it comes from, and is refused
    where the partition is in another one by now."""

    @property
    def name(self) -> LogName: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def failure(self) -> MoldauError | None: ...

    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_in_sync(self) -> bool: ...

    def fetch_position(self) -> tuple[int, int, int, int] | None:
        """(offset, last epoch, leader epoch, start offset), where everything below the offset is durable; None while
        something beyond that is being made so."""

    async def append_as_follower(
        self, data: memoryview, leader_epoch: int, high_watermark: int, leader_start_offset: int
    ) -> None: ...

    async def truncate_for(self, diverging: LogEnd, leader_epoch: int) -> None: ...

    async def begin_at(self, offset: int, leader_epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Fetching:
    """What the fetchers of a node share."""

    node_id: int
    cluster_id: str
    broker_epoch: Callable[[], int]
    peers: Peers
    throttle: Throttle
    settings: EffectiveSettings
    clock: Clock
    random: random.Random


class Fetcher:
    def __init__(self, leader_id: int, fetching: Fetching) -> None:
        self.leader_id = leader_id
        self._with = fetching
        self._partitions: dict[PartitionKey, FollowedPartition] = {}
        self._followed = FollowedPartitions()
        self._session = FetchSession()
        self._news = asyncio.Event()
        """There is a reason not to rest any longer."""
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_appending = False
        self._is_waiting = False
        self._nudge: asyncio.TimerHandle | None = None
        self._was_nudged = False
        self._nudged_ms: int | None = None
        self._is_cut_off = False
        self._bytes_max: int | None = None
        """Less than the settings allow while the leader's answers do not come through."""

    def follow(self, partitions: Iterable[FollowedPartition], left: Iterable[PartitionKey] = ()) -> None:
        """Follows these too from now on, or in the epoch they are in by now, and those that are `left` no more."""
        for key in left:
            if self._partitions.pop(key, None) is not None:
                self._followed.leave(key)
                self._session.forget(key)
        begun = []
        for each in partitions:
            key = PartitionKey(each.topic_id, each.name.partition)
            self._partitions[key] = each
            if self._followed.follow(key, each.leader_epoch, is_in_sync=each.is_in_sync):
                begun.append(key)
        for key in begun:
            self._want(key)
        if self._task is None and self._partitions and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"node {self._with.node_id} follows node {self.leader_id}"
            )
        if begun or not self._partitions:
            self._news.set()
            self._give_up_waiting_soon()

    async def close(self) -> None:
        """Ends it, after what is being appended: that is not left half done."""
        self._is_closing = True
        self._stop_nudge()
        if self._task is not None:
            if not self._is_appending:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # The loop

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._round()
            except PeerUnreachableError as error:
                await self._cut_off(error)
            except Exception:
                # A bug, and no reason to leave all partitions of this leader behind for good.
                log.exception("fetching from a leader failed", leader=self.leader_id)
                self._session.begin_anew()
                await self._rest(self._backoff_ms())

    async def _round(self) -> None:
        self._news.clear()
        now_ms = self._now_ms()
        for key in self._followed.wake(now_ms):
            self._want(key)
        wake_ms = self._followed.next_wake_ms()
        until_wake_ms = None if wake_ms is None else max(0, wake_ms - now_ms)
        if not len(self._session):
            self._leave_leader()
            await self._rest(until_wake_ms)
            return
        answer = await self._fetch(until_wake_ms)
        if answer.error_code != ErrorCode.none:
            await self._refused(code_of(answer.error_code))
            return
        self._session.answered(answer.session_id)
        self._reached()
        await self._uninterrupted(self._take(answer))

    async def _fetch(self, wait_max_ms: int | None) -> Any:
        settings = self._with.settings.broker
        # Whoever asks too rarely is taken for dead, also where there is nothing to fetch.
        wait_ms = min(settings.replica_fetch_wait_max_ms, settings.replica_lag_time_max_ms // 4)
        if wait_max_ms is not None:
            wait_ms = min(wait_ms, wait_max_ms)
        bytes_max = settings.replica_fetch_response_max_bytes
        tree = fetch_request(
            self._session.plan(),
            cluster_id=self._with.cluster_id,
            replica_id=self._with.node_id,
            broker_epoch=self._with.broker_epoch(),
            wait_ms=wait_ms,
            bytes_max=bytes_max if self._bytes_max is None else min(bytes_max, self._bytes_max),
            partition_bytes_max=settings.replica_fetch_max_bytes,
        )
        self._is_waiting = True
        try:
            return await self._with.peers.call(
                self.leader_id,
                ApiKey.FETCH,
                tree,
                lane=LANE,
                timeout_ms=wait_ms + ANSWER_MS,
                version=FETCH_VERSION,
            )
        finally:
            self._is_waiting = False
            self._stop_nudge()

    async def _refused(self, code: ErrorCode) -> None:
        """The fetch as a whole was: nothing in it says which partitions the leader has taken note of."""
        was_begun = self._session.is_begun
        self._session.begin_anew()
        if code in _SESSION_ERRORS and was_begun:
            log.debug("the leader has no such fetch session", leader=self.leader_id, why=code.name)
            return
        self._complain(f"it refuses: {code.name.upper()}")
        await self._rest(self._backoff_ms())

    async def _cut_off(self, error: PeerUnreachableError) -> None:
        self._session.begin_anew()
        if self._was_nudged:
            self._was_nudged = False
            return
        self._complain(str(error))
        if not error.is_gone:
            # Its answers may be too large for the time they have.
            bytes_max = self._bytes_max or self._with.settings.broker.replica_fetch_response_max_bytes
            self._bytes_max = max(BYTES_MIN, bytes_max // 2)
        await self._rest(self._backoff_ms())

    def _complain(self, why: str) -> None:
        """Once, until it goes well again."""
        if not self._is_cut_off:
            self._is_cut_off = True
            log.warning("the leader cannot be fetched from", leader=self.leader_id, why=why)

    def _reached(self) -> None:
        self._was_nudged = False
        if self._is_cut_off:
            self._is_cut_off = False
            log.info("the leader is fetched from again", leader=self.leader_id)
        if self._bytes_max is not None:
            self._bytes_max *= 2
            if self._bytes_max >= self._with.settings.broker.replica_fetch_response_max_bytes:
                self._bytes_max = None

    def _leave_leader(self) -> None:
        """Nothing is wanted of it: its session and the connection go."""
        self._session.begin_anew()
        if not len(self._followed):
            self._with.peers.drop(self.leader_id, LANE)

    # Answers

    async def _take(self, answer: Any) -> None:
        taking: list[asyncio.Task[None]] = []
        failures: list[BaseException] = []

        def taken(_: None, error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)

        size = number = 0
        for topic in answer.responses:
            for each in topic.partitions:
                key = PartitionKey(topic.topic_id, each.partition_index)
                asked = self._session.asked(key)
                partition = self._partitions.get(key)
                if asked is None or partition is None:
                    continue
                # Most have nothing to wait for, or nothing at all: a task for each would cost more than the append.
                task = start_now(self._take_one(key, partition, asked, each), taken)
                if task is not None:
                    taking.append(task)
                size += len(each.records or b"")
                number += 1
                if size >= TURN_BYTES or number >= TURN_PARTITIONS:
                    size = number = 0
                    await asyncio.sleep(0)
        if taking:
            await asyncio.gather(*taking, return_exceptions=True)
        if failures:
            raise failures[0]

    async def _take_one(
        self, key: PartitionKey, partition: FollowedPartition, asked: Position, answer: Any
    ) -> None:
        try:
            await self._apply(key, partition, asked, answer)
        except _ROLE_IS_OVER:
            # Metadata was quicker than the answer: whatever the partition is now, this is not for it.
            pass
        except MoldauError as error:
            self._could_not_take(key, partition, error)
            return
        except Exception as error:
            log.exception("replicating a partition failed", partition=str(partition.name))
            self._could_not_take(key, partition, error)
            return
        self._want(key)

    async def _apply(
        self, key: PartitionKey, partition: FollowedPartition, asked: Position, answer: Any
    ) -> None:
        diverging = answer.diverging_epoch
        verdict = judge(answer.error_code, has_diverged=diverging is not None and diverging.end_offset >= 0)
        if verdict is Verdict.TAKE:
            await self._append(key, partition, asked, answer)
            must_move = bool(answer.records)
        elif verdict is Verdict.CUT_BACK:
            await partition.truncate_for(LogEnd(diverging.epoch, diverging.end_offset), asked.leader_epoch)
            must_move = True
        elif verdict is Verdict.BEGIN_ANEW:
            if begins_anew(asked.offset, asked.last_epoch, answer.log_start_offset):
                await partition.begin_at(answer.log_start_offset, asked.leader_epoch)
            must_move = True
        elif verdict is Verdict.WAIT_FOR_METADATA:
            self._rest_partition(key, Rest.BRIEF)
            return
        else:
            self._failed(key, partition, f"the leader answers {code_of(answer.error_code).name.upper()}")
            return
        if must_move and partition.fetch_position() == asked:
            # To ask the same again at once would get the same answer.
            self._failed(
                key,
                partition,
                f"it is at offset {asked.offset} and cannot go on with what the leader answers ({verdict.value})",
            )

    async def _append(
        self, key: PartitionKey, partition: FollowedPartition, asked: Position, answer: Any
    ) -> None:
        records = memoryview(answer.records or b"")
        was_in_sync = self._followed.is_in_sync(key)
        await partition.append_as_follower(
            records, asked.leader_epoch, answer.high_watermark, answer.log_start_offset
        )
        self._with.throttle.fetched(partition.name, len(records), self._now_ms(), is_in_sync=was_in_sync)
        position = partition.fetch_position()
        self._followed.progressed(
            key, is_in_sync=position is not None and position[0] >= answer.high_watermark
        )

    def _could_not_take(self, key: PartitionKey, partition: FollowedPartition, error: Exception) -> None:
        if partition.failure is not None:
            self._give_up(key, partition, error)
        else:
            # What cannot be stored, or goes wrong by a bug, does so for longer: the same records come over the network
            # each time.
            is_here = isinstance(error, StorageError) or not isinstance(error, MoldauError)
            self._failed(key, partition, str(error), Rest.LONGER if is_here else Rest.EVEN)

    def _failed(
        self, key: PartitionKey, partition: FollowedPartition, why: str, rest: Rest = Rest.EVEN
    ) -> None:
        tell = log.debug if self._followed.has_failed_before(key) else log.warning
        tell("a partition was not replicated", partition=str(partition.name), leader=self.leader_id, why=why)
        self._rest_partition(key, rest)

    def _give_up(self, key: PartitionKey, partition: FollowedPartition, error: Exception) -> None:
        log.error("a partition is no longer replicated", partition=str(partition.name), why=str(error))
        self._followed.fail(key)
        self._session.forget(key)

    # What is asked for

    def _want(self, key: PartitionKey) -> None:
        """Asks for a partition from where it is now, unless it rests."""
        partition = self._partitions.get(key)
        if partition is None or not self._followed.is_fetching(key):
            return
        if partition.failure is not None:
            self._give_up(key, partition, partition.failure)
            return
        now_ms, throttle = self._now_ms(), self._with.throttle
        if throttle.rests(partition.name, now_ms, is_in_sync=self._followed.is_in_sync(key)):
            self._followed.rest(key, now_ms, throttle.rest_ms(now_ms))
            self._session.forget(key)
            return
        position = partition.fetch_position()
        if position is None:
            # What a former leader sent, or this node wrote as leader, is still on its way to the disk.
            self._rest_partition(key, Rest.BRIEF)
        else:
            self._session.want(key, Position(*position))

    def _rest_partition(self, key: PartitionKey, rest: Rest) -> None:
        self._followed.rest_after_failure(
            key,
            self._now_ms(),
            self._with.settings.broker.replica_fetch_backoff_ms,
            self._with.random.random(),
            rest,
        )
        self._session.forget(key)

    # Waiting

    async def _rest(self, ms: int | None) -> None:
        """Until there is news, or for so long."""
        timer = None
        if ms is not None:
            timer = asyncio.get_running_loop().call_later(ms / 1000, self._news.set)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _give_up_waiting_soon(self) -> None:
        """A fetch that waits for news of other partitions would keep new ones waiting too: it is ended with its
        connection, unless it is answered anyway; and not again and again, where partitions come one by one."""
        if not self._is_waiting or self._nudge is not None:
            return
        now_ms, delay_ms = self._now_ms(), NUDGE_MS
        if self._nudged_ms is not None:
            again_ms = self._nudged_ms + NUDGES_APART_MS + len(self._partitions)
            delay_ms = max(delay_ms, again_ms - now_ms)
        self._nudge = asyncio.get_running_loop().call_later(delay_ms / 1000, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        self._nudge = None
        if self._is_waiting:
            self._was_nudged = True
            self._nudged_ms = self._now_ms()
            self._with.peers.drop(self.leader_id, LANE)

    def _stop_nudge(self) -> None:
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None

    async def _uninterrupted(self, work: Awaitable[None]) -> None:
        self._is_appending = True
        try:
            await work
        finally:
            self._is_appending = False

    def _backoff_ms(self) -> int:
        return jittered(self._with.settings.broker.replica_fetch_backoff_ms, self._with.random.random())

    def _now_ms(self) -> int:
        return self._with.clock.monotonic_ms()
