"""Transactions of a producer: the user's handle, and the requests to the transaction and group coordinators.

async with Producer("localhost:9092", transactional_id="billing-1") as producer:
    async with producer.transaction() as transaction:
        await producer.send("invoices", b"...")
        await transaction.send_offsets({TopicPartition("orders", 0): 42}, consumer)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from moldau.client.consumer.subscription_state import OffsetAndMetadata, validate_offsets
from moldau.client.errors import ErrorCode, IllegalStateError, KafkaError, TransactionAbortableError, raise_for_code
from moldau.client.group.member_state import ConsumerGroupMetadata
from moldau.client.group.offsets import nest_offsets, parse_partition_errors
from moldau.client.net.cluster import TRANSACTION, Cluster
from moldau.client.producer.producer_batch import ProducerIdAndEpoch
from moldau.client.producer.record_accumulator import RecordAccumulator
from moldau.client.producer.transaction_manager import TV2, TransactionManager, TransactionRequest, TransactionState
from moldau.client.record import TopicPartition, group_by_topic
from moldau.concurrency.tasks import cancel_and_wait
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

COORDINATOR_BACKOFF_MS = 20
"""The first backoff of requests to coordinators, because an earlier transaction is often completed within it."""
_END_TXN_VERSION_TV2, _TXN_OFFSET_COMMIT_VERSION_TV2 = 5, 5

_log = get_logger("client.transaction")


class GroupMember(Protocol):
    """A consumer."""

    def commit_metadata(self, partitions: Mapping[TopicPartition, Any]) -> ConsumerGroupMetadata: ...


class Transaction:
    """One transaction of a producer. Use `async with`, or `begin` and then `commit` or `abort`.

    The block commits at its end and aborts if it raises. Records that were sent in it become visible together to
    consumers with read_committed.
    """

    def __init__(self, coordinator: "TransactionCoordinator") -> None:
        self._coordinator = coordinator
        self._manager = coordinator.manager
        self._number: int | None = None
        self._has_ended = False
        """Whether `commit` or `abort` has succeeded."""

    async def begin(self) -> None:
        if self._number is not None:
            raise IllegalStateError("a transaction can begin only once: call `producer.transaction()` for each one")
        self._number = await self._coordinator.begin()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMember
    ) -> None:
        """Commits offsets of a consumer group if and when the transaction commits.

        `group` is the consumer that read the records, or a group id. With a consumer, a commit for partitions that the
        group has given to others fails, and so does the transaction. Each offset is that of the next record to read.
        """
        await self._coordinator.send_offsets(self._begun_number(), offsets, group)

    async def commit(self) -> None:
        """Waits until all records are delivered, then commits.

        Raises TransactionAbortableError if the transaction must be aborted. After RequestTimedOutError the outcome is
        unknown; call this method again.
        """
        await self._coordinator.commit(self._begun_number())
        self._has_ended = True

    async def abort(self) -> None:
        """Aborts. Records that were not sent yet fail, and consumers with read_committed never see the others."""
        await self._coordinator.abort(self._begun_number())
        self._has_ended = True

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether a commit was sent and neither succeeded nor was refused."""
        return self._number is not None and self._manager.is_outcome_unknown(self._number)

    def _begun_number(self) -> int:
        if self._number is None:
            raise IllegalStateError("the transaction has not begun: use `async with`, or `begin`")
        return self._number

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if not self._has_ended:
                await self._commit_or_abort()
            return
        if isinstance(error, GeneratorExit) or not self._manager.is_open(self._number):
            # A coroutine that is closed with its event loop cannot wait for an abort.
            return
        try:
            await self.abort()
        except KafkaError as failure:
            if isinstance(error, TransactionAbortableError) and self._manager.state is TransactionState.FATAL_ERROR:
                # Only the abort reveals that the transaction failed because the producer is fenced.
                raise failure from error
            _log.warning("a transaction was not aborted", id=self._manager.transactional_id, error=failure)

    async def _commit_or_abort(self) -> None:
        try:
            await self.commit()
        except GeneratorExit:
            raise
        except BaseException:
            if self._manager.is_open(self._number):
                await self.abort()
            raise


