"""Consume, transform, produce: each input record has its effect in the output topics exactly once.

    async with (
        Producer(BOOTSTRAP, transactional_id="billing-1") as producer,
        Consumer(BOOTSTRAP, group_id="billing", isolation_level="read_committed", enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe(["orders"])
        while True:
            async with exactly_once(consumer, producer) as records:
                for record in records:
                    await producer.send("invoices", invoice(record.value), key=record.key)

The output and the offsets of the input are committed in one transaction. After a crash, the next process continues from
the committed offsets, and consumers with read_committed never see the output of the unfinished transaction.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import TransactionAbortableError
from moldau.client.producer.producer import Producer
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.observe.logging import get_logger

_log = get_logger("client.exactly_once")


@asynccontextmanager
async def exactly_once(
    consumer: Consumer, producer: Producer, *, timeout_ms: int = 1_000, max_records: int | None = None
) -> AsyncIterator[list[ConsumerRecord]]:
    """Polls, and runs the block in a transaction that also commits the offsets of the polled records.

    If the transaction cannot be committed, for example after a rebalance without this consumer, it is aborted, and the
    next call returns the same records again, or their new owner reads them. An error in the block, or one that
    repetition cannot fix, aborts too and is raised. After that the consumer is at the position from before the poll.
    After RequestTimedOutError, or a cancelled commit, the next call finds out whether the transaction was committed,
    and continues from there. The list is empty if no record arrived within `timeout_ms`.
    """
    if not consumer.is_transactional:
        raise ValueError(
            "the consumer needs a group_id, enable_auto_commit=False and isolation_level='read_committed': otherwise "
            "records are lost or read twice"
        )
    # A producer that cannot begin a transaction raises an error here, before the poll.
    transaction = producer.transaction()
    await producer.resolve_commit()
    records = await consumer.poll(timeout_ms, max_records)
    if not records:
        yield records
        return
    first_offsets: dict[TopicPartition, int] = {}
    for record in records:
        first_offsets.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    consumed = consumer.consumed_offsets()
    next_offsets = {each: consumed[each] for each in first_offsets}
    try:
        async with transaction:
            yield records
            await transaction.send_offsets(next_offsets, consumer)
    except BaseException as error:
        # If the outcome is unknown, only the group's committed offsets tell where to continue.
        seek = consumer.seek_to_committed if transaction.is_outcome_unknown else consumer.seek
        for partition in set(consumer.assignment).intersection(first_offsets):
            seek(partition, first_offsets[partition])
        if not (isinstance(error, TransactionAbortableError) and error.is_retriable):
            raise
        _log.warning("a transaction was aborted and its records are read again", error=error)
        await asyncio.sleep(consumer.cluster.retry_backoff_ms / 1000)
