"""Search for the transactions that are open in partitions, and for those of them that will never end.

The leader of a partition knows which producer ids have an open transaction there. The coordinator knows transactional
ids and the partitions of their transactions. A transaction is hanging if it is open in a partition and its coordinator
will not write a marker there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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

    @property
    def status(self) -> OpenTransactionStatus:
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
    known = await _known_transactions(admin, {producer.producer_id for _, _, producer in opened})
    return [_Found(*each, known.get(each[2].producer_id)) for each in opened], errors


async def _known_transactions(admin: "Admin", producer_ids: set[int]) -> dict[int, TransactionDescription]:
    """Returns what the coordinators know of these producers, by producer id."""
    if not producer_ids:
        return {}
    listed = await admin.list_transactions(producer_ids=producer_ids)
    described = await admin.describe_transactions([each.transactional_id for each in listed])
    known = {}
    for result in described.values():
        if not isinstance(result, KafkaError):
            known[result.producer_id] = result
        elif result.code is not ErrorCode.transactional_id_not_found:
            raise result
        # Otherwise the transactional id has expired since it was listed.
    return known
