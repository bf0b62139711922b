"""Verification of the transactional batches in a Produce request, before they are appended."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from moldau.errors import ConcurrentTransactionsError, InvalidProducerIdMappingError, MoldauError
from moldau.logs.producer_state import TransactionOwner, VerificationGuard
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock
from moldau.records.batch import Batch
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from moldau.transactions.transaction_metadata import TV2, TopicPartition
from moldau.transactions.verification import client_version_of_produce, produce_error

RETRY_BACKOFF_MS = 20
RETRY_TIMEOUT_MS = 100
"""How long CONCURRENT_TRANSACTIONS is retried here, because the markers of the previous transaction are usually written
sooner than the producer would retry."""


class Verifier(Protocol):
    """A TransactionVerifier."""

    async def verify(self, request: AddPartitionsRequest) -> PartitionErrors: ...


class TransactionalBatch(NamedTuple):
    partition: Partition
    batch: Batch


class BatchVerification:
    """The verification of the transactional batches of one request, from the first question to the last append."""

    def __init__(self, batches: Mapping[TopicPartition, TransactionalBatch], owner: TransactionOwner) -> None:
        self._batches = batches
        self._owner = owner
        self._guards: dict[TopicPartition, VerificationGuard] = {}
        """The guards of the partitions in which the transaction is not open yet."""
        self._errors: dict[TopicPartition, MoldauError] = {}

    async def run(self, verifier: Verifier, clock: Clock, api_version: int) -> None:
        """Asks the transaction coordinator once for all partitions in which the transaction is not open yet.

        Raises InvalidProducerIdMappingError if the batches are from several producers. `end` must be called in any
        case, after the appends.
        """
        producers = {(each.batch.producer_id, each.batch.producer_epoch) for each in self._batches.values()}
        if len(producers) > 1:
            raise InvalidProducerIdMappingError("all transactional batches of a request must be of one producer")
        client_version = client_version_of_produce(api_version)
        start_ms = clock.monotonic_ms()
        while True:
            self._begin(supports_epoch_bump=client_version >= TV2)
            if self._guards:
                ((producer_id, producer_epoch),) = producers
                request = AddPartitionsRequest(
                    transactional_id=self._owner.transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=frozenset(self._guards),
                    client_version=client_version,
                )
                for partition, error in (await verifier.verify(request)).items():
                    if error is not None:
                        self._errors[partition] = produce_error(error, api_version)
            is_concurrent = any(isinstance(error, ConcurrentTransactionsError) for error in self._errors.values())
            if not is_concurrent or clock.monotonic_ms() - start_ms >= RETRY_TIMEOUT_MS:
                return
            self._errors = {}
            self.end()
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    def _begin(self, *, supports_epoch_bump: bool) -> None:
        for name, (partition, batch) in self._batches.items():
            try:
                guard = partition.begin_verification(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    supports_epoch_bump=supports_epoch_bump,
                    owner=self._owner,
                )
            except MoldauError as error:
                self._errors[name] = error
            else:
                if guard is not None:
                    self._guards[name] = guard

    def guard(self, partition: Partition) -> VerificationGuard | None:
        """Returns the guard for an append; None if the transaction is open. Raises the error of the verification."""
        error = self._errors.get(partition.name)
        if error is not None:
            raise error
        return self._guards.get(partition.name)

    def end(self) -> None:
        """Makes the guards invalid. Until a rejected batch is sent again, later batches fail with the same error."""
        guards, self._guards = self._guards, {}
        for name, guard in guards.items():
            partition, batch = self._batches[name]
            error = self._errors.get(name)
            is_valid = error is None or batch.has_valid_checksum()
            partition.end_verification(guard, batch, error if is_valid else None)