class TransactionCoordinator:
    """The coordinators as the producer sees them: sends their requests and applies the responses."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: RecordAccumulator,
        manager: TransactionManager,
        *,
        flush: Callable[[], Awaitable[None]],
        wakeup: Callable[[], None],
        transaction_timeout_ms: int,
        max_block_ms: int,
    ) -> None:
        """`flush` waits until all batches have a result, and `wakeup` makes the sender check for batches."""
        self.manager = manager
        self._cluster = cluster
        self._accumulator = accumulator
        self._flush = flush
        self._wakeup = wakeup
        self._transaction_timeout_ms = transaction_timeout_ms
        self._max_block_ms = max_block_ms
        self._lock = asyncio.Lock()
        """Held while a transaction begins, commits offsets or ends."""
        self._add_task: asyncio.Task[None] | None = None

    async def init_transactions(self) -> None:
        """Gets a producer id, which fences other producers with this transactional id and ends their transactions."""
        async with self._lock:
            await self._init_producer_id()

    async def close(self) -> None:
        """Aborts an open transaction."""
        async with self._lock:
            if not self.manager.is_open(self.manager.number):
                return
            self.manager.begin_abort(self.manager.number)
            try:
                await self._abort()
            except KafkaError as error:
                _log.warning("an open transaction was not aborted", id=self.manager.transactional_id, error=error)

    async def stop(self) -> None:
        await cancel_and_wait(self._add_task)

    # Beginning

    def begin_member(self, producer: ProducerIdAndEpoch) -> None:
        """Begins the transaction of a transaction group's member, which has got this producer id and epoch."""
        self._start_epoch(producer)
        self.manager.begin()

    async def begin(self) -> int:
        async with self._lock:
            self.manager.check_can_begin()
            if self.manager.state is TransactionState.ABORTING:
                # An earlier abort was cancelled or timed out.
                await self._abort()
            if self.manager.state is TransactionState.UNINITIALIZED or self.manager.is_v2 != self._uses_v2():
                await self._init_producer_id()
            return self.manager.begin()

    def _uses_v2(self) -> bool:
        return self._cluster.feature_level("transaction.version") >= TV2

    async def _init_producer_id(self) -> None:
        """Gets a producer id, or the next epoch of the current one."""
        tree = {
            "transactional_id": self.manager.transactional_id,
            "transaction_timeout": self._transaction_timeout_ms,
            "producer_id": self.manager.producer.producer_id,
            "producer_epoch": self.manager.producer.epoch,
        }
        try:
            response = await self._call(ApiKey.INIT_PRODUCER_ID, tree, self._parse_init)
        except KafkaError as error:
            self.manager.handle_error(TransactionRequest.INIT, error)
            self.manager.raise_error()
            raise
        self._start_epoch(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))

    def _start_epoch(self, producer: ProducerIdAndEpoch) -> None:
        is_v2 = self._uses_v2()
        self._accumulator.start_epoch(producer if is_v2 else None)
        self.manager.handle_producer_id(producer, is_v2=is_v2)
        _log.debug("producer id", id=self.manager.transactional_id, producer=producer, is_v2=is_v2)

    def _parse_init(self, response: Message) -> Message:
        message = f"InitProducerId of the transactional id {self.manager.transactional_id!r}"
        if response.error_code == ErrorCode.invalid_transaction_timeout:
            message += f": the brokers (transaction.max.timeout.ms) do not allow {self._transaction_timeout_ms} ms"
        raise_for_code(response.error_code, message)
        return response

    # Partitions and offsets

    def handle_append(self, partition: TopicPartition) -> None:
        """Adds the partition of a buffered record to the transaction."""
        if self.manager.add_partition(partition) and self._add_task is None:
            self._add_task = asyncio.get_running_loop().create_task(
                self._add_partitions(), name=f"{self._cluster.client_id} adds partitions to a transaction"
            )

    async def _add_partitions(self) -> None:
        """Adds new partitions (TV1), until there are none left."""
        try:
            while partitions := self.manager.take_new_partitions():
                self.manager.start()
                topics = group_by_topic(sorted(partitions))
                tree = {
                    "v3_and_below_transactional_id": self.manager.transactional_id,
                    "v3_and_below_producer_id": self.manager.producer.producer_id,
                    "v3_and_below_producer_epoch": self.manager.producer.epoch,
                    "v3_and_below_topics": [{"name": name, "partitions": each} for name, each in topics.items()],
                }
                await self._call(ApiKey.ADD_PARTITIONS_TO_TXN, tree, _parse_add_partitions)
                self._accumulator.resume_partitions(partitions, self.manager.producer)
                self._wakeup()
        except KafkaError as error:
            self.manager.handle_error(TransactionRequest.ADD, error)
            self._wakeup()
        finally:
            self._add_task = None

    async def send_offsets(
        self, number: int, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMember
    ) -> None:
        commits = validate_offsets(offsets)
        async with self._lock:
            self.manager.check_in_transaction(number)
            try:
                metadata = ConsumerGroupMetadata(group) if isinstance(group, str) else group.commit_metadata(commits)
                if commits:
                    self.manager.start()
                    await self._commit_offsets(commits, metadata)
            except KafkaError as error:
                self.manager.handle_error(TransactionRequest.ADD, error)
                self._wakeup()
                self.manager.raise_error()
                raise

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], metadata: ConsumerGroupMetadata
    ) -> None:
        if not self.manager.is_v2:
            tree = {**self._producer_tree(), "group_id": metadata.group_id}
            await self._call(ApiKey.ADD_OFFSETS_TO_TXN, tree, _parse_code("adding the group to the transaction"))
        tree = {
            **self._producer_tree(),
            "group_id": metadata.group_id,
            "generation_id": metadata.generation_id,
            "member_id": metadata.member_id,
            "group_instance_id": metadata.group_instance_id,
            "topics": nest_offsets(offsets),
        }
        version = _TXN_OFFSET_COMMIT_VERSION_TV2
        errors = await self._cluster.call_coordinator(
            metadata.group_id,
            ApiKey.TXN_OFFSET_COMMIT,
            tree,
            parse_partition_errors,
            self._max_block_ms,
            backoff_ms=COORDINATOR_BACKOFF_MS,
            version=version if self.manager.is_v2 else None,
            version_max=None if self.manager.is_v2 else version - 1,
        )
        for error in errors.values():
            if error is not None:
                raise error

    # Ending

    async def commit(self, number: int) -> None:
        async with self._lock:
            self.manager.begin_commit(number)
            await self._flush()
            self.manager.raise_error()
            await self._end(TransactionRequest.COMMIT)

    async def resolve_commit(self) -> None:
        """Repeats the last commit if its outcome is unknown. Aborts the transaction if the commit is refused."""
        async with self._lock:
            number = self.manager.number
            if not self.manager.must_repeat_commit:
                return
            try:
                await self._end(TransactionRequest.COMMIT)
            except TransactionAbortableError:
                self.manager.begin_abort(number)
                await self._abort()

    async def abort(self, number: int) -> None:
        async with self._lock:
            self.manager.begin_abort(number)
            await self._abort()

    async def _abort(self) -> None:
        # The sender drops waiting batches. A batch in flight must not reach the broker after the end.
        self._wakeup()
        await self._flush()
        if self._add_task is not None:
            await asyncio.wait([self._add_task])
        await self._end(TransactionRequest.ABORT)

    async def _end(self, request: TransactionRequest) -> None:
        producer = self.manager.producer
        if self.manager.must_send_end:
            self.manager.handle_end_sent()
            try:
                producer = await self._send_end(request is TransactionRequest.COMMIT)
            except KafkaError as error:
                if not (request is TransactionRequest.ABORT and self.manager.is_nothing_to_abort(error)):
                    self.manager.handle_error(request, error)
                    self.manager.raise_error()
                    raise self.manager.end_timeout_error(error) from error
        is_new_epoch = producer != self.manager.producer
        self.manager.handle_ended(producer, has_sequence_gap=self._accumulator.has_sequence_gap)
        if is_new_epoch:
            self._accumulator.start_epoch(producer)
        elif not self.manager.is_v2:
            self._accumulator.suspend_partitions()

    async def _send_end(self, committed: bool) -> ProducerIdAndEpoch:
        """Sends EndTxn. Returns the producer id and epoch of the next transaction."""
        is_v2 = self.manager.is_v2
        response = await self._call(
            ApiKey.END_TXN,
            {**self._producer_tree(), "committed": committed},
            _parse_code("the commit of the transaction" if committed else "the abort of the transaction"),
            version=_END_TXN_VERSION_TV2 if is_v2 else None,
            version_max=None if is_v2 else _END_TXN_VERSION_TV2 - 1,
        )
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch) if is_v2 else self.manager.producer

    def _producer_tree(self) -> dict[str, Any]:
        return {
            "transactional_id": self.manager.transactional_id,
            "producer_id": self.manager.producer.producer_id,
            "producer_epoch": self.manager.producer.epoch,
        }

    async def _call(
        self, api: ApiKey, tree: Mapping[str, Any], parse: Callable[[Message], Message], **versions: int | None
    ) -> Message:
        return await self._cluster.call_coordinator(
            self.manager.transactional_id,
            api,
            tree,
            parse,
            self._max_block_ms,
            kind=TRANSACTION,
            backoff_ms=COORDINATOR_BACKOFF_MS,
            **versions,
        )


def _parse_code(request: str) -> Callable[[Message], Message]:
    def parse(response: Message) -> Message:
        raise_for_code(response.error_code, request)
        return response

    return parse


def _parse_add_partitions(response: Message) -> Message:
    """Raises the error of a partition. Other partitions then have OPERATION_NOT_ATTEMPTED, which says nothing."""
    errors = [
        KafkaError(each.partition_error_code, f"adding {topic.name}-{each.partition_index} to the transaction")
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code != ErrorCode.none
    ]
    if errors:
        raise min(errors, key=lambda error: (error.code == ErrorCode.operation_not_attempted, error.is_retriable))
    return response
