"""The verifications that wait for the next request to one transaction coordinator. Pure."""

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from moldau.errors import InvalidProducerEpochError, MoldauError, PeerUnreachableError
from moldau.transactions.requests import AddPartitionsRequest

PARTITIONS_PER_REQUEST_MAX = 10_000


class Verification(Protocol):
    @property
    def request(self) -> AddPartitionsRequest: ...


V = TypeVar("V", bound=Verification)


class Rejected(NamedTuple, Generic[V]):
    verification: V
    error: MoldauError


class VerificationQueue(Generic[V]):
    """At most one verification per transactional id waits, as in Kafka's AddPartitionsToTxnManager."""

    def __init__(self) -> None:
        self._waiting: dict[str, V] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, added: V) -> Rejected[V] | None:
        """Adds a verification. If another one with its transactional id waits, returns the one that is not sent.

        The verification of an older epoch fails with INVALID_PRODUCER_EPOCH. Of two with the same epoch, the one that
        waits fails with NETWORK_EXCEPTION, because the producer probably has given up on it and repeats its request.
        Epochs of different producer ids cannot be compared. Kafka compares them.
        """
        request = added.request
        waiting = self._waiting.get(request.transactional_id)
        if waiting is None:
            self._waiting[request.transactional_id] = added
            return None
        is_same_producer = waiting.request.producer_id == request.producer_id
        if is_same_producer and request.producer_epoch < waiting.request.producer_epoch:
            return Rejected(added, _fenced(request, waiting.request))
        self._waiting[request.transactional_id] = added
        if is_same_producer and waiting.request.producer_epoch < request.producer_epoch:
            return Rejected(waiting, _fenced(waiting.request, request))
        return Rejected(waiting, PeerUnreachableError("a later request of the producer replaced the verification"))

    def take(self) -> list[V]:
        """Removes and returns the verifications of the next request, oldest first."""
        taken: list[V] = []
        count = 0
        for verification in self._waiting.values():
            count += len(verification.request.partitions)
            if taken and count > PARTITIONS_PER_REQUEST_MAX:
                break
            taken.append(verification)
        self._remove(taken)
        return taken

    def _remove(self, verifications: Iterable[V]) -> None:
        for each in verifications:
            del self._waiting[each.request.transactional_id]


def _fenced(older: AddPartitionsRequest, newer: AddPartitionsRequest) -> MoldauError:
    return InvalidProducerEpochError(
        f"epoch {older.producer_epoch} of producer {older.producer_id} is fenced by epoch {newer.producer_epoch}"
    )
