"""Checks of a producer against the state of its transactional id, and their errors. Pure."""

from moldau.errors import ConcurrentTransactionsError, InvalidProducerIdMappingError, MoldauError, ProducerFencedError
from moldau.transactions.transaction_metadata import NO_PRODUCER_ID, TV2, TransactionMetadata


def check_producer(metadata: TransactionMetadata, producer_id: int, producer_epoch: int) -> None:
    if metadata.producer_id != producer_id:
        raise wrong_producer_id(metadata, producer_id)
    if metadata.producer_epoch != producer_epoch:
        raise fenced_epoch(metadata, producer_epoch)


def require(metadata: TransactionMetadata | None, transactional_id: str) -> TransactionMetadata:
    if metadata is None:
        raise InvalidProducerIdMappingError(f"the transactional id {transactional_id!r} does not exist")
    return metadata


def wrong_producer_id(metadata: TransactionMetadata, producer_id: int) -> MoldauError:
    return InvalidProducerIdMappingError(
        f"the transactional id has the producer id {metadata.producer_id}, not {producer_id}"
    )


def fenced_epoch(metadata: TransactionMetadata, producer_epoch: int) -> MoldauError:
    return ProducerFencedError(
        f"epoch {producer_epoch} of producer {metadata.producer_id} is fenced by epoch {metadata.producer_epoch}"
    )


def still_completing(transactional_id: str) -> MoldauError:
    return ConcurrentTransactionsError(f"the previous transaction of {transactional_id!r} is not complete: try again")


def aborted_by_coordinator(
    metadata: TransactionMetadata, transaction_version: int, now_ms: int, new_producer_id: int | None
) -> TransactionMetadata | None:
    """Returns the ongoing transaction, aborted without its producer; None if a new producer id is needed."""
    if metadata.is_epoch_exhausted and transaction_version >= TV2 and new_producer_id is None:
        return None
    return metadata.fenced(
        transaction_version=transaction_version,
        next_producer_id=next_producer_id(metadata, new_producer_id),
        now_ms=now_ms,
    )


def next_producer_id(metadata: TransactionMetadata, new_producer_id: int | None) -> int:
    """Returns the new producer id if the end of the transaction exhausts the epochs of the current one."""
    return NO_PRODUCER_ID if new_producer_id is None or not metadata.is_epoch_exhausted else new_producer_id
