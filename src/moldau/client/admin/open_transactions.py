"""Search for the transactions that are open in partitions, and for those of them that will never end.

The leader of a partition knows which producer ids have an open transaction there. The coordinator knows transactional
ids and the partitions of their transactions. A transaction is hanging if it is open in a partition and its coordinator
will not write a marker there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from moldau.client.admin.requester import Results
from moldau.client.admin.types import (
    OpenTransaction,
    OpenTransactions,
    OpenTransactionStatus,
    ProducerState,
    TransactionDescription,
)
from moldau.client.consumer.offset_lookup import LATEST
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin

PARTITIONS_PER_REQUEST = 1_000


class _Found(NamedTuple):
    partition: TopicPartition
    start_offset: int
    producer: ProducerState
    transaction: TransactionDescription | None
    error: KafkaError | None
    """Why the coordinator could not be asked."""

    @property
    def status(self) -> OpenTransactionStatus:
        if self.error is not None:
            return OpenTransactionStatus.UNKNOWN
        # The coordinator returns a partition until the marker is written there.
        if self.transaction is None or self.partition not in self.transaction.partitions:
            return OpenTransactionStatus.HANGING
        if self.transaction.state == "Ongoing":
            return OpenTransactionStatus.ONGOING
        return OpenTransactionStatus.ENDING

    @property
    def is_hanging(self) -> bool:
        return self.status is OpenTransactionStatus.HANGING

    @property
    def key(self) -> tuple[TopicPartition, int, int]:
        return self.partition, self.producer.producer_id, self.start_offset


async def find_open_transactions(admin: "Admin", partitions: Sequence[TopicPartition]) -> OpenTransactions:
    found, errors = await _search(admin, partitions)
    suspects = {each.key for each in found if each.is_hanging}
    if suspects:
        # A transaction may have ended between the responses of leader and coordinator. What is hanging is still open,
        # and still unknown to its coordinator, in a second search.
        searched = dict.fromkeys(each.partition for each in found if each.is_hanging)
        again, more_errors = await _search(admin, list(searched))
        found = [each for each in found if each.partition not in searched]
        found += [each for each in again if not each.is_hanging or each.key in suspects]
        errors |= more_errors
    errors |= {each.partition: each.error for each in found if each.error is not None}
    held = dict.fromkeys((each.partition for each in found), LATEST)
    ends = await admin.list_offsets(held) if held else {}
    transactions = [
        OpenTransaction(
            each.partition,
            each.producer,
            each.start_offset,
            each.status,
            each.transaction,
            max(0, ends[each.partition].offset - each.start_offset) if each.partition in ends else 0,
        )
        for each in sorted(found, key=lambda each: (each.partition, each.start_offset))
    ]
    return OpenTransactions(transactions, errors)


async def _search(
    admin: "Admin", partitions: Sequence[TopicPartition]
) -> tuple[list[_Found], dict[TopicPartition, KafkaError]]:
    opened: list[tuple[TopicPartition, int, ProducerState]] = []
    errors: dict[TopicPartition, KafkaError] = {}
    for start in range(0, len(partitions), PARTITIONS_PER_REQUEST):
        described = await admin.describe_producers(partitions[start : start + PARTITIONS_PER_REQUEST])
        for partition, result in described.items():
            if isinstance(result, KafkaError):
                errors[partition] = result
                continue
            for producer in result:
                if producer.transaction_start_offset is not None:
                    opened.append((partition, producer.transaction_start_offset, producer))
    known = await _known_transactions(admin, [producer for _, _, producer in opened])
    found = []
    for partition, start_offset, producer in opened:
        transaction = known.get(producer.producer_id)
        if isinstance(transaction, KafkaError):
            found.append(_Found(partition, start_offset, producer, None, transaction))
        else:
            found.append(_Found(partition, start_offset, producer, transaction, None))
    return found, errors


async def _known_transactions(
    admin: "Admin", producers: Sequence[ProducerState]
) -> Results[int, TransactionDescription]:
    """Returns by producer id what the coordinators know of these producers, or why a coordinator did not respond."""
    # Leaders of Moldau know transactional ids. The ids of other producers are listed by all coordinators.
    producer_ids = {each.transactional_id: each.producer_id for each in producers if each.transactional_id}
    unnamed = {each.producer_id for each in producers if not each.transactional_id}
    if unnamed:
        listed = await admin.list_transactions(producer_ids=sorted(unnamed))
        producer_ids |= {each.transactional_id: each.producer_id for each in listed}
    known: Results[int, TransactionDescription] = {}
    for transactional_id, result in (await admin.describe_transactions(producer_ids)).items():
        if not isinstance(result, KafkaError):
            known[result.producer_id] = result
        elif result.code is not ErrorCode.transactional_id_not_found:
            known[producer_ids[transactional_id]] = result
    return known
