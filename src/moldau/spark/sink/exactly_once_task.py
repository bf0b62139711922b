"""Writing of a task's rows so that the driver can make them visible (`exactly_once.py`)."""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.transaction_group import MemberProducer, TransactionGroup
from moldau.records.batch_builder import Section
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.exactly_once import StagedSection, Task, TopicCommitMessage, transaction_group, user_error
from moldau.spark.sink.options import TopicSinkOptions
from moldau.spark.sink.task_writer import SectionSender, TopicTargets, encode_rows, merge_rows, send_rows


def write_in_transaction(
    batches: Iterator[pa.RecordBatch], options: TopicSinkOptions, columns: SinkColumns, task: Task
) -> TopicCommitMessage:
    """Writes the rows so that `commit_batch` can make them visible."""
    tables = merge_rows(batches)
    first = next(tables, None)
    if first is None:
        return TopicCommitMessage(task.batch)
    tables = chain([first], tables)
    loop_thread = event_loop_thread()
    cluster = loop_thread.run(loop_thread.cluster(options.connection))
    if not loop_thread.run(TransactionGroup.is_supported(cluster)):
        encoded = encode_rows(tables, options, columns, TopicTargets(loop_thread, options))
        return TopicCommitMessage(task.batch, sections=tuple(_staged(*each) for each in encoded))
    member = loop_thread.run(_start_member(cluster, options, task))
    if member is None:
        for _ in tables:
            # Spark expects that a task reads all its rows.
            pass
        return TopicCommitMessage(task.batch)
    send_rows(tables, options, columns, SectionSender(loop_thread, options, member))
    return TopicCommitMessage(task.batch, member=loop_thread.run(member.finish()))


def _staged(topic: str, partition: int, section: Section) -> StagedSection:
    data = bytes(section.data)
    copy = Section(data, section.count, section.base_timestamp, section.max_timestamp, section.compression)
    return StagedSection(topic, partition, copy)


async def _start_member(cluster: Cluster, options: TopicSinkOptions, task: Task) -> MemberProducer | None:
    group = transaction_group(cluster, options, task.batch)
    try:
        return await group.start_member(task.batch.number, task.name, **options.producer)
    except KafkaError as error:
        raise user_error(error, options, task.batch) from error
