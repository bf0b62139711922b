"""Delivery of rows to topics exactly once: tasks write, and the driver makes the rows of a batch visible together.

Brokers of Moldau have transaction groups. Every attempt of a task writes in its own transaction, and the driver commits
those that Spark has chosen. The brokers know the last committed batch of the query, so a replayed batch is not written.

On other brokers a transaction has one producer. There, tasks send their encoded rows to the driver in their commit
messages. The driver writes them in one transaction, together with the number of the batch as the committed offset of a
consumer group. It starts its producer before it reads this offset: the start ends the transaction of an earlier driver,
so its outcome is known then.

`exactly_once_task.py` has the part of the tasks. Spark commits each batch in a new process, so this module imports
little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer
from moldau.client.producer.transaction_group import GroupMember, TransactionGroup
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger
from moldau.records.batch_builder import Section
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.sink.options import TopicSinkOptions
from moldau.spark.sink.source_offsets import offsets_in_cluster, planned_positions

GROUP_PREFIX = "moldau-spark-sink-"
"""The prefix of transactional ids and consumer groups on brokers without transaction groups."""

OFFSETS_MEMBER = "offsets"
"""The member of a transaction group that commits the offsets of the source. It has names in turn like a task, so that a
batch does not wait for the markers of the previous one."""
ABORT_WAIT_MS = 5000
"""How long to wait for the end of this member after an error. Otherwise the coordinator ends it later."""
SLOTS = 8
"""How many names a task has in turn. Spark counts attempts again when it repeats a stage, and does not tell Python that
it does. Names must stay few, because brokers remember each for a week."""

SourceOffsets = Mapping[str, Mapping[TopicPartition, int]]
"""The offsets to commit, by consumer group."""

_log = get_logger("spark.sink")


@dataclass(frozen=True)
class Batch:
    """A batch of a writer: a micro-batch of a streaming query, or a batch write."""

    writer_id: str
    """Stays the same when the query restarts."""
    number: int
    run_id: str
    """The run of the query, which changes when it restarts, or the batch write."""
    is_last: bool
    """Whether no batch will follow."""


@dataclass(frozen=True)
class Task:
    """An attempt of a task."""

    batch: Batch
    name: str
    """Differs from the names of other attempts in the batch. If it did not, the later attempt would abort the rows of
    the earlier one, and the batch would fail if Spark chose the earlier one."""


@dataclass(frozen=True)
class StagedSection:
    topic: str
    partition: int
    section: Section


@dataclass(frozen=True)
class TopicCommitMessage(WriterCommitMessage):
    """What a task has written. Both are empty if it had no rows, or if its batch is committed already."""

    batch: Batch
    member: GroupMember | None = None
    """The transaction with the rows."""
    sections: tuple[StagedSection, ...] = ()
    """The rows for the driver to write."""


def task_of(context: TaskContext, options: TopicSinkOptions, write_id: str) -> Task:
    """Returns the identity of a task. `write_id` identifies a batch write outside of a streaming query."""
    writer_id = options.app_id or _query_writer_id(context, options)
    if options.is_stream:
        batch_number = context.getLocalProperty("streaming.sql.batchId")
        assert writer_id is not None, "Spark passes the id of the query"
        assert batch_number is not None, "Spark passes the number of the micro-batch"
        # Spark starts all jobs of a query in a job group that has the id of the run.
        run_id = context.getLocalProperty("spark.jobGroup.id") or write_id
        batch = Batch(writer_id, int(batch_number), run_id, is_last=False)
    elif options.batch_id is not None:
        if writer_id is None:
            raise SparkSourceError("batchId needs appId outside of foreachBatch: set both, or neither")
        # In foreachBatch the job group may be the user's own. It may also repeat a write that has failed, which is
        # another run then.
        batch = Batch(writer_id, options.batch_id, write_id, is_last=False)
    else:
        batch = Batch(write_id, 0, write_id, is_last=True)
    slot = context.taskAttemptId() % SLOTS
    return Task(batch, f"{context.partitionId()}/{context.attemptNumber()}.{slot}")


def _query_writer_id(context: TaskContext, options: TopicSinkOptions) -> str | None:
    """Returns the id of the streaming query and the topic; None outside of a query.

    With the query's id alone, the second of two writes in foreachBatch would find its batch committed and write
    nothing. The same would happen to a query that writes to another topic with a copy of a checkpoint.
    """
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return query_id if not query_id or options.topic is None else f"{query_id}.{options.topic}"


def commit_batch(messages: Sequence[WriterCommitMessage | None], options: TopicSinkOptions) -> None:
    """Makes the rows of all tasks visible, unless the batch is committed already."""
    found = _topic_messages(messages)
    if found:
        event_loop_thread().run(_commit(found, options))


async def _commit(messages: Sequence[TopicCommitMessage], options: TopicSinkOptions) -> None:
    batch = messages[0].batch
    cluster = await event_loop_thread().cluster(options.connection)
    sections = [section for message in messages for section in message.sections]
    members = [each.member for each in messages if each.member is not None]
    try:
        has_groups = await TransactionGroup.is_supported(cluster)
        if sections if has_groups else members:
            raise SparkSourceError(
                f"only some brokers at {options.bootstrap} have transaction groups: upgrade all, and start the query "
                "again"
            )
        offsets = await offsets_in_cluster(cluster, planned_positions(options.checkpoint_location, batch.number))
        if has_groups:
            await _commit_members(transaction_group(cluster, options, batch), members, batch, offsets)
        elif sections:
            await _write_staged(cluster, sections, options, batch, offsets)
    except KafkaError as error:
        raise user_error(error, options, batch) from error


async def _commit_members(
    group: TransactionGroup, members: Sequence[GroupMember], batch: Batch, offsets: SourceOffsets
) -> None:
    member = await _send_offsets(group, batch, offsets) if offsets else None
    listed = members if member is None else [*members, member]
    await group.commit(batch.number, listed, is_last=batch.is_last)


async def _send_offsets(group: TransactionGroup, batch: Batch, offsets: SourceOffsets) -> GroupMember | None:
    """Commits the source's offsets in a transaction of their own. Returns None if that fails, or if the batch is
    committed: a stream resumes from its checkpoint, so offsets in a group are not worth a failed batch."""
    member = await group.start_member(batch.number, f"{OFFSETS_MEMBER}/{batch.number % SLOTS}")
    if member is None:
        return None
    try:
        for group_id, each in offsets.items():
            await member.send_offsets(each, group_id)
        return await member.finish()
    except KafkaError as error:
        _warn_about_offsets(error)
        await member.abort(timeout_ms=ABORT_WAIT_MS)
        return None


def _warn_about_offsets(error: KafkaError) -> None:
    _log.warning("the offsets of a micro-batch are not committed together with its rows", error=error)


async def _write_staged(
    cluster: Cluster, sections: Sequence[StagedSection], options: TopicSinkOptions, batch: Batch, offsets: SourceOffsets
) -> None:
    name = f"{GROUP_PREFIX}{batch.writer_id}"
    settings = {**options.producer, "transaction_timeout_ms": options.transaction_timeout_ms}
    async with Producer(cluster, transactional_id=name, **settings) as producer:
        committed = await GroupOffsets(cluster, name).committed(None, require_stable=True)
        last = max((each.offset for each in committed.values()), default=-1)
        if batch.number < last:
            raise _older_checkpoint_error(options, batch, f"the last committed batch is {last}")
        if batch.number == last:
            return
        try:
            await _write_transaction(producer, sections, name, batch, offsets)
        except _SourceOffsetsError as error:
            _warn_about_offsets(error.cause)
            await _write_transaction(producer, sections, name, batch, {})


class _SourceOffsetsError(Exception):
    """The offsets of the source could not be committed, so that the transaction was aborted."""

    def __init__(self, cause: KafkaError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _write_transaction(
    producer: Producer, sections: Sequence[StagedSection], name: str, batch: Batch, offsets: SourceOffsets
) -> None:
    async with producer.transaction() as transaction:
        # Begin with the offsets, so that nothing is written if they fail.
        for group_id, each in offsets.items():
            try:
                await transaction.send_offsets(each, group_id)
            except KafkaError as error:
                raise _SourceOffsetsError(error) from error
        for each_section in sections:
            await producer.send_section(each_section.topic, each_section.partition, each_section.section)
        marked = TopicPartition(min(each.topic for each in sections), 0)
        await transaction.send_offsets({marked: OffsetAndMetadata(batch.number, metadata="the last batch")}, name)


def abort_batch(messages: Sequence[WriterCommitMessage | None], options: TopicSinkOptions) -> None:
    """Aborts the transactions of all tasks, unless the batch is committed. Without it, they end after their timeout."""
    found = _topic_messages(messages)
    if found:
        event_loop_thread().run(_abort(found[0].batch, options))


async def _abort(batch: Batch, options: TopicSinkOptions) -> None:
    try:
        cluster = await event_loop_thread().cluster(options.connection)
        if await TransactionGroup.is_supported(cluster):
            await transaction_group(cluster, options, batch).abort(batch.number)
    except KafkaError as error:
        # Spark reports the error that made the batch fail. This one must not replace it.
        _log.warning("the transactions of a failed batch end after their timeout", batch=batch.number, error=error)


def transaction_group(cluster: Cluster, options: TopicSinkOptions, batch: Batch) -> TransactionGroup:
    return TransactionGroup(
        cluster, batch.writer_id, batch.run_id, transaction_timeout_ms=options.transaction_timeout_ms
    )


def _topic_messages(messages: Sequence[WriterCommitMessage | None]) -> list[TopicCommitMessage]:
    """Returns the messages of successful tasks. Spark passes None for a failed task."""
    return [each for each in messages if isinstance(each, TopicCommitMessage)]


def user_error(error: KafkaError, options: TopicSinkOptions, batch: Batch) -> SparkSourceError:
    match error.code:
        case ErrorCode.invalid_txn_state if "older than" in error.message:
            return _older_checkpoint_error(options, batch, error.message)
        case ErrorCode.invalid_txn_state | ErrorCode.producer_fenced | ErrorCode.invalid_producer_epoch:
            text = (
                f"batch {batch.number} of {batch.writer_id} was not written to {options.bootstrap} ({error}): it took "
                f"longer than kafka.transaction.timeout.ms ({options.transaction_timeout_ms}), or another run of the "
                "query has started. Raise the timeout or make batches smaller, and start the query again"
            )
        case ErrorCode.invalid_request if "too large" in error.message:
            text = (
                f"batch {batch.number} of {batch.writer_id} was not written to {options.bootstrap} ({error}): too many "
                "tasks write to too many partitions. Write with fewer tasks, such as .coalesce(200)"
            )
        case ErrorCode.invalid_transaction_timeout:
            text = (
                f"the brokers at {options.bootstrap} do not allow kafka.transaction.timeout.ms="
                f"{options.transaction_timeout_ms}: lower it, or raise transaction.max.timeout.ms of the brokers"
            )
        case ErrorCode.transactional_id_authorization_failed | ErrorCode.group_authorization_failed:
            text = (
                f"{error}: the user needs permission for transactional ids and consumer groups with the prefix "
                f"{GROUP_PREFIX}, or set delivery=at-least-once"
            )
        case _:
            text = f"batch {batch.number} of {batch.writer_id} was not written to {options.bootstrap}: {error}"
    return SparkSourceError(text)


def _older_checkpoint_error(options: TopicSinkOptions, batch: Batch, detail: str) -> SparkSourceError:
    return SparkSourceError(
        f"batch {batch.number} of {batch.writer_id} cannot be written to {options.bootstrap} ({detail}): the "
        "checkpoint is an older copy. Use the latest checkpoint, or a new one, which may write rows again"
    )
