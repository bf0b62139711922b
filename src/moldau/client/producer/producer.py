"""The producer: `send` appends a record to a batch of the accumulator, and the sender sends the batch to the leader.

The producer is idempotent by default. An acknowledged record is in the log exactly once, and the records of a partition
are in the order of the `send` calls, even if connections or leaders fail.

    async with Producer("localhost:9092") as producer:
        sent = await producer.send("orders", key=b"42", value=b"...")
        print((await sent).offset)

With a `transactional_id`, records are sent in transactions (transaction.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from moldau.client.errors import ConnectionLostError, ErrorCode, IllegalStateError, KafkaError, RequestTimedOutError
from moldau.client.net.cluster import Cluster, resolve_cluster
from moldau.client.net.metadata import NO_LEADER
from moldau.client.producer.partitioner import StickyPartitioner, partition_of_key
from moldau.client.producer.producer_batch import ProduceResult, ProducerIdAndEpoch, estimate_record_size
from moldau.client.producer.record_accumulator import RecordAccumulator
from moldau.client.producer.sender import Sender
from moldau.client.producer.transaction import Transaction, TransactionCoordinator
from moldau.client.producer.transaction_manager import TransactionManager
from moldau.client.record import TopicPartition, is_valid_topic_name
from moldau.observe.logging import get_logger
from moldau.records.batch import HEADER_SIZE
from moldau.records.batch_builder import Section
from moldau.records.compression import CODECS_BY_NAME
from moldau.records.record import TIMESTAMP_MAX, Header, Record

ACKS_ALL = -1

_log = get_logger("client.producer")


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    """The offset of the record; -1 if the broker did not return it (acks=0, or a duplicate of an old batch)."""
    timestamp: int
    """The record's own timestamp, or the broker's if the topic uses LogAppendTime."""


class Producer:
    """Sends records to topics. Call `start` before use and `close` after, or use `async with`."""

    def __init__(
        self,
        cluster: str | Sequence[str] | Cluster,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        compression: str = "none",
        linger_ms: int = 5,
        batch_size: int = 64 * 1024,
        max_request_size: int = 1024 * 1024,
        buffer_memory: int = 32 * 1024 * 1024,
        max_in_flight: int = 5,
        max_block_ms: int = 60_000,
        delivery_timeout_ms: int = 120_000,
        **cluster_settings: Any,
    ) -> None:
        """`cluster` is a shared, started `Cluster`, or bootstrap servers, for which `cluster_settings` may be given.

        Sizes are in bytes before compression. Only one producer at a time can use a `transactional_id`: when another
        one starts, this one is fenced. The coordinator aborts a transaction after `transaction_timeout_ms`.
        """
        if acks not in (ACKS_ALL, 0, 1):
            raise ValueError(f"acks must be -1 (all), 0 or 1, not {acks}")
        if idempotent and (acks != ACKS_ALL or not 1 <= max_in_flight <= 5):
            raise ValueError("an idempotent producer needs acks=-1 and 1 to 5 requests in flight")
        if transactional_id is not None and (not transactional_id or not idempotent):
            raise ValueError("a transactional producer needs a transactional_id that is not empty, and idempotent=True")
        if transaction_timeout_ms < 1:
            raise ValueError(f"transaction_timeout_ms must be at least 1, not {transaction_timeout_ms}")
        if compression not in CODECS_BY_NAME:
            raise ValueError(f"unknown compression {compression!r}; use one of {', '.join(CODECS_BY_NAME)}")
        self._cluster, self._owns_cluster = resolve_cluster(cluster, cluster_settings)
        self._max_request_size = max_request_size
        self._max_block_ms = max_block_ms
        self._accumulator = RecordAccumulator(
            linger_ms=linger_ms,
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            in_flight_max=max_in_flight,
            idempotent=idempotent,
            compression=CODECS_BY_NAME[compression],
            transactional=transactional_id is not None,
        )
        transactions = None if transactional_id is None else TransactionManager(transactional_id)
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._handle_results,
            acks=acks,
            max_request_size=max_request_size,
            max_in_flight=max_in_flight,
            transactions=transactions,
        )
        self._transactions: TransactionCoordinator | None = None
        if transactions is not None:
            self._transactions = TransactionCoordinator(
                self._cluster,
                self._accumulator,
                transactions,
                flush=self.flush,
                wakeup=self._sender.wakeup,
                transaction_timeout_ms=transaction_timeout_ms,
                max_block_ms=max_block_ms,
            )
        self._sticky = StickyPartitioner(self._cluster.random.randrange)
        self._tracked_topics: dict[str, None] = {}
        """The topics sent to so far, which the cluster tracks."""
        self._memory_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        """The `send` calls that wait for buffer memory, in order: record size, and the future that wakes the call."""
        self._pending_flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._is_open = False
        self._is_closed = False

    async def start(self) -> None:
        """Connects. A transactional producer also fences others with its id and waits until their transaction ends."""
        await self._connect()
        if self._transactions is not None:
            await self._transactions.init_transactions()
        self._is_open = True
        self._sender.start()

    async def start_member_transaction(self, identity: ProducerIdAndEpoch) -> None:
        """Starts as a member of a transaction group, with a producer id and epoch that the coordinator has assigned.

        The producer is then in its only transaction, which others end (transaction_group.py).
        """
        assert self._transactions is not None, "a member has a transactional id"
        await self._connect()
        self._transactions.begin_member(identity)
        self._is_open = True
        self._sender.start()

    async def _connect(self) -> None:
        if self._is_open or self._is_closed:
            raise IllegalStateError("a producer can be started only once")
        if self._owns_cluster:
            await self._cluster.start()

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Delivers all records and closes. Without `timeout_ms`, waits until every record has a result.

        Aborts an open transaction.
        Records that have no result after the timeout, or when this call is cancelled, fail as in `abort`.
        """
        self._is_open = False
        self._wake_memory_waiter()
        try:
            if not self._is_closed:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    if self._transactions is not None:
                        await self._transactions.close()
                    await self.flush()
        except TimeoutError:
            _log.warning("the producer closes before all records are delivered", timeout_ms=timeout_ms)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Closes at once. Records without a result fail; they may or may not have been written.

        An open transaction is aborted by the coordinator, after its timeout or when the next producer with the same
        transactional id starts.
        """
        self._is_open = False
        self._is_closed = True
        try:
            if self._transactions is not None:
                await self._transactions.stop()
            await self._sender.stop()
        finally:
            if self._owns_cluster:
                await self._cluster.close()
                await self._sender.wait_for_responses()
            self._handle_results([])
            self._cluster.untrack(self._tracked_topics)
            self._tracked_topics.clear()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.abort()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    # Transactions

    def transaction(self) -> Transaction:
        """Returns the next transaction, for `async with`. Every record must be sent in one."""
        self._check_open()
        if self._transactions is None:
            raise IllegalStateError("a producer without a transactional_id has no transactions")
        return Transaction(self._transactions)

    async def resolve_commit(self) -> None:
        """Repeats the last commit if it was cancelled or timed out. After that the next transaction can begin.

        If the commit is refused, the transaction is aborted. A transaction that commits offsets of a group tells its
        outcome by them.
        """
        self._check_open()
        if self._transactions is not None:
            await self._transactions.resolve_commit()

    async def send_member_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commits offsets of a group in the transaction of `start_member_transaction`."""
        assert self._transactions is not None, "a member has a transactional id"
        await self._transactions.send_offsets(self._transactions.manager.check_in_transaction(), offsets, group_id)

    def check_member_transaction(self) -> None:
        """Raises TransactionAbortableError if the transaction of `start_member_transaction` cannot be committed."""
        assert self._transactions is not None, "a member has a transactional id"
        self._transactions.manager.check_in_transaction()

    # Sending

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] = (),
    ) -> "asyncio.Future[RecordMetadata]":
        """Buffers a record and returns a future of its metadata. The future raises KafkaError if delivery fails.

        Waits for topic metadata and buffer memory up to max_block_ms, then raises KafkaError. Without `partition`, the
        hash of the key selects the partition. Records without a key go to one partition per batch.
        """
        self._check_open()
        if self._transactions is not None:
            self._check_transaction()
        _validate_topic_name(topic)
        timestamp = self._cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        record = _validate_record(Record(timestamp=timestamp, key=key, value=value, headers=tuple(headers)))
        size = estimate_record_size(record)
        if size + HEADER_SIZE > self._max_request_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a record of about {size} bytes exceeds max_request_size ({self._max_request_size})",
            )
        if (
            topic not in self._tracked_topics
            or topic not in self._cluster.topics
            or self._memory_waiters
            or not self._accumulator.has_memory(size)
        ):
            await self._wait_for_metadata_and_memory(topic, size)
        target = TopicPartition(topic, self._choose_partition(topic, key, partition, size))
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        if self._accumulator.append(target, record, size, future, self._sender.now_ms()):
            self._sender.wakeup()
        if self._transactions is not None:
            self._transactions.handle_append(target)
        return future

    async def send_section(self, topic: str, partition: int, section: Section) -> "asyncio.Future[RecordMetadata]":
        """Buffers already encoded records as one batch, in order with all other records of the partition.

        The future returns the metadata of the first record. The whole batch succeeds or fails. This method waits and
        raises errors in the same way as `send`. A section that is too large for the broker fails, because the producer
        cannot split it. The bytes of the section are not copied, so they must not change until the future is done.
        """
        self._check_open()
        self._check_transaction()
        _validate_topic_name(topic)
        size = len(_validate_section(section).data)
        if size + HEADER_SIZE > self._max_request_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a section of {size} bytes exceeds max_request_size ({self._max_request_size}):"
                " build smaller ones (batch.size), or raise it (max.request.size)",
            )
        await self._wait_for_metadata_and_memory(topic, size)
        target = TopicPartition(topic, self._choose_partition(topic, None, partition, size))
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._accumulator.append_section(target, section, future, self._sender.now_ms())
        self._sender.wakeup()
        if self._transactions is not None:
            self._transactions.handle_append(target)
        return future

    async def flush(self) -> None:
        """Sends all batches without lingering. Returns when all records sent before are delivered or have failed."""
        number = self._accumulator.close_batches()
        if self._accumulator.is_complete(number):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending_flushes.append((number, done))
        self._sender.wakeup()
        await done

    @property
    def failure(self) -> KafkaError | None:
        """Why this producer cannot send records any more; None if it can."""
        return self._sender.failure

    async def partition_count(self, topic: str) -> int:
        self._check_open()
        await self._wait_on_metadata(topic)
        return len(self._cluster.topics[topic].partitions)

    def _check_open(self) -> None:
        if self._sender.failure is not None:
            raise KafkaError(self._sender.failure.code, self._sender.failure.message)
        if not self._is_open:
            raise IllegalStateError("the producer is not open: it was not started, or it is closed")

    def _check_transaction(self, number: int | None = None) -> int | None:
        """Returns the number of the open transaction, None without a transactional id. Raises an error if none is open,
        or another one than `number`."""
        return None if self._transactions is None else self._transactions.manager.check_in_transaction(number)

    async def _wait_for_metadata_and_memory(self, topic: str, size: int) -> None:
        transaction = self._check_transaction()
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                await self._wait_on_metadata(topic)
                await self._wait_for_memory(size)
        except TimeoutError:
            raise RequestTimedOutError(f"{topic!r} accepted no record for {self._max_block_ms} ms") from None
        # Check again, because the record would never be sent if the producer was closed in the meantime, or would be
        # sent in the next transaction.
        self._check_open()
        self._check_transaction(transaction)

    async def _wait_on_metadata(self, topic: str) -> None:
        """Waits until the topic exists, and adds it to the tracked topics of the cluster."""
        is_new = topic not in self._tracked_topics
        if is_new:
            self._tracked_topics[topic] = None
            self._cluster.track([topic])
        try:
            if topic not in self._cluster.topics:
                await self._cluster.wait_for_topics([topic], timeout_ms=self._max_block_ms, create=True)
        except BaseException:
            if is_new and topic in self._tracked_topics:
                del self._tracked_topics[topic]
                self._cluster.untrack([topic])
            raise

    async def _wait_for_memory(self, size: int) -> None:
        is_behind_others = bool(self._memory_waiters)
        while is_behind_others or not self._accumulator.has_memory(size):
            is_behind_others = False
            # Close the open batches, so that they are sent without delay and free their memory sooner.
            self._accumulator.close_batches()
            self._sender.wakeup()
            waiter = (size, asyncio.get_running_loop().create_future())
            self._memory_waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                if waiter in self._memory_waiters:
                    self._memory_waiters.remove(waiter)
                else:
                    # This waiter was woken (and perhaps then cancelled). Wake the next one if memory is left for it.
                    asyncio.get_running_loop().call_soon(self._wake_memory_waiter)
            self._check_open()

    def _wake_memory_waiter(self) -> None:
        if self._memory_waiters and (not self._is_open or self._accumulator.has_memory(self._memory_waiters[0][0])):
            _, waiter = self._memory_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _choose_partition(self, topic: str, key: bytes | None, partition: int | None, size: int) -> int:
        info = self._cluster.topics.get(topic)
        if info is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"the topic {topic!r} does not exist")
        known = info.partitions
        if partition is not None:
            if not 0 <= partition < len(known):
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition,
                    f"{topic!r} has {len(known)} partitions; there is no partition {partition}",
                )
            return partition
        if key is not None:
            return partition_of_key(key, len(known))
        available = [each.index for each in known if each.leader != NO_LEADER]
        current_partition = self._sticky.current_partition(topic, len(known), available)
        if self._accumulator.fits_open_batch(TopicPartition(topic, current_partition), size):
            return current_partition
        return self._sticky.next_partition(topic, len(known), available)

    # Results

    def _handle_results(self, results: Iterable[ProduceResult]) -> None:
        """Resolves the futures of these batches, and wakes callers that wait for memory or a flush."""
        for result in results:
            self._handle_result(result)
        if self._is_closed:
            closed = ConnectionLostError("the producer was closed before the record was delivered")
            for result in self._accumulator.abort_undrained(closed):
                self._handle_result(result)
        self._wake_memory_waiter()
        for flush in [each for each in self._pending_flushes if self._accumulator.is_complete(each[0])]:
            self._pending_flushes.remove(flush)
            if not flush[1].done():
                flush[1].set_result(None)

    def _handle_result(self, result: ProduceResult) -> None:
        """Resolves the futures of a batch. A transaction without one of its batches must not be committed."""
        if result.error is None or self._transactions is None:
            _resolve_futures(result)
        else:
            _resolve_futures(result, self._transactions.manager.handle_batch_error(result.error))


