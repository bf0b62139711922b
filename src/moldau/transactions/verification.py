"""Asks the coordinators of transactions whether producers may write to partitions.

The leader of a partition does this before it accepts the first batch of a transaction (KIP-890). With TV2 the
coordinator adds the partition to the transaction; before TV2 it only checks that the producer has added it.

One request at a time goes to each coordinator; the verifications that arrive in the meantime share the next request.
If this node is the coordinator, it needs no request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.controller.messages import error_from_code
from moldau.coordinator.java_hash import partition_for
from moldau.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MoldauError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OperationNotAttemptedError,
    PeerUnreachableError,
    ProducerFencedError,
    TransactionAbortableError,
)
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.peers.client import PeerClient
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.transactions.transaction_metadata import TV0, TV2, TopicPartition
from moldau.transactions.verification_queue import VerificationQueue
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.transaction_group_id import coordinator_key

log = get_logger(__name__)

LANE = "transaction-verification"
REQUEST_TIMEOUT_MS = 10_000
"""Longer than a coordinator waits until an added partition is committed."""
REQUEST_VERSION = 5

PRODUCE_ABORTABLE_VERSION = 11
"""The first version of Produce whose clients know TRANSACTION_ABORTABLE."""
PRODUCE_TV2_VERSION = 12
"""The first version of Produce that adds its partitions to the transaction."""

_UNVERIFIED_ERRORS = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    OperationNotAttemptedError,
    PeerUnreachableError,
)
"""The transaction is neither accepted nor rejected, so the producer has to try again.

