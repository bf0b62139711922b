"""The state of one transactional id and its transitions (Kafka's TransactionMetadata). Pure.

TV1 and TV2 are levels of the feature transaction.version. Since TV2 (KIP-890) every end of a transaction increases the
producer epoch, so that no late request of the old transaction can belong to the next one.
"""

from enum import IntEnum
from typing import NamedTuple

from moldau.errors import ProducerFencedError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
PRODUCER_EPOCH_MAX = 32_767

TV0, TV1, TV2 = 0, 1, 2

TopicPartition = tuple[str, int]


class ProducerClient(NamedTuple):
    """The client that started a producer, for operators. Both are empty if unknown."""

    client_id: str = ""
    host: str = ""
    """The address with a leading slash, as in Kafka's group descriptions."""


UNKNOWN_CLIENT = ProducerClient()


class TransactionState(IntEnum):
    """The states and their ids in the log. DEAD and PREPARE_EPOCH_FENCE exist in Kafka's memory only."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in DescribeTransactions and ListTransactions, for example PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_IDLE_STATES = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_PREPARED_STATES = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether a producer can use this epoch but no later one. The maximum is reserved for fencing the producer."""
    return epoch >= PRODUCER_EPOCH_MAX - 1


class TransactionMetadata(NamedTuple):
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions of the transaction. Empty unless the transaction is ongoing or prepared."""
    start_ms: int = NO_TIMESTAMP
    """When the first partition was added."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last transition."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the current transaction, if its end exhausts the epochs of `producer_id`."""
    client_version: int = TV0
    """TV2 if the last transition increased the epoch. Partitions check the markers of this transaction by it."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last increase, with which a producer may repeat its request. As in Kafka it is not stored
    in the log: after a failover such a repetition is fenced."""
    client: ProducerClient = UNKNOWN_CLIENT
    """The client of the latest InitProducerId request. Kafka does not have it."""

    # Queries

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return self.state in _IDLE_STATES

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and markers have to be written."""
        return self.state in _PREPARED_STATES

    @property
    def is_epoch_exhausted(self) -> bool:
        return is_epoch_exhausted(self.producer_epoch)

    # A producer starts

    @classmethod
    def initial(
        cls, producer_id: int, timeout_ms: int, now_ms: int, client: ProducerClient = UNKNOWN_CLIENT
    ) -> "TransactionMetadata":
        return cls(
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            last_update_ms=now_ms,
            previous_producer_id=producer_id,
            client=client,
        )

    def with_next_epoch(
        self, expected_epoch: int | None, timeout_ms: int, now_ms: int, client: ProducerClient = UNKNOWN_CLIENT
    ) -> "TransactionMetadata":
        """Increases the epoch for a producer that starts, or that continues with `expected_epoch` after an error.

        A producer that repeats its request gets the same epoch again. Raises ProducerFencedError.
        """
        assert self.is_idle
        if expected_epoch is None:
            epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        elif expected_epoch == self.producer_epoch:
            epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            raise ProducerFencedError(f"epoch {expected_epoch} is fenced by epoch {self.producer_epoch}")
        return self._restarted(self.producer_id, epoch, last_epoch, timeout_ms, now_ms, client)

    def with_next_producer_id(
        self,
        producer_id: int,
        expected_epoch: int | None,
        timeout_ms: int,
        now_ms: int,
        client: ProducerClient = UNKNOWN_CLIENT,
    ) -> "TransactionMetadata":
        """Continues with another producer id, because the epochs of the current one are exhausted."""
        assert self.is_idle
        last_epoch = NO_PRODUCER_EPOCH if expected_epoch is None else self.producer_epoch
        return self._restarted(producer_id, 0, last_epoch, timeout_ms, now_ms, client)

    def _restarted(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int, client: ProducerClient
    ) -> "TransactionMetadata":
        return self._replace(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            previous_producer_id=self.producer_id,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
            client=client,
        )

    # A transaction

    def with_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        assert not self.is_prepared
        return self._replace(
            state=TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.is_idle else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
            previous_producer_id=self.producer_id,
        )

    def prepared(
        self, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> "TransactionMetadata":
        """Decides the outcome. With TV2 the epoch increases, and an abort is possible without a transaction."""
        assert self.state is TransactionState.ONGOING or (self.is_idle and not commit and client_version >= TV2)
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= TV2:
            epoch, last_epoch = min(epoch + 1, PRODUCER_EPOCH_MAX), epoch
        return self._replace(
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            # Without a transaction the start is unknown, but the log needs one.
            start_ms=now_ms if self.is_idle else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
            previous_producer_id=self.producer_id,
        )

    def fenced(self, *, transaction_version: int, next_producer_id: int, now_ms: int) -> "TransactionMetadata":
        """Aborts the transaction without its producer. `transaction_version` is the finalized level of the cluster."""
        if transaction_version >= TV2:
            return self.prepared(
                commit=False, client_version=transaction_version, next_producer_id=next_producer_id, now_ms=now_ms
            )
        epoch = min(self.producer_epoch + 1, PRODUCER_EPOCH_MAX)
        fenced = self._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
        return fenced.prepared(commit=False, client_version=TV0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms)

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """Ends the transaction after all its markers were written."""
        assert self.is_prepared
        producer_id, epoch = self.after_completion()
        return self._replace(
            state=TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
        )

    def after_completion(self) -> tuple[int, int]:
        """Returns the producer id and epoch that the producer uses after this prepared transaction."""
        if self.client_version >= TV2 and self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch
