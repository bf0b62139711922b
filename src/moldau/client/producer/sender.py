"""Moves the accumulator's batches to the leaders of their partitions, several requests under way to each node."""

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.connection import Connection
from moldau.client.net.metadata import NO_LEADER
from moldau.client.net.retries import Backoff
from moldau.client.producer.accumulator import Accumulator, Outcome, ProducerBatch
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

LANE = "produce"
"""Answers to acks=all wait for replicas: nothing else should stand behind them."""

_TRANSACTION_TIMEOUT_MS = 60_000
"""A field of the request for a producer id that only transactions use."""
_log = get_logger("client.sender")


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        conclude: Callable[[list[Outcome]], None],
        *,
        acks: int,
        max_request_size: int,
        max_in_flight: int,
    ) -> None:
        """`conclude` is told of every batch that is done."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._conclude = conclude
        self._acks = acks
        self._max_request_size = max_request_size
        self._max_in_flight = max_in_flight
        self._backoff = cluster.backoff()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._getting_identity: asyncio.Task[None] | None = None
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._in_flight: dict[int, list[asyncio.Future[Message]]] = {}
        """Requests without an answer, by node."""
        self._away: dict[int, tuple[Backoff, int]] = {}
        """Nodes that could not be reached, and when to try again."""
        self.failure: KafkaError | None = None
        """Why nothing can be sent any more."""

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(
            self._run(), name=f"{self._cluster.client_id} produces"
        )

    async def stop(self) -> None:
        """Sends nothing more. Answers that are still under way are taken when they come."""
        tasks = [task for task in (self._running, self._getting_identity) if task is not None]
        tasks += self._sending.values()
        self._running = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def answers(self) -> None:
        """Waits until no answer is outstanding."""
        # Shielded: whoever is tired of waiting must not take the answers from the batches.
        waiting = [asyncio.shield(answer) for answers in self._in_flight.values() for answer in answers]
        await asyncio.gather(*waiting, return_exceptions=True)

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def now_ms(self) -> int:
        # A timer for a whole millisecond may fire a hair before it: that must count as that millisecond.
        return int(asyncio.get_running_loop().time() * 1000 + 0.01)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now_ms = self.now_ms()
            self._conclude(self._accumulator.expire(now_ms))
            if self.failure is not None:
                self._conclude(self._accumulator.abandon(self.failure))
            elif self._accumulator.wants_identity and self._getting_identity is None:
                self._getting_identity = asyncio.get_running_loop().create_task(
                    self._get_identity(), name=f"{self._cluster.client_id} gets a producer id"
                )
            wake_at_ms = self._send_ready(now_ms)
            try:
                async with asyncio.timeout_at(None if wake_at_ms is None else wake_at_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _send_ready(self, now_ms: int) -> int | None:
        """Has what is ready sent to nodes that have room for more; says when to look again though nothing happens."""
        leaders = dict.fromkeys(map(self._cluster.known_leader_of, self._accumulator.ready(now_ms)))
        times = [self._accumulator.wake_at(now_ms)]
        for node in leaders:
            _, not_before_ms = self._away.get(node, (None, 0))
            if node == NO_LEADER:
                self._cluster.refresh_soon()
                times.append(now_ms + self._cluster.retry_backoff_ms)
            elif not_before_ms > now_ms:
                times.append(not_before_ms)
            elif node not in self._sending and self._has_room(node):
                self._sending[node] = asyncio.get_running_loop().create_task(
                    self._send_to(node), name=f"{self._cluster.client_id} sends to node {node}"
                )
        return min((at for at in times if at is not None), default=None)

    def _has_room(self, node: int) -> bool:
        return len(self._in_flight.get(node, ())) < self._max_in_flight

    async def _send_to(self, node: int) -> None:
        try:
            connection = await self._cluster.connection(node, LANE)
            self._away.pop(node, None)
            # Between taking batches and sending them nothing is awaited: they leave in the order of their sequences.
            while self._has_room(node) and (batches := self._take(node)):
                self._send(node, connection, batches)
                # With acks=0 there are no answers that would hold the producer back.
                await connection.drained()
        except KafkaError as error:
            self._cannot_reach(node, error)
        finally:
            del self._sending[node]
            self._wake.set()

    def _cannot_reach(self, node: int, error: KafkaError) -> None:
        _log.debug("a leader cannot be reached", node=node, error=error)
        now_ms = self.now_ms()
        backoff, _ = self._away.get(node, (self._cluster.backoff(), 0))
        self._away[node] = (backoff, now_ms + backoff.next_ms())
        if error.is_retriable:
            for partition in self._ready_for(node):
                self._accumulator.note(partition, error)
            return
        # To wait for the delivery timeout would only hide what is wrong.
        while partitions := self._ready_for(node):
            for partition in partitions:
                self._conclude(self._accumulator.drop(partition, error))

    def _ready_for(self, node: int) -> list[TopicPartition]:
        ready = self._accumulator.ready(self.now_ms())
        return [each for each in ready if self._cluster.known_leader_of(each) == node]

    def _take(self, node: int) -> list[ProducerBatch]:
        """The batches of one request: one of each partition that is ready, as many as may go together."""
        batches: list[ProducerBatch] = []
        size = 0
        for partition in self._ready_for(node):
            size += self._accumulator.next_size(partition)
            if batches and size > self._max_request_size:
                break
            try:
                batches.append(self._accumulator.take(partition))
            except Exception as error:
                _log.exception("a batch cannot be built", partition=str(partition))
                self._conclude(self._accumulator.drop(partition, _unsendable(error)))
        return batches

    def _send(self, node: int, connection: Connection, batches: list[ProducerBatch]) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            each = {"index": batch.partition.partition, "records": batch.data}
            topics.setdefault(batch.partition.topic, []).append(each)
        tree = {
            "transactional_id": None,
            "acks": self._acks,
            "timeout": self._cluster.request_timeout_ms,
            "topic_data": [{"name": name, "partition_data": each} for name, each in topics.items()],
        }
        # The broker has the timeout for its replicas, and some time more to say that it has run out.
        timeout_ms = self._cluster.request_timeout_ms + self._cluster.retry_backoff_max_ms
        try:
            if self._acks == 0:
                connection.send_unanswered(ApiKey.PRODUCE, tree)
                for batch in batches:
                    self._conclude(self._accumulator.acknowledge(batch, -1))
                return
            answer = connection.send(ApiKey.PRODUCE, tree, timeout_ms=timeout_ms)
        except KafkaError as error:
            self._did_not_leave(batches, error)
            raise
        except Exception as error:
            unsendable = _unsendable(error)
            self._did_not_leave(batches, unsendable)
            raise unsendable from error
        self._in_flight.setdefault(node, []).append(answer)
        answer.add_done_callback(lambda future: self._answered(node, connection, batches, future))

    def _did_not_leave(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            if error.is_retriable:
                self._accumulator.put_back(batch, error)
            else:
                self._fail(batch, error)

    def _answered(
        self,
        node: int,
        connection: Connection,
        batches: list[ProducerBatch],
        future: "asyncio.Future[Message]",
    ) -> None:
        self._in_flight[node].remove(future)
        failure = future.exception()
        if failure is not None:
            assert isinstance(failure, KafkaError), failure
            self._cluster.note_failure(connection)
            for batch in batches:
                self._fail(batch, failure)
        else:
            told = {
                TopicPartition(topic.name, each.index): each
                for topic in future.result().responses
                for each in topic.partition_responses
            }
            for batch in batches:
                self._read_answer(batch, told.get(batch.partition))
        self._wake.set()

    def _read_answer(self, batch: ProducerBatch, told: Message | None) -> None:
        if told is None:
            missing = f"an answer without {batch.partition}"
            self._fail(batch, KafkaError(ErrorCode.network_exception, missing))
        elif told.error_code == ErrorCode.none:
            self._conclude(self._accumulator.acknowledge(batch, told.base_offset, told.log_append_time))
        else:
            leader = told.get("current_leader")
            if leader is not None and leader.leader_id >= 0:
                self._cluster.learn_leader(batch.partition, leader.leader_id, leader.leader_epoch)
            self._fail(batch, KafkaError(told.error_code, _message(told) or str(batch.partition)))

    def _fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        _log.debug("a batch failed", partition=batch.partition, attempt=batch.attempts, error=error)
        if error.is_retriable:
            self._cluster.refresh_soon()
        now_ms = self.now_ms()
        retry_at_ms = now_ms + self._backoff.after_ms(batch.attempts)
        self._conclude(self._accumulator.fail(batch, error, now_ms, retry_at_ms))

    async def _get_identity(self) -> None:
        backoff = self._cluster.backoff()
        tree = {"transactional_id": None, "transaction_timeout": _TRANSACTION_TIMEOUT_MS}
        node_id = None
        while True:
            try:
                answer = await self._cluster.call(node_id, ApiKey.INIT_PRODUCER_ID, tree)
                if answer.error_code != ErrorCode.none:
                    raise KafkaError(answer.error_code, "no producer id was given")
                self._accumulator.identify(answer.producer_id, answer.producer_epoch)
                break
            except KafkaError as error:
                if not error.is_retriable:
                    self.failure = error
                    break
                _log.debug("no producer id yet", error=error)
                await asyncio.sleep(backoff.next_ms() / 1000)
                # One that is cut off from its controller has none to give, however often it is asked.
                brokers = sorted(self._cluster.brokers)
                node_id = self._cluster.random.choice(brokers) if brokers else None
        self._getting_identity = None
        self._wake.set()


def _unsendable(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, f"it cannot be sent: {error!r}")


def _message(told: Message) -> str:
    """What a broker says of a refused batch, and of the records at fault if it names them."""
    texts = [told.get("error_message") or ""]
    texts += [
        f"record {each.batch_index}: {each.batch_index_error_message}"
        for each in told.get("record_errors") or ()
        if each.batch_index_error_message
    ]
    return "; ".join(text for text in texts if text)
