"""The producer's sender: delivers batches to the partition leaders, with several requests in flight per node."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.connection import Connection
from moldau.client.net.metadata import NO_LEADER
from moldau.client.producer.producer_batch import ProducerBatch, ProduceResult
from moldau.client.producer.record_accumulator import RecordAccumulator
from moldau.client.producer.transaction_manager import TransactionManager
from moldau.client.record import TopicPartition
from moldau.concurrency.backoff import Backoff
from moldau.concurrency.tasks import cancel_and_wait, wait_until
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

LANE = "produce"
"""Produce requests use a separate connection (a lane), because with acks=all they delay the requests behind them."""

_TRANSACTION_TIMEOUT_MS = 60_000
"""The value for a field of InitProducerId that only transactions use."""
_CONCURRENT_TRANSACTIONS_BACKOFF_MS = 20
"""The backoff while the previous transaction of the producer is being completed, which takes a few milliseconds."""
_RECORD_ERRORS_SHOWN_MAX = 3
_log = get_logger("client.sender")


class Sender:
    """Sends ready batches in a background task and reports their results."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: RecordAccumulator,
        on_results: Callable[[list[ProduceResult]], None],
        *,
        acks: int,
        max_request_size: int,
        max_in_flight: int,
        transactions: TransactionManager | None = None,
    ) -> None:
        """`on_results` is called with the results of completed batches."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._handle_results = on_results
        self._acks = acks
        self._max_request_size = max_request_size
        self._max_in_flight = max_in_flight
        self._transactions = transactions
        self._backoff = cluster.backoff()
        self._wakeup = asyncio.Event()
        self._stop_listening: Callable[[], None] = _do_nothing
        self._run_task: asyncio.Task[None] | None = None
        self._producer_id_task: asyncio.Task[None] | None = None
        self._send_tasks: dict[int, asyncio.Task[None]] = {}
        self._in_flight: dict[int, list[asyncio.Future[Message]]] = {}
        self._unreachable_nodes: dict[int, tuple[Backoff, int]] = {}
        """Unreachable nodes, with their backoff and the time of the next attempt."""
        self.failure: KafkaError | None = None
        """The fatal error after which nothing can be sent; None if there was none."""

    def start(self) -> None:
        self._stop_listening = self._cluster.on_update(self._handle_metadata_update)
        self._run_task = asyncio.get_running_loop().create_task(self._run(), name=f"{self._cluster.client_id} produces")

    async def stop(self) -> None:
        """Stops sending. Responses that are still outstanding are handled when they arrive."""
        self._stop_listening()
        self._stop_listening = _do_nothing
        run_task, self._run_task = self._run_task, None
        await cancel_and_wait(run_task, self._producer_id_task, *self._send_tasks.values())

    async def wait_for_responses(self) -> None:
        # Shield the responses, so that cancelling this call does not cancel them.
        waiting = [asyncio.shield(response) for responses in self._in_flight.values() for response in responses]
        await asyncio.gather(*waiting, return_exceptions=True)

    def wakeup(self) -> None:
        """Makes the sender check for ready batches."""
        self._wakeup.set()

    def now_ms(self) -> int:
        # Add 0.01 ms, because a timer may fire slightly before its millisecond.
        return int(asyncio.get_running_loop().time() * 1000 + 0.01)

    async def _run(self) -> None:
        while True:
            self._wakeup.clear()
            now_ms = self.now_ms()
            self._handle_results(self._accumulator.expire_batches(now_ms))
            if self.failure is not None:
                self._handle_results(self._accumulator.abort_undrained(self.failure))
            elif self._transactions is not None and self._transactions.has_failed:
                self._handle_results(self._accumulator.abort_undrained(self._transactions.batch_error()))
            elif self._accumulator.needs_producer_id and self._producer_id_task is None:
                self._producer_id_task = asyncio.get_running_loop().create_task(
                    self._init_producer_id(), name=f"{self._cluster.client_id} gets a producer id"
                )
            wake_at_ms = self._send_ready(now_ms)
            await wait_until(self._wakeup, None if wake_at_ms is None else wake_at_ms / 1000)

    def _send_ready(self, now_ms: int) -> int | None:
        """Starts sending to nodes with ready batches. Returns the time of the next check, if one is needed."""
        leaders = dict.fromkeys(map(self._cluster.known_leader_of, self._accumulator.ready_partitions(now_ms)))
        times = [self._accumulator.next_wakeup_ms(now_ms)]
        for node in leaders:
            _, backoff_until_ms = self._unreachable_nodes.get(node, (None, 0))
            if node == NO_LEADER:
                self._cluster.refresh_soon()
                times.append(now_ms + self._cluster.retry_backoff_ms)
            elif backoff_until_ms > now_ms:
                times.append(backoff_until_ms)
            elif node not in self._send_tasks and self._can_send_more(node):
                self._send_tasks[node] = asyncio.get_running_loop().create_task(
                    self._send_to(node), name=f"{self._cluster.client_id} sends to node {node}"
                )
        return min((at for at in times if at is not None), default=None)

    def _can_send_more(self, node: int) -> bool:
        return len(self._in_flight.get(node, ())) < self._max_in_flight

    async def _send_to(self, node: int) -> None:
        try:
            connection = await self._cluster.connection(node, LANE)
            self._unreachable_nodes.pop(node, None)
            # Nothing is awaited between taking and sending batches, so that they are sent in the order of sequences.
            while self._can_send_more(node) and (batches := self._drain_batches(node)):
                self._send_produce_request(node, connection, batches)
                # Wait until the write buffer has room, because with acks=0 no responses slow the producer down.
                await connection.drain()
        except KafkaError as error:
            self._handle_unreachable(node, error)
        finally:
            del self._send_tasks[node]
            self._wakeup.set()

    def _handle_unreachable(self, node: int, error: KafkaError) -> None:
        _log.debug("leader unreachable", node=node, error=error)
        now_ms = self.now_ms()
        backoff, _ = self._unreachable_nodes.get(node, (self._cluster.backoff(), 0))
        self._unreachable_nodes[node] = (backoff, now_ms + backoff.next_delay_ms())
        if error.is_retriable:
            for partition in self._ready_partitions(node):
                self._accumulator.record_error(partition, error)
            return
        # Fail the batches now, because waiting for the delivery timeout would only hide the cause.
        while partitions := self._ready_partitions(node):
            for partition in partitions:
                self._handle_results(self._accumulator.fail_next(partition, error))

    def _ready_partitions(self, node: int) -> list[TopicPartition]:
        ready_partitions = self._accumulator.ready_partitions(self.now_ms())
        return [each for each in ready_partitions if self._cluster.known_leader_of(each) == node]

    def _drain_batches(self, node: int) -> list[ProducerBatch]:
        """Returns the batches for one request: one batch per ready partition, up to max_request_size."""
        batches: list[ProducerBatch] = []
        size = 0
        for partition in self._ready_partitions(node):
            size += self._accumulator.next_batch_bytes(partition)
            if batches and size > self._max_request_size:
                break
            info = self._cluster.partition_info(partition)
            try:
                batches.append(self._accumulator.drain_next(partition, -1 if info is None else info.leader_epoch))
            except Exception as error:
                _log.exception("batch cannot be encoded", partition=str(partition))
                self._handle_results(self._accumulator.fail_next(partition, _encoding_error(error)))
        return batches

    def _send_produce_request(self, node: int, connection: Connection, batches: list[ProducerBatch]) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            each = {"index": batch.partition.partition, "records": batch.data}
            topics.setdefault(batch.partition.topic, []).append(each)
        tree = {
            "transactional_id": None if self._transactions is None else self._transactions.transactional_id,
            "acks": self._acks,
            "timeout": self._cluster.request_timeout_ms,
            "topic_data": [{"name": name, "partition_data": each} for name, each in topics.items()],
        }
        # Wait longer than the timeout in the request, so that a timeout response of the broker can arrive.
        timeout_ms = self._cluster.request_timeout_ms + self._cluster.retry_backoff_max_ms
        version, version_max = (None, None) if self._transactions is None else self._transactions.produce_versions
        try:
            if self._acks == 0:
                connection.send_without_response(ApiKey.PRODUCE, tree)
                for batch in batches:
                    self._handle_results(self._accumulator.complete_batch(batch, -1))
                return
            response = connection.call(
                ApiKey.PRODUCE, tree, timeout_ms=timeout_ms, version=version, version_max=version_max
            )
        except KafkaError as error:
            self._handle_unsent(batches, error)
            raise
        except Exception as error:
            encoding_error = _encoding_error(error)
            self._handle_unsent(batches, encoding_error)
            raise encoding_error from error
        self._in_flight.setdefault(node, []).append(response)
        response.add_done_callback(lambda future: self._handle_response(node, connection, batches, future))

    def _handle_unsent(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            if error.is_retriable:
                self._accumulator.reenqueue(batch, error)
            else:
                self._fail_batch(batch, error)

    def _handle_response(
        self, node: int, connection: Connection, batches: list[ProducerBatch], future: "asyncio.Future[Message]"
    ) -> None:
        self._in_flight[node].remove(future)
        failure = future.exception()
        if failure is not None:
            assert isinstance(failure, KafkaError), failure
            self._cluster.note_failure(connection)
            for batch in batches:
                self._fail_batch(batch, failure)
        else:
            response = future.result()
            responses = {
                TopicPartition(topic.name, each.index): each
                for topic in response.responses
                for each in topic.partition_responses
            }
            endpoints = response.get("node_endpoints") or ()
            for batch in batches:
                self._complete_batch(batch, responses.get(batch.partition), endpoints)
        self._wakeup.set()

    def _complete_batch(self, batch: ProducerBatch, response: Message | None, endpoints: Sequence[Message]) -> None:
        if response is None:
            missing = f"the response lacks {batch.partition}"
            self._fail_batch(batch, KafkaError(ErrorCode.network_exception, missing))
        elif response.error_code == ErrorCode.none:
            self._handle_results(
                self._accumulator.complete_batch(batch, response.base_offset, response.log_append_time)
            )
        else:
            self._cluster.learn_leader(batch.partition, response.get("current_leader"), endpoints)
            self._fail_batch(batch, KafkaError(response.error_code, _error_message(response) or str(batch.partition)))

    def _fail_batch(self, batch: ProducerBatch, error: KafkaError) -> None:
        _log.debug("batch failed", partition=batch.partition, attempt=batch.attempts, error=error)
        now_ms = retry_at_ms = self.now_ms()
        if error.code == ErrorCode.concurrent_transactions:
            retry_at_ms += _CONCURRENT_TRANSACTIONS_BACKOFF_MS
            self._handle_results(self._accumulator.fail_batch(batch, error, now_ms, retry_at_ms))
            return
        if error.is_retriable:
            self._cluster.refresh_soon()
        if not self._cluster.has_newer_leader(batch.partition, batch.leader_epoch):
            retry_at_ms += self._backoff.delay_ms(batch.attempts)
        self._handle_results(self._accumulator.fail_batch(batch, error, now_ms, retry_at_ms))

    def _handle_metadata_update(self) -> None:
        """Ends the backoff of partitions that have a new leader since their last attempt."""
        self._accumulator.end_backoffs(self._cluster.has_newer_leader)
        self._wakeup.set()

    async def _init_producer_id(self) -> None:
        backoff = self._cluster.backoff()
        tree = {"transactional_id": None, "transaction_timeout": _TRANSACTION_TIMEOUT_MS}
        node_id = None
        while True:
            try:
                response = await self._cluster.call(node_id, ApiKey.INIT_PRODUCER_ID, tree)
                if response.error_code != ErrorCode.none:
                    raise KafkaError(response.error_code, "InitProducerId failed")
                self._accumulator.set_producer_id(response.producer_id, response.producer_epoch)
                break
            except KafkaError as error:
                if not error.is_retriable:
                    self.failure = error
                    break
                _log.debug("InitProducerId failed and is retried", error=error)
                await asyncio.sleep(backoff.next_delay_ms() / 1000)
                # Try another broker, because a broker that cannot reach the controller cannot allocate producer ids.
                brokers = sorted(self._cluster.brokers)
                node_id = self._cluster.random.choice(brokers) if brokers else None
        self._producer_id_task = None
        self._wakeup.set()


def _do_nothing() -> None:
    pass


def _encoding_error(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, f"the batch cannot be encoded: {error!r}")


def _error_message(response: Message) -> str:
    """Returns the broker's error message, followed by the messages of the first invalid records."""
    texts = [response.get("error_message") or ""]
    texts += [
        f"record {each.batch_index}: {each.batch_index_error_message}"
        for each in (response.get("record_errors") or ())[:_RECORD_ERRORS_SHOWN_MAX]
        if each.batch_index_error_message
    ]
    return "; ".join(text for text in texts if text)