OPERATION_NOT_ATTEMPTED means that the coordinator does not know another partition of the request yet. Kafka returns it
to the producer, which does not retry then.
"""


def client_version_of_produce(api_version: int) -> int:
    """Returns the transaction version of a client with this version of Produce."""
    return TV2 if api_version >= PRODUCE_TV2_VERSION else TV0


def client_error(error: MoldauError, *, knows_abortable: bool) -> MoldauError:
    """Returns the error for producers. They do not expect PRODUCER_FENCED from a leader, and older ones do not know
    TRANSACTION_ABORTABLE."""
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError(str(error))
    if isinstance(error, TransactionAbortableError) and not knows_abortable:
        return InvalidTransactionStateError(str(error))
    return error


def produce_error(error: MoldauError, api_version: int) -> MoldauError:
    """Returns the error for a response to Produce.

    Producers retry after NOT_ENOUGH_REPLICAS without fetching metadata. They do not expect the errors of coordinators.
    """
    is_unverified = isinstance(error, _UNVERIFIED_ERRORS) or (
        isinstance(error, ConcurrentTransactionsError) and api_version < PRODUCE_TV2_VERSION
    )
    if is_unverified:
        return NotEnoughReplicasError(f"the transaction could not be verified: {error}")
    return client_error(error, knows_abortable=api_version >= PRODUCE_ABORTABLE_VERSION)


@dataclass(slots=True, eq=False)
class _PendingVerification:
    request: AddPartitionsRequest
    errors: "asyncio.Future[PartitionErrors]"

    def complete(self, errors: PartitionErrors) -> None:
        if not self.errors.done():
            self.errors.set_result(errors)

    def fail(self, error: MoldauError) -> None:
        self.complete(dict.fromkeys(self.request.partitions, error))


class TransactionVerifier:
    def __init__(
        self, node_id: int, metadata: MetadataLoader, peers: PeerClient, coordinator: TransactionCoordinator
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._peers = peers
        self._coordinator = coordinator
        self._queues: dict[int, VerificationQueue[_PendingVerification]] = {}
        """What waits for the next request, by broker id."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The task of each broker that has verifications."""
        self._is_closed = False
        self.unexpected_errors = 0

    async def verify(self, request: AddPartitionsRequest) -> PartitionErrors:
        """Adds the partitions to a transaction of a client with TV2. Otherwise checks that they are in it.

        Returns the error of the coordinator by partition. `client_error` and `produce_error` return what clients know.
        """
        try:
            coordinator_id = self._coordinator_of(request.transactional_id)
            if coordinator_id != self._node_id:
                return await self._enqueue(coordinator_id, request)
            if request.client_version < TV2:
                return await self._coordinator.verify_partitions(request)
            await self._coordinator.add_partitions(request)
        except MoldauError as error:
            return dict.fromkeys(request.partitions, error)
        return dict.fromkeys(request.partitions)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for broker_id in delta.brokers_changed:
            broker = image.brokers.get(broker_id)
            if broker_id in self._tasks and (broker is None or broker.fenced):
                # Do not wait for a broker that does not respond, because its transactions have other coordinators now.
                self._peers.disconnect(broker_id, LANE)

    def stop(self) -> None:
        """Fails all verifications, which ends the requests that wait for them."""
        self._is_closed = True
        for broker_id in self._tasks:
            self._peers.disconnect(broker_id, LANE)

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._tasks.values())

    def _coordinator_of(self, transactional_id: str) -> int:
        image = self._metadata.image
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailableError(f"{TRANSACTION_STATE_TOPIC} does not exist")
        leader = topic.partitions[partition_for(coordinator_key(transactional_id), len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        if broker is None or broker.fenced:
            raise CoordinatorNotAvailableError(f"the coordinator of {transactional_id!r} is not available")
        return leader

    # Requests

    def _enqueue(self, broker_id: int, request: AddPartitionsRequest) -> "asyncio.Future[PartitionErrors]":
        if self._is_closed:
            raise CoordinatorNotAvailableError("this node is closing")
        pending = _PendingVerification(request, asyncio.get_running_loop().create_future())
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = VerificationQueue()
            self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._run(broker_id, queue))
        rejected = queue.add(pending)
        if rejected is not None:
            rejected.verification.fail(rejected.error)
        return pending.errors

    async def _run(self, broker_id: int, queue: VerificationQueue[_PendingVerification]) -> None:
        try:
            while queue:
                await self._send(broker_id, queue.take())
        finally:
            del self._tasks[broker_id], self._queues[broker_id]

    async def _send(self, broker_id: int, verifications: Sequence[_PendingVerification]) -> None:
        tree = {"transactions": [_transaction_tree(each.request) for each in verifications]}
        try:
            if self._is_closed:
                raise PeerUnreachableError("this node is closing")
            response = await self._peers.call(
                broker_id,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                tree,
                lane=LANE,
                timeout_ms=REQUEST_TIMEOUT_MS,
                version=REQUEST_VERSION,
            )
            codes = _codes_in(response)
        except PeerUnreachableError as error:
            log.debug("verifying transactions failed", broker=broker_id, reason=str(error))
            for each in verifications:
                each.fail(PeerUnreachableError(str(error)))
        except Exception:
            self.unexpected_errors += 1
            log.exception("verifying transactions failed unexpectedly", broker=broker_id)
            for each in verifications:
                each.fail(PeerUnreachableError("the verification failed unexpectedly"))
        else:
            for each in verifications:
                each.complete(_errors(each.request, response.error_code, codes))


def _transaction_tree(request: AddPartitionsRequest) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    # Sort, so that the order does not depend on the hashes of strings, which differ between processes.
    for name, index in sorted(request.partitions):
        topics.setdefault(name, []).append(index)
    return {
        "transactional_id": request.transactional_id,
        "producer_id": request.producer_id,
        "producer_epoch": request.producer_epoch,
        "verify_only": request.client_version < TV2,
        "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }


def _codes_in(response: Message) -> dict[tuple[str, str, int], int]:
    return {
        (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }


def _errors(
    request: AddPartitionsRequest, response_code: int, codes: Mapping[tuple[str, str, int], int]
) -> PartitionErrors:
    errors: dict[TopicPartition, MoldauError | None] = {}
    for partition in request.partitions:
        code = response_code or codes.get((request.transactional_id, *partition))
        name = f"{partition[0]}-{partition[1]}"
        if code is None:
            errors[partition] = PeerUnreachableError(f"the coordinator did not respond for {name}")
        else:
            errors[partition] = error_from_code(code, f"{name} is not verified, the coordinator returned error {code}")
    return errors
