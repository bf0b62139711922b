"""Sends the markers of decided transactions to the leaders of their partitions, until all partitions have them.

One request at a time goes to each broker; the markers that are decided in the meantime share the next request. The
partitions that this node leads are written directly.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.concurrency.eager import report_error, start_eagerly
from moldau.error_codes import ErrorCode, error_code
from moldau.errors import PeerUnreachableError
from moldau.metadata.image import EMPTY_IMAGE, NO_LEADER, MetadataDelta, MetadataImage
from moldau.observe.logging import get_logger
from moldau.peers.client import PeerClient
from moldau.transactions.marker_writer import EndTransactionMarker, MarkersToWrite, MarkerWriter
from moldau.transactions.requests import TransactionMarkers
from moldau.transactions.transaction_metadata import TopicPartition
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

log = get_logger(__name__)

LANE = "transaction-markers"
REQUEST_TIMEOUT_MS = 10_000
"""Longer than a broker waits until a marker is committed."""
PARTITIONS_PER_REQUEST_MAX = 10_000
RETRY_BACKOFF_MS = 20
RETRY_BACKOFF_MAX_MS = 1_000

_RETRIABLE_CODES = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
    }
)
_FENCED_CODES = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced})
"""Another coordinator has taken over and has ended the transaction, or even a later one."""
_UNSUPPORTED_CODES = frozenset({ErrorCode.unsupported_version, ErrorCode.unsupported_for_message_format})


@dataclass(slots=True, eq=False)
class PendingMarkers:
    """The markers of one transaction that are not written to all partitions yet."""

    markers: TransactionMarkers
    coordinator_epoch: int
    remaining: set[TopicPartition]
    topic_ids: Mapping[str, UUID]
    """The ids of the topics when the markers were added. A topic with another id is a new topic."""
    is_written: "asyncio.Future[bool]"
    """True when all partitions have the marker, False if another coordinator has taken over."""
    failures: int = 0

    def marker(self) -> EndTransactionMarker:
        markers = self.markers
        return EndTransactionMarker(
            markers.producer_id,
            markers.producer_epoch,
            self.coordinator_epoch,
            markers.commit,
            markers.transaction_version,
        )


@dataclass(slots=True)
class _Entry:
    """Partitions of one transaction that have the same leader."""

    pending: PendingMarkers
    partitions: list[TopicPartition] = field(default_factory=list)


class MarkerSender:
    def __init__(self, node_id: int, peers: PeerClient, writer: MarkerWriter) -> None:
        self._node_id = node_id
        self._peers = peers
        self._writer = writer
        self._image = EMPTY_IMAGE
        self._queues: dict[int, deque[_Entry]] = {}
        """Entries to send, by broker id."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The task of each broker that has entries."""
        self._leaderless: list[_Entry] = []
        """Partitions without a leader. They are routed again when the metadata changes."""
        self._retry_timers: set[asyncio.TimerHandle] = set()
        self._is_closed = False
        self.unexpected_errors = 0

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        for broker_id in delta.brokers_changed:
            broker = image.brokers.get(broker_id)
            if broker_id in self._tasks and (broker is None or broker.fenced):
                # Do not wait for a broker that does not respond, because its partitions have other leaders now.
                self._peers.disconnect(broker_id, LANE)
        leaderless, self._leaderless = self._leaderless, []
        for entry in leaderless:
            self._route(entry.pending, entry.partitions)

    def add(self, markers: TransactionMarkers, coordinator_epoch: int) -> PendingMarkers:
        """Starts to send markers. Cancelling the future of the result stops it."""
        topics = {topic for topic, _ in markers.partitions}
        pending = PendingMarkers(
            markers,
            coordinator_epoch,
            set(markers.partitions),
            {name: self._image.topics[name].topic_id for name in topics if name in self._image.topics},
            asyncio.get_running_loop().create_future(),
        )
        if not pending.remaining:
            pending.is_written.set_result(True)
        self._route(pending, markers.partitions)
        return pending

    async def close(self) -> None:
        """Interrupts requests to other brokers, and waits until the appends in progress have ended."""
        self._is_closed = True
        for timer in self._retry_timers:
            timer.cancel()
        self._retry_timers.clear()
        tasks = list(self._tasks.values())
        for broker_id in self._tasks:
            self._peers.disconnect(broker_id, LANE)
        await asyncio.gather(*tasks)

    # Routing

    def _route(self, pending: PendingMarkers, partitions: Iterable[TopicPartition]) -> None:
        if pending.is_written.done() or self._is_closed:
            return
        by_leader: dict[int, list[TopicPartition]] = {}
        # Sort, so that the order does not depend on the hashes of strings, which differ between processes.
        for partition in sorted(partitions):
            leader = self._leader_of(pending, partition)
            if leader is None:
                log.info("skipped the marker of a deleted partition", partition=f"{partition[0]}-{partition[1]}")
                self._on_written(pending, partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        for leader, led in by_leader.items():
            entry = _Entry(pending, led)
            if leader == NO_LEADER:
                self._leaderless.append(entry)
                continue
            queue = self._queues.get(leader)
            if queue is not None:
                queue.append(entry)
                continue
            self._queues[leader] = deque((entry,))
            self._start(leader)

    def _start(self, broker_id: int) -> None:
        if broker_id != self._node_id:
            # The task starts later, so that markers that are decided now share one request.
            self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._run(broker_id))
            return
        task = start_eagerly(self._run(broker_id), report_error)
        if task is not None:
            self._tasks[broker_id] = task

    def _leader_of(self, pending: PendingMarkers, partition: TopicPartition) -> int | None:
        """Returns the leader, or NO_LEADER; None if the partition was deleted.

        The coordinator checks that a partition exists before it adds it. The metadata image of this node is at least
        as new as the image of any earlier coordinator while it led the state partition. A partition that is missing in
        the image was therefore deleted.
        """
        name, index = partition
        topic = self._image.topics.get(name)
        if topic is None or topic.topic_id != pending.topic_ids.get(name) or index >= len(topic.partitions):
            return None
        return topic.partitions[index].leader

    def _on_written(self, pending: PendingMarkers, partition: TopicPartition) -> None:
        pending.remaining.discard(partition)
        if not pending.remaining and not pending.is_written.done():
            pending.is_written.set_result(True)

    def _retry(self, pending: PendingMarkers, partitions: Sequence[TopicPartition]) -> None:
        """Routes partitions again after a backoff, because they may have another leader then."""
        if pending.is_written.done() or self._is_closed or not partitions:
            return
        pending.failures += 1
        delay_ms = exponential_backoff_ms(pending.failures, RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS)

        def route() -> None:
            self._retry_timers.discard(timer)
            self._route(pending, partitions)

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, route)
        self._retry_timers.add(timer)

    # Requests

    async def _run(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        try:
            while queue and not self._is_closed:
                entries = [self._still_led(broker_id, entry) for entry in _take(queue)]
                await self._send(broker_id, [entry for entry in entries if entry.partitions])
        finally:
            del self._queues[broker_id]
            self._tasks.pop(broker_id, None)

    def _still_led(self, broker_id: int, entry: _Entry) -> _Entry:
        """Returns the entry without the partitions that the broker no longer leads, which are routed again."""
        led = [each for each in entry.partitions if self._leader_of(entry.pending, each) == broker_id]
        if len(led) < len(entry.partitions):
            self._route(entry.pending, set(entry.partitions).difference(led))
        return _Entry(entry.pending, led)

    async def _send(self, broker_id: int, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        try:
            if broker_id == self._node_id:
                codes = await self._write_locally(entries)
            else:
                request = {"markers": [_marker_tree(entry) for entry in entries]}
                response = await self._peers.call(
                    broker_id, ApiKey.WRITE_TXN_MARKERS, request, lane=LANE, timeout_ms=REQUEST_TIMEOUT_MS
                )
                codes = _codes_in(response)
        except PeerUnreachableError as error:
            log.debug("sending transaction markers failed", broker=broker_id, reason=str(error))
            codes = {}
        except Exception:
            self.unexpected_errors += 1
            log.exception("sending transaction markers failed unexpectedly, retrying", broker=broker_id)
            codes = {}
        for entry in entries:
            self._on_response(broker_id, entry, codes)

    async def _write_locally(self, entries: Sequence[_Entry]) -> dict[tuple[int, str, int], int]:
        to_write = [MarkersToWrite(entry.pending.marker(), entry.partitions) for entry in entries]
        return {
            (each.marker.producer_id, *partition): error_code(error)
            for each, errors in zip(to_write, await self._writer.write(to_write), strict=True)
            for partition, error in errors.items()
        }

    def _on_response(self, broker_id: int, entry: _Entry, codes: Mapping[tuple[int, str, int], int]) -> None:
        pending = entry.pending
        if pending.is_written.done():
            return
        retried = []
        for partition in entry.partitions:
            code = codes.get((pending.markers.producer_id, *partition))
            name = f"{partition[0]}-{partition[1]}"
            if code in (ErrorCode.none, *_UNSUPPORTED_CODES):
                self._on_written(pending, partition)
            elif code in _FENCED_CODES:
                log.warning(
                    "stopped writing markers, another coordinator has taken over",
                    transactional_id=pending.markers.transactional_id,
                    partition=name,
                    code=code,
                )
                pending.is_written.set_result(False)
                return
            else:
                # A response without this partition means that the broker could not be reached.
                if code is not None and code not in _RETRIABLE_CODES:
                    log.error("writing a transaction marker failed, retrying", partition=name, code=code)
                retried.append(partition)
        self._retry(pending, retried)


def _take(queue: "deque[_Entry]") -> list[_Entry]:
    """Removes and returns the entries of the next request, without those that are no longer needed."""
    entries: list[_Entry] = []
    count = 0
    while queue and (not entries or count + len(queue[0].partitions) <= PARTITIONS_PER_REQUEST_MAX):
        entry = queue.popleft()
        if not entry.pending.is_written.done():
            entries.append(entry)
            count += len(entry.partitions)
    return entries


def _marker_tree(entry: _Entry) -> dict[str, Any]:
    marker = entry.pending.marker()
    topics: dict[str, list[int]] = {}
    for name, index in entry.partitions:
        topics.setdefault(name, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.commit,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }


def _codes_in(response: Message) -> dict[tuple[int, str, int], int]:
    return {
        (marker.producer_id, topic.name, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
