"""Reads partitions ahead of its user: raw batches from many leaders at once, one long poll at each.

A leader is asked again as soon as what it sent was taken, so the next batches are on their way while the last ones are
worked on. No more than a limit lies ready, but for what partitions that were paused or leaders that would starve bring
beyond it. Where reading starts and what is done about an offset that is gone is the caller's to decide.

    fetcher = Fetcher(cluster)
    fetcher.assign({TopicPartition("orders", 0): 0})
    for fetched in await fetcher.next(1_000):
        for batch in fetched.batches: ...

A bounded read names the offset at which each partition ends, `until`, and takes what comes while not `is_finished`. The
last records below that offset may be gone: compacted away, or control records. A leader sends at least one batch of the
first partition in a request that has any up to the high watermark (with READ_COMMITTED, up to the last stable offset).
So where nothing comes for a partition, and nothing for those asked for before it, though that mark has reached
`until`, there should be nothing. But a leader that cannot get at records in time says the same: it is asked several
times more, and then the partition is done, with an entry that tells so (`is_empty`). If the mark has not reached
`until`, the records are still to come, or a log was cut: the partition is asked for until they are there, and how long
to wait for that is again the caller's to decide.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from moldau.client.consumer.completed_fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    CompletedFetch,
    LogTruncationError,
    parse_batches,
)
from moldau.client.consumer.fetch_position import FetchPosition
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import NO_LEADER
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "CompletedFetch", "Fetcher", "LogTruncationError"]

LANE = "fetch"
"""Fetches wait at the broker: nothing else may stand behind them."""

_log = get_logger("client.fetcher")


@dataclass(slots=True, eq=False)
class _InFlightFetch:
    """A request under way to one leader."""

    readings: Mapping[TopicPartition, FetchPosition]
    bytes_max: int
    task: "asyncio.Task[None]"
    is_abandoned: bool = False
    """Nobody wants its answer any more."""


class Fetcher:
    def __init__(
        self,
        cluster: Cluster,
        *,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        buffered_bytes_max: int = 64 * 1024 * 1024,
        isolation_level: int = READ_UNCOMMITTED,
        news: asyncio.Event | None = None,
        lane: str = LANE,
    ) -> None:
        """The cluster must be started, and stays its owner's. `max_bytes` is for one answer; at least one batch
        comes whatever its size. `news` is set whenever there is something to take, for who waits for other things
        as well. Fetchers that share a cluster wait for each other unless their lanes differ."""
        self._cluster = cluster
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._max_bytes = min(max_bytes, buffered_bytes_max)
        self._partition_max_bytes = partition_max_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._isolation_level = isolation_level
        self._lane = lane
        self._backoff = cluster.backoff()
        self._partitions: dict[TopicPartition, FetchPosition] = {}
        """In the order they are asked for; those that brought something go to the end, so that none starves."""
        self._in_flight: dict[int, _InFlightFetch] = {}
        """By leader."""
        self._reserved_bytes = 0
        """What the answers under way may have."""
        self._data_available = asyncio.Event() if news is None else news
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._remove_update_listener = cluster.on_update(self._send_fetches)

    # What is read

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._partitions)

    @property
    def is_finished(self) -> bool:
        """Whether every partition was read up to its `until`, and all of that was handed out."""
        return all(each.is_at_end and each.completed is None for each in self._partitions.values())

    def assign(
        self, offsets: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Reads exactly these partitions from now on, each from the given offset on and, where `until` names it, up to
        that one, which is not read any more."""
        self.remove(list(self._partitions))
        self.add(offsets, until)

    def add(
        self,
        offsets: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Reads these partitions too; others are not disturbed. The leader epochs are as in `seek`."""
        until, epochs = until or {}, leader_epochs or {}
        for partition in until:
            if partition not in offsets:
                raise ValueError(f"{partition} has an end and no offset to be read from")
        for partition, offset in offsets.items():
            if partition in self._partitions:
                self._reset_position(partition, offset, until.get(partition), epochs.get(partition, -1))
            else:
                epoch = epochs.get(partition, -1)
                reading = FetchPosition(_validate_offset(partition, offset), until.get(partition), epoch)
                self._cluster.track([partition.topic])
                self._partitions[partition] = reading
        self._send_fetches()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Does not read these any more; what was fetched of them is dropped."""
        for partition in partitions:
            if self._partitions.pop(partition, None) is not None:
                self._cluster.untrack([partition.topic])
        self._send_fetches()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Goes on from another offset, up to the same end: nothing that was fetched before will be handed out.

        With the leader epoch of the record before the offset a log that was cut since is noticed.
        """
        self._reset_position(partition, offset, self._partitions[partition].until, leader_epoch)
        self._send_fetches()

    def _reset_position(
        self, partition: TopicPartition, offset: int, until: int | None, leader_epoch: int = -1
    ) -> None:
        before = self._partitions[partition]
        self._partitions[partition] = FetchPosition(
            _validate_offset(partition, offset),
            until,
            leader_epoch,
            before.is_paused,
            high_watermark=before.high_watermark,
            log_start_offset=before.log_start_offset,
        )

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hands out nothing of these until `resume`; what was fetched of them is kept."""
        for partition in partitions:
            self._partitions[partition].is_paused = True
        # Others of the same leader may have waited until what it sent of these was taken.
        self._send_fetches()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            reading = self._partitions[partition]
            reading.is_paused = False
            if reading.completed is not None:
                self._data_available.set()
        self._send_fetches()

    def position(self, partition: TopicPartition) -> int:
        """The offset behind what was handed out."""
        reading = self._partitions[partition]
        return reading.position if reading.completed is None else reading.completed.position

    def high_watermark(self, partition: TopicPartition) -> int:
        """As the leader told it last; -1 before it did."""
        return self._partitions[partition].high_watermark

    def log_start_offset(self, partition: TopicPartition) -> int:
        return self._partitions[partition].log_start_offset

    async def close(self) -> None:
        self._is_closed = True
        self._remove_update_listener()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [fetch.task for fetch in self._in_flight.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in self._partitions:
            self._cluster.untrack([partition.topic])
        self._partitions.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Handing out

    async def next(self, timeout_ms: int) -> list[CompletedFetch]:
        """What has been fetched of all partitions that are not paused, waited for; [] when nothing came in time.

        Of each partition there is one entry at most. Records below its `position`, and those at or above the `until`
        of a bounded read, are to be skipped.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while not (taken := self.take()):
            self._data_available.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._data_available.wait()
            except TimeoutError:
                return self.take()
        return taken

    def take(self) -> list[CompletedFetch]:
        """What `next` would give now, without waiting."""
        taken = []
        for reading in self._partitions.values():
            if reading.completed is not None and not reading.is_paused:
                taken.append(reading.completed)
                reading.completed = None
        if taken:
            self._send_fetches()
        return taken

    # Fetching

    def _send_fetches(self) -> None:
        """Starts a fetch at every leader that has none under way and whose last answer was taken."""
        if self._is_closed:
            return
        self._cancel_stale_fetches()
        now = asyncio.get_running_loop().time()
        next_attempt: float | None = None
        by_leader: dict[int, dict[TopicPartition, FetchPosition]] = {}
        untaken: dict[int, None] = {}
        for partition, reading in self._partitions.items():
            if reading.is_paused or reading.has_failed:
                continue
            if reading.is_at_end and reading.completed is None:
                continue
            leader = self._cluster.known_leader_of(partition)
            if reading.completed is not None:
                untaken[leader] = None
            elif reading.backoff_until > now:
                next_attempt = min(next_attempt or reading.backoff_until, reading.backoff_until)
            elif leader == NO_LEADER or self._awaits_newer_leader(partition, reading, now):
                self._cluster.refresh_soon()
                retry_at = now + self._cluster.retry_backoff_ms / 1000
                next_attempt = min(next_attempt or retry_at, retry_at)
            else:
                by_leader.setdefault(leader, {})[partition] = reading
        for leader, readings in by_leader.items():
            # A long poll begun now for the rest would keep those waiting that are taken in a moment.
            if leader not in self._in_flight and leader not in untaken:
                self._start_fetch(leader, readings)
        self._set_timer(next_attempt)

    def _awaits_newer_leader(self, partition: TopicPartition, reading: FetchPosition, now: float) -> bool:
        topic = self._cluster.topics.get(partition.topic)
        patience_s = self._cluster.request_timeout_ms / 1000
        return topic is not None and reading.awaits_newer_leader(topic, partition.partition, now, patience_s)

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._send_fetches)

    def _start_fetch(self, leader: int, readings: Mapping[TopicPartition, FetchPosition]) -> None:
        room = self._buffered_bytes_max - self._reserved_bytes - self._buffered_bytes()
        # Whatever fills the room may stay for long, as paused partitions do: these must not wait for it.
        bytes_max = min(self._max_bytes, max(room, self._partition_max_bytes))
        self._reserved_bytes += bytes_max
        task = asyncio.get_running_loop().create_task(
            self._fetch(leader, readings, bytes_max), name=f"fetches from node {leader}"
        )
        self._in_flight[leader] = fetch = _InFlightFetch(readings, bytes_max, task)
        # A callback and not the end of the coroutine, which a task that is cancelled soon enough never enters.
        task.add_done_callback(lambda _: self._on_fetch_done(leader, fetch))

    def _on_fetch_done(self, leader: int, fetch: _InFlightFetch) -> None:
        del self._in_flight[leader]
        self._reserved_bytes -= fetch.bytes_max
        # Cancelled by somebody else, the whole client is coming to its end.
        if fetch.is_abandoned or not fetch.task.cancelled():
            self._send_fetches()

    def _cancel_stale_fetches(self) -> None:
        """Ends the fetches of which nothing is wanted any more: others would have to wait as long as they do."""
        for fetch in self._in_flight.values():
            is_wanted = any(
                self._partitions.get(partition) is reading for partition, reading in fetch.readings.items()
            )
            if not is_wanted and not fetch.is_abandoned:
                fetch.is_abandoned = True
                fetch.task.cancel()

    def _buffered_bytes(self) -> int:
        return sum(each.completed.size for each in self._partitions.values() if each.completed is not None)

    async def _fetch(
        self, leader: int, readings: Mapping[TopicPartition, FetchPosition], bytes_max: int
    ) -> None:
        request = self._build_request(readings, bytes_max)
        try:
            answer = await self._cluster.call(
                leader,
                ApiKey.FETCH,
                request,
                timeout_ms=self._cluster.request_timeout_ms + self._max_wait_ms,
                lane=self._lane,
            )
            self._handle_response(answer, request, readings)
        except KafkaError as error:
            _log.debug("a fetch failed", node=leader, error=error)
            if _is_transient(error):
                _warn_once(error, readings.values())
                self._back_off(readings.values())
            else:
                self._fail_all(request, readings, error)
        except Exception as error:
            # A bug, here or there: who reads must not wait for ever.
            _log.exception("an answer to a fetch could not be read", node=leader)
            told = KafkaError(ErrorCode.unknown_server_error, f"what node {leader} sent: {error!r}")
            self._fail_all(request, readings, told)

    def _build_request(
        self, readings: Mapping[TopicPartition, FetchPosition], bytes_max: int
    ) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition, reading in readings.items():
            known = self._cluster.partition_info(partition)
            topics.setdefault(partition.topic, []).append(
                {
                    "partition": partition.partition,
                    "current_leader_epoch": -1 if known is None else known.leader_epoch,
                    "fetch_offset": reading.position,
                    "last_fetched_epoch": reading.leader_epoch,
                    "partition_max_bytes": self._partition_max_bytes,
                }
            )
        return {
            "max_wait": 0 if any(each.is_end_available for each in readings.values()) else self._max_wait_ms,
            "min_bytes": self._min_bytes,
            "max_bytes": bytes_max,
            "isolation_level": self._isolation_level,
            "topics": [{"topic": name, "partitions": each} for name, each in topics.items()],
            "forgotten_topics_data": [],
        }

    def _requested_positions(
        self, request: Mapping[str, Any], readings: Mapping[TopicPartition, FetchPosition]
    ) -> Iterable[tuple[TopicPartition, FetchPosition, bool]]:
        """The partitions in the order of a request, and whether an answer to it is still wanted for each."""
        for topic in request["topics"]:
            for each in topic["partitions"]:
                partition = TopicPartition(topic["topic"], each["partition"])
                reading = readings[partition]
                # After a seek, or if it is not read any more, this is a question of before. The position tells whether
                # another leader, to which the partition has moved meanwhile, was faster.
                is_wanted = self._partitions.get(partition) is reading and not reading.has_failed
                yield partition, reading, is_wanted and reading.position == each["fetch_offset"]

    def _handle_response(
        self, answer: Message, request: Mapping[str, Any], readings: Mapping[TopicPartition, FetchPosition]
    ) -> None:
        if answer.error_code != ErrorCode.none:
            raise KafkaError(answer.error_code, "the fetch as a whole")
        told = {
            TopicPartition(topic.topic, each.partition_index): each
            for topic in answer.responses
            for each in topic.partitions
        }
        failed: list[FetchPosition] = []
        is_empty_so_far = True
        for partition, reading, is_wanted in self._requested_positions(request, readings):
            each = told.get(partition)
            if each is None:
                continue
            is_empty_so_far = is_empty_so_far and not each.records
            if not is_wanted:
                continue
            if each.error_code == ErrorCode.none:
                self._handle_partition_data(partition, reading, each, is_empty_response=is_empty_so_far)
                continue
            self._update_leader(partition, each)
            error = KafkaError(each.error_code, f"{partition}")
            if _is_transient(error):
                _warn_once(error, [reading])
                failed.append(reading)
            else:
                self._fail_partition(partition, reading, error)
        self._back_off(failed)

    def _handle_partition_data(
        self, partition: TopicPartition, reading: FetchPosition, answer: Message, *, is_empty_response: bool
    ) -> None:
        """`is_empty_response`: up to what the leader lets be read there is no batch, of this and those asked
        before it."""
        diverging = answer.get("diverging_epoch")
        if diverging is not None and diverging.end_offset >= 0:
            if diverging.end_offset < reading.position:
                cut = LogTruncationError(partition, reading.position, diverging.end_offset, diverging.epoch)
                self._fail_partition(partition, reading, cut)
            else:
                # Most likely nothing was cut: a leader may have gone before it wrote anything.
                reading.leader_epoch = diverging.epoch
            return
        reading.failures, reading.backoff_until = 0, 0.0
        reading.high_watermark = answer.high_watermark
        is_committed = self._isolation_level == READ_COMMITTED
        reading.readable_end_offset = answer.last_stable_offset if is_committed else answer.high_watermark
        reading.log_start_offset = answer.log_start_offset
        contents = parse_batches(partition, answer, reading.position, self._isolation_level, reading.until)
        next_offset, is_empty = contents.next_offset, False
        if reading.until is not None:
            if reading.readable_end_offset < reading.until:
                reading.empty_responses = 0
            elif is_empty_response:
                is_empty = self._confirm_empty(reading)
            next_offset = reading.until if is_empty else min(next_offset, reading.until)
        if next_offset == reading.position and contents.error is None:
            return
        reading.empty_responses = 0
        reading.completed = CompletedFetch(
            partition,
            reading.position,
            next_offset,
            contents.batches,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            contents.error,
            is_empty,
            contents.leader_epoch,
        )
        reading.position = next_offset
        if contents.leader_epoch >= 0:
            reading.leader_epoch = contents.leader_epoch
        reading.has_failed = contents.error is not None
        self._partitions[partition] = self._partitions.pop(partition)
        self._data_available.set()

    def _confirm_empty(self, reading: FetchPosition) -> bool:
        """Whether an empty answer is believed. If not, the next one is waited for, at the leader and before it
        is asked: some answer at once."""
        now = asyncio.get_running_loop().time()
        if reading.record_empty_response(now):
            return True
        reading.backoff_until = now + self._backoff.delay_ms(reading.empty_responses) / 1000
        return False

    def _fail_all(
        self, request: Mapping[str, Any], readings: Mapping[TopicPartition, FetchPosition], error: KafkaError
    ) -> None:
        for partition, reading, is_wanted in self._requested_positions(request, readings):
            if is_wanted:
                self._fail_partition(partition, reading, error)

    def _back_off(self, readings: Collection[FetchPosition]) -> None:
        """All at the same time, so that one request asks for them again."""
        if not readings:
            return
        failures = max(each.failures for each in readings) + 1
        backoff_until = asyncio.get_running_loop().time() + self._backoff.delay_ms(failures) / 1000
        for reading in readings:
            reading.failures, reading.backoff_until = failures, backoff_until
        self._cluster.refresh_soon()

    def _fail_partition(self, partition: TopicPartition, reading: FetchPosition, error: KafkaError) -> None:
        reading.has_failed = True
        reading.completed = CompletedFetch(
            partition,
            reading.position,
            reading.position,
            (),
            reading.high_watermark,
            -1,
            reading.log_start_offset,
            error,
        )
        self._data_available.set()

    def _update_leader(self, partition: TopicPartition, answer: Message) -> None:
        leader = answer.get("current_leader")
        if leader is not None and leader.leader_id >= 0:
            self._cluster.learn_leader(partition, leader.leader_id, leader.leader_epoch)


def _is_transient(error: KafkaError) -> bool:
    """Whether asking again may help. What a broker did not foresee often does not happen again."""
    return error.is_retriable or error.code is ErrorCode.unknown_server_error


def _warn_once(error: KafkaError, readings: Iterable[FetchPosition]) -> None:
    """Of what should not be, and what users are not told as long as it is tried again."""
    if error.code is ErrorCode.unknown_server_error and not any(each.failures for each in readings):
        _log.warning("a fetch failed at the broker and is tried again", error=error)


def _validate_offset(partition: TopicPartition, offset: int) -> int:
    if offset < 0:
        raise ValueError(f"{partition} cannot be read from offset {offset}")
    return offset