def _validate_topic_name(name: str) -> None:
    if not is_valid_topic_name(name):
        raise ValueError(f"{name!r} is not a valid topic name")


def _validate_section(section: Section) -> Section:
    if section.count < 1:
        raise ValueError("a section must have at least one record")
    if not 0 <= section.base_timestamp <= TIMESTAMP_MAX or not 0 <= section.max_timestamp <= TIMESTAMP_MAX:
        raise ValueError(
            "the timestamps of a section must be milliseconds since 1970, not"
            f" {section.base_timestamp} and {section.max_timestamp}"
        )
    if section.compression not in CODECS_BY_NAME.values():
        raise ValueError(f"{section.compression} is not a compression codec")
    return section


def _validate_record(record: Record) -> Record:
    """Raises TypeError or ValueError for an invalid record. A later encoding error would fail the whole batch."""
    for name, part in (("key", record.key), ("value", record.value)):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"a record's {name} must be bytes or None, not {type(part).__name__}")
    for header in record.headers:
        name, content = header
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise TypeError(f"a header must be a str with bytes or None, not {header!r}")
        try:
            # A consumed name that is not UTF-8 has surrogate escapes, and can be sent unchanged.
            name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError(f"the header name {name!r} cannot be encoded as UTF-8") from None
    if not isinstance(record.timestamp, int):
        raise TypeError(f"a timestamp must be an integer, not {record.timestamp!r}")
    if not 0 <= record.timestamp <= TIMESTAMP_MAX:
        raise ValueError(f"a timestamp must be milliseconds since 1970, not {record.timestamp}")
    return record


def _resolve_futures(result: ProduceResult, make_error: Callable[[], KafkaError] | None = None) -> None:
    topic, partition = result.batch.partition
    for future, offset, timestamp in result.batch.payload.record_results(result.base_offset, result.log_append_time_ms):
        if future.done():
            continue
        if result.error is not None:
            error = KafkaError(result.error.code, result.error.message) if make_error is None else make_error()
            future.set_exception(error)
            # Retrieve the exception, so that asyncio does not report it if the caller never awaits the future.
            future.exception()
        else:
            future.set_result(RecordMetadata(topic, partition, offset, timestamp))
