"""The fetcher: prefetches raw batches of many partitions, with one long poll per leader.

A leader gets the next fetch when the caller has taken all batches of its last response. So batches arrive while the
caller processes the previous ones. The buffered bytes are limited. If paused partitions fill the buffer, each leader
may still return one response of limited size.

    fetcher = Fetcher(cluster)
    fetcher.assign({TopicPartition("orders", 0): 0})
    for fetched in await fetcher.next(1_000):
        for batch in fetched.batches: ...

In a bounded read each partition has an end offset, `until`, and the caller takes batches until `is_finished`. There may
be no records left before `until`, for example after compaction. Then the partition gets empty responses, although the
readable end (the high watermark or, with READ_COMMITTED, the last stable offset) has reached `until`. A response does
not count if an earlier partition of the request got a batch, which may have used up the byte limit. A leader
that cannot read in time also returns an empty response. So the fetcher waits for several of them before it finishes the
partition with an entry whose `is_empty` is set.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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
from moldau.concurrency.tasks import cancel_and_wait, wait_until
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "CompletedFetch", "Fetcher", "LogTruncationError"]

LANE = "fetch"
"""Fetches use a separate connection to each broker (a lane), because other requests would wait behind a long poll."""

_log = get_logger("client.fetcher")


@dataclass(slots=True, eq=False)
class _InFlightFetch:
    positions: Mapping[TopicPartition, FetchPosition]
    bytes_max: int
    task: "asyncio.Task[None]"
    is_abandoned: bool = False


class Fetcher:
    """Fetches assigned partitions in the background. `next` and `take` return the batches that have arrived."""

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
        lane: str | None = None,
    ) -> None:
        """`cluster` must be started. The fetcher does not close it.

        `max_bytes` limits one response, but a response has at least one batch of any size. The fetcher sets `news`
        when there are batches to take. Fetchers with the same `lane` share connections and wait for each other. By
        default a fetcher has its own connections.
        """
        self._cluster = cluster
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._max_bytes = min(max_bytes, buffered_bytes_max)
        self._partition_max_bytes = partition_max_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._isolation_level = isolation_level
        self._owns_lane = lane is None
        self._lane = cluster.new_lane(LANE) if lane is None else lane
        self._backoff = cluster.backoff()
        self._partitions: dict[TopicPartition, FetchPosition] = {}
        """The partitions, in the order of each request. A partition that returned batches moves to the end."""
        self._in_flight: dict[int, _InFlightFetch] = {}
        self._reserved_bytes = 0
        """The sum of the byte limits of the requests in flight."""
        self._data_available = asyncio.Event() if news is None else news
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._remove_update_listener = cluster.on_update(self._send_fetches)

    # Assignment

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._partitions)

    @property
    def is_finished(self) -> bool:
        """Whether every partition was read up to its `until` and all batches were taken."""
        return all(each.is_at_end and each.completed is None for each in self._partitions.values())

    def assign(self, offsets: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int] | None = None) -> None:
        """Reads exactly these partitions from these offsets, and up to their offset in `until` (exclusive) if any."""
        self.remove(list(self._partitions))
        self.add(offsets, until)

    def add(
        self,
        offsets: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Reads these partitions in addition. `leader_epochs` has the same meaning as `leader_epoch` in `seek`."""
        until, epochs = until or {}, leader_epochs or {}
        for partition in until:
            if partition not in offsets:
                raise ValueError(f"{partition} has an end offset but no start offset")
        for partition, offset in offsets.items():
            self._set_position(partition, offset, until.get(partition), epochs.get(partition, -1))
        self._send_fetches()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading these partitions and drops their batches."""
        for partition in partitions:
            if self._partitions.pop(partition, None) is not None:
                self._cluster.untrack([partition.topic])
        self._send_fetches()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Sets the position of a partition and drops its fetched batches. The end offset stays the same.

        `leader_epoch` is that of the record before the offset (-1: unknown), to let the leader detect a truncated log.
        """
        self._set_position(partition, offset, self._partitions[partition].until, leader_epoch)
        self._send_fetches()

    def _set_position(self, partition: TopicPartition, offset: int, until: int | None, leader_epoch: int) -> None:
        if offset < 0:
            raise ValueError(f"{partition} cannot be read from offset {offset}")
        state, before = FetchPosition(offset, until, leader_epoch), self._partitions.get(partition)
        if before is None:
            self._cluster.track([partition.topic])
        else:
            state.is_paused = before.is_paused
            state.high_watermark, state.log_start_offset = before.high_watermark, before.log_start_offset
        self._partitions[partition] = state

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops returning batches of these partitions until `resume`. Fetched batches are kept."""
        for partition in partitions:
            self._partitions[partition].is_paused = True
        # Other partitions of the same leaders no longer wait until batches of the paused partitions are taken.
        self._send_fetches()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            state = self._partitions[partition]
            state.is_paused = False
            if state.completed is not None:
                self._data_available.set()
        self._send_fetches()

    def position(self, partition: TopicPartition) -> int:
        """Returns the offset after the last taken batch."""
        state = self._partitions[partition]
        return state.position if state.completed is None else state.completed.position

    def high_watermark(self, partition: TopicPartition) -> int:
        """Returns the high watermark of the last response, -1 before the first response."""
        return self._partitions[partition].high_watermark

    def log_start_offset(self, partition: TopicPartition) -> int:
        return self._partitions[partition].log_start_offset

    async def close(self) -> None:
        self._is_closed = True
        self._remove_update_listener()
        if self._timer is not None:
            self._timer.cancel()
        await cancel_and_wait(*(fetch.task for fetch in self._in_flight.values()))
        if self._owns_lane:
            self._cluster.close_lane(self._lane)
        for partition in self._partitions:
            self._cluster.untrack([partition.topic])
        self._partitions.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Taking batches

    async def next(self, timeout_ms: int) -> list[CompletedFetch]:
        """Waits for batches and returns those of all partitions that are not paused; [] after the timeout.

        There is at most one entry per partition. Callers must skip records below the `position` of the entry and, in a
        bounded read, records at or above `until`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while not (taken := self.take()):
            self._data_available.clear()
            if not await wait_until(self._data_available, deadline):
                return self.take()
        return taken

    def take(self) -> list[CompletedFetch]:
        """Returns the same as `next`, but without waiting."""
        taken = []
        for state in self._partitions.values():
            if state.completed is not None and not state.is_paused:
                taken.append(state.completed)
                state.completed = None
        if taken:
            self._send_fetches()
        return taken

    # Fetching

    def _send_fetches(self) -> None:
        """Sends a fetch to every leader that has no fetch in flight and whose last response was taken."""
        if self._is_closed:
            return
        self._cancel_stale_fetches()
        now = asyncio.get_running_loop().time()
        retry_times: list[float] = []
        by_leader: dict[int, dict[TopicPartition, FetchPosition]] = {}
        untaken: dict[int, None] = {}
        for partition, state in self._partitions.items():
            if state.is_paused or state.has_failed or (state.is_at_end and state.completed is None):
                continue
            leader = self._cluster.known_leader_of(partition)
            if state.completed is not None:
                untaken[leader] = None
            elif state.backoff_until > now and not self._has_failed_at_older_leader(partition, state):
                retry_times.append(state.backoff_until)
            elif leader == NO_LEADER or self._awaits_newer_leader(partition, state, now):
                self._cluster.refresh_soon()
                retry_times.append(now + self._cluster.retry_backoff_ms / 1000)
            else:
                by_leader.setdefault(leader, {})[partition] = state
        for leader, positions in by_leader.items():
            # Do not fetch while the caller has not taken all batches of this leader. A long poll for the other
            # partitions would delay the next fetch of the partitions with these batches.
            if leader not in self._in_flight and leader not in untaken:
                self._start_fetch(leader, positions)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if retry_times:
            self._timer = asyncio.get_running_loop().call_at(min(retry_times), self._send_fetches)

    def _has_failed_at_older_leader(self, partition: TopicPartition, state: FetchPosition) -> bool:
        return state.failures > 0 and self._cluster.has_newer_leader(partition, state.requested_leader_epoch)

    def _awaits_newer_leader(self, partition: TopicPartition, state: FetchPosition, now: float) -> bool:
        topic = self._cluster.topics.get(partition.topic)
        timeout_s = self._cluster.request_timeout_ms / 1000
        return topic is not None and state.awaits_newer_leader(topic, partition.partition, now, timeout_s)

    def _start_fetch(self, leader: int, positions: Mapping[TopicPartition, FetchPosition]) -> None:
        buffered = sum(each.completed.size for each in self._partitions.values() if each.completed is not None)
        free_bytes = self._buffered_bytes_max - self._reserved_bytes - buffered
        # Fetch even if the buffer is full, because paused partitions may fill it for a long time.
        bytes_max = min(self._max_bytes, max(free_bytes, self._partition_max_bytes))
        self._reserved_bytes += bytes_max
        task = asyncio.get_running_loop().create_task(
            self._fetch(leader, positions, bytes_max), name=f"fetches from node {leader}"
        )
        self._in_flight[leader] = fetch = _InFlightFetch(positions, bytes_max, task)
        # Clean up in a callback, because a task that is cancelled before its first step never enters its coroutine.
        task.add_done_callback(lambda _: self._on_fetch_done(leader, fetch))

    def _on_fetch_done(self, leader: int, fetch: _InFlightFetch) -> None:
        del self._in_flight[leader]
        self._reserved_bytes -= fetch.bytes_max
        # Do not fetch again if the client is closing, which also cancels the task but does not set `is_abandoned`.
        if fetch.is_abandoned or not fetch.task.cancelled():
            self._send_fetches()

    def _cancel_stale_fetches(self) -> None:
        """Cancels fetches whose positions are all obsolete, because later fetches would wait behind them."""
        for fetch in self._in_flight.values():
            is_needed = any(self._partitions.get(partition) is state for partition, state in fetch.positions.items())
            if not is_needed and not fetch.is_abandoned:
                fetch.is_abandoned = True
                fetch.task.cancel()

    async def _fetch(self, leader: int, positions: Mapping[TopicPartition, FetchPosition], bytes_max: int) -> None:
        request = self._build_request(positions, bytes_max)
        try:
            response = await self._cluster.call(
                leader,
                ApiKey.FETCH,
                request,
                timeout_ms=self._cluster.request_timeout_ms + self._max_wait_ms,
                lane=self._lane,
            )
            self._handle_response(response, request, positions)
        except KafkaError as error:
            _log.debug("fetch failed", node=leader, error=error)
            if _is_transient(error):
                _warn_once(error, positions.values())
                self._back_off(positions.values())
            else:
                self._fail_all(request, positions, error)
        except Exception as error:
            # This is a bug in the client or broker. Report an error, because the caller must not wait forever.
            _log.exception("fetch response cannot be processed", node=leader)
            failure = KafkaError(ErrorCode.unknown_server_error, f"the response of node {leader}: {error!r}")
            self._fail_all(request, positions, failure)

    def _build_request(self, positions: Mapping[TopicPartition, FetchPosition], bytes_max: int) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition, state in positions.items():
            known = self._cluster.partition_info(partition)
            state.requested_leader_epoch = -1 if known is None else known.leader_epoch
            topics.setdefault(partition.topic, []).append(
                {
                    "partition": partition.partition,
                    "current_leader_epoch": state.requested_leader_epoch,
                    "fetch_offset": state.position,
                    "last_fetched_epoch": state.leader_epoch,
                    "partition_max_bytes": self._partition_max_bytes,
                }
            )
        return {
            "max_wait": 0 if any(each.is_end_available for each in positions.values()) else self._max_wait_ms,
            "min_bytes": self._min_bytes,
            "max_bytes": bytes_max,
            "isolation_level": self._isolation_level,
            "topics": [{"topic": name, "partitions": each} for name, each in topics.items()],
            "forgotten_topics_data": [],
        }

    def _requested_positions(
        self, request: Mapping[str, Any], positions: Mapping[TopicPartition, FetchPosition]
    ) -> Iterable[tuple[TopicPartition, FetchPosition, bool]]:
        """Yields the partitions in the order of a request, and whether the response is still needed for each."""
        for topic in request["topics"]:
            for each in topic["partitions"]:
                partition = TopicPartition(topic["topic"], each["partition"])
                state = positions[partition]
                # The response is not needed after a seek or the removal of the partition, or if the response of a new
                # leader arrived first and advanced the position.
                is_needed = self._partitions.get(partition) is state and not state.has_failed
                yield partition, state, is_needed and state.position == each["fetch_offset"]

    def _handle_response(
        self, response: Message, request: Mapping[str, Any], positions: Mapping[TopicPartition, FetchPosition]
    ) -> None:
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code, "fetch")
        responses = {
            TopicPartition(topic.topic, each.partition_index): each
            for topic in response.responses
            for each in topic.partitions
        }
        failed: list[FetchPosition] = []
        is_empty_so_far = True
        for partition, state, is_needed in self._requested_positions(request, positions):
            each = responses.get(partition)
            if each is None:
                continue
            is_empty_so_far = is_empty_so_far and not each.records
            if not is_needed:
                continue
            if each.error_code == ErrorCode.none:
                self._handle_partition_data(partition, state, each, is_empty_response=is_empty_so_far)
                continue
            self._cluster.learn_leader(partition, each.get("current_leader"), response.get("node_endpoints") or ())
            error = KafkaError(each.error_code, f"{partition}")
            if _is_transient(error):
                _warn_once(error, [state])
                failed.append(state)
            else:
                self._fail_partition(partition, state, error)
        self._back_off(failed)

    def _handle_partition_data(
        self, partition: TopicPartition, state: FetchPosition, response: Message, *, is_empty_response: bool
    ) -> None:
        """`is_empty_response` means that neither this partition nor those before it in the request got a batch."""
        diverging = response.get("diverging_epoch")
        if diverging is not None and diverging.end_offset >= 0:
            if diverging.end_offset < state.position:
                truncation = LogTruncationError(partition, state.position, diverging.end_offset, diverging.epoch)
                self._fail_partition(partition, state, truncation)
            else:
                # The log still reaches the position, so it was probably not truncated. `leader_epoch` may be that of a
                # leader which failed before it wrote a record.
                state.leader_epoch = diverging.epoch
            return
        state.failures, state.backoff_until = 0, 0.0
        state.high_watermark = response.high_watermark
        is_committed = self._isolation_level == READ_COMMITTED
        state.readable_end_offset = response.last_stable_offset if is_committed else response.high_watermark
        state.log_start_offset = response.log_start_offset
        parsed = parse_batches(partition, response, state.position, self._isolation_level, state.until)
        next_offset, is_empty = parsed.next_offset, False
        if state.until is not None:
            if state.readable_end_offset < state.until:
                state.empty_responses = 0
            elif is_empty_response:
                is_empty = self._confirm_empty(state)
            next_offset = state.until if is_empty else min(next_offset, state.until)
        if next_offset == state.position and parsed.error is None:
            return
        state.empty_responses = 0
        state.completed = CompletedFetch(
            partition,
            state.position,
            next_offset,
            parsed.batches,
            response.high_watermark,
            response.last_stable_offset,
            response.log_start_offset,
            parsed.error,
            is_empty,
            parsed.leader_epoch,
        )
        state.position = next_offset
        if parsed.leader_epoch >= 0:
            state.leader_epoch = parsed.leader_epoch
        state.has_failed = parsed.error is not None
        self._partitions[partition] = self._partitions.pop(partition)
        self._data_available.set()

    def _confirm_empty(self, state: FetchPosition) -> bool:
        """Returns whether there are certainly no more records. Otherwise delays the next fetch."""
        now = asyncio.get_running_loop().time()
        if state.record_empty_response(now):
            return True
        state.backoff_until = now + self._backoff.delay_ms(state.empty_responses) / 1000
        return False

    def _fail_all(
        self, request: Mapping[str, Any], positions: Mapping[TopicPartition, FetchPosition], error: KafkaError
    ) -> None:
        for partition, state, is_needed in self._requested_positions(request, positions):
            if is_needed:
                self._fail_partition(partition, state, error)

    def _back_off(self, positions: Collection[FetchPosition]) -> None:
        """Delays all these partitions by the same time, so that one request fetches them again."""
        if not positions:
            return
        failures = max(each.failures for each in positions) + 1
        backoff_until = asyncio.get_running_loop().time() + self._backoff.delay_ms(failures) / 1000
        for state in positions:
            state.failures, state.backoff_until = failures, backoff_until
        self._cluster.refresh_soon()

    def _fail_partition(self, partition: TopicPartition, state: FetchPosition, error: KafkaError) -> None:
        state.has_failed = True
        state.completed = CompletedFetch(
            partition, state.position, state.position, (), state.high_watermark, -1, state.log_start_offset, error
        )
        self._data_available.set()


def _is_transient(error: KafkaError) -> bool:
    """Returns whether to retry. Unexpected broker errors are retried, because they often do not recur."""
    return error.is_retriable or error.code is ErrorCode.unknown_server_error


def _warn_once(error: KafkaError, positions: Iterable[FetchPosition]) -> None:
    """Logs the first of consecutive unexpected broker errors, because users do not see errors that are retried."""
    if error.code is ErrorCode.unknown_server_error and not any(each.failures for each in positions):
        _log.warning("fetch failed at the broker and is retried", error=error)
