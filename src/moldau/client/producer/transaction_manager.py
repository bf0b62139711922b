"""The state of a producer's transactions, without I/O: what may be called, what was sent, and what an error means.

There are two generations of the protocol. With TV2 (KIP-890) a partition joins the transaction with its first batch,
and every transaction has its own producer epoch. With TV1 the producer adds partitions and groups itself, and the epoch
stays, so after an abort that left a gap in a sequence the producer needs a new one.
"""

from collections.abc import Callable
from enum import Enum

from moldau.client.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from moldau.client.producer.producer_batch import ProducerIdAndEpoch
from moldau.client.record import TopicPartition

TV2 = 2
"""The level of the feature transaction.version from which on brokers support TV2."""

_PRODUCE_VERSION_MAX_TV1 = 11
_PRODUCE_VERSION_TV2 = 12
_FENCED_ERRORS = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)


class TransactionState(Enum):
    UNINITIALIZED = "uninitialized"
    """The next transaction needs InitProducerId first."""
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTABLE_ERROR = "waiting for an abort after an error"
    ABORTING = "aborting"
    FATAL_ERROR = "unusable after an error"


class TransactionRequest(Enum):
    """The requests whose errors have different meanings."""

    INIT = "InitProducerId"
    ADD = "adding to the transaction"
    PRODUCE = "Produce"
    COMMIT = "the commit"
    ABORT = "the abort"


class TransactionManager:
    """The transactions of one producer, one after the other."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = TransactionState.UNINITIALIZED
        self.error: KafkaError | None = None
        """The error of the states ABORTABLE_ERROR and FATAL_ERROR."""
        self.producer = ProducerIdAndEpoch()
        self.is_v2 = False
        self.number = 0
        """The number of the current or latest transaction."""
        self._new_partitions: dict[TopicPartition, None] = {}
        self._partitions: set[TopicPartition] = set()
        """The partitions of the transaction, including those that are being added."""
        self._is_started = False
        """Whether the coordinator may know this transaction, so that it must be told the end."""
        self._is_commit_sent = False
        """Whether a commit was sent and its outcome is unknown."""
        self._is_commit_refused = False

    # Beginning

    def handle_producer_id(self, producer: ProducerIdAndEpoch, *, is_v2: bool) -> None:
        assert self.state in (TransactionState.UNINITIALIZED, TransactionState.READY), self.state
        self.producer = producer
        self.is_v2 = is_v2
        self.state = TransactionState.READY

    def begin(self) -> int:
        """Begins a transaction and returns its number."""
        self.check_can_begin()
        assert self.state is TransactionState.READY, self.state
        self.state = TransactionState.IN_TRANSACTION
        self.number += 1
        return self.number

    def check_can_begin(self) -> None:
        if self.state is TransactionState.FATAL_ERROR:
            self.raise_error()
        if self.must_repeat_commit:
            raise IllegalStateError("the outcome of the last commit is unknown: call `commit` again")
        if self.state not in (TransactionState.UNINITIALIZED, TransactionState.READY, TransactionState.ABORTING):
            raise IllegalStateError(
                f"the producer is {self.state.value}: end the open transaction first, or use one producer per "
                "concurrent transaction"
            )

    # In the transaction

    def check_in_transaction(self, number: int | None = None) -> int:
        """Returns the number of the open transaction. Raises an error if there is none, or if it is another one."""
        if self.state is not TransactionState.IN_TRANSACTION or number not in (None, self.number):
            if number in (None, self.number):
                self.raise_error()
            raise IllegalStateError("there is no open transaction: use `async with producer.transaction():`")
        return self.number

    def add_partition(self, partition: TopicPartition) -> bool:
        """Adds the partition of a record. Returns whether the coordinator must be told (TV1)."""
        if partition in self._partitions:
            return False
        self._partitions.add(partition)
        if self.is_v2:
            self._is_started = True
            return False
        self._new_partitions[partition] = None
        return True

    def take_new_partitions(self) -> list[TopicPartition]:
        """Returns the partitions that must be added now (TV1); none if the transaction is not going on."""
        if self.state not in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            return []
        partitions = list(self._new_partitions)
        self._new_partitions.clear()
        return partitions

    def start(self) -> None:
        """Records that a request is sent after which the coordinator may know the transaction."""
        self._is_started = True

    @property
    def has_failed(self) -> bool:
        """Whether batches of the transaction can no longer be committed, so that they are not sent."""
        return self.state in (TransactionState.ABORTABLE_ERROR, TransactionState.ABORTING, TransactionState.FATAL_ERROR)

    @property
    def produce_versions(self) -> tuple[int | None, int | None]:
        """The exact version of Produce requests, and the maximum. Brokers tell TV1 and TV2 apart by the version."""
        return (_PRODUCE_VERSION_TV2, None) if self.is_v2 else (None, _PRODUCE_VERSION_MAX_TV1)

    # Ending

    def begin_commit(self, number: int) -> None:
        self._check_current(number)
        self.raise_error()
        if self.state is TransactionState.ABORTING:
            raise IllegalStateError("the transaction is being aborted: call `abort` again")
        self.state = TransactionState.COMMITTING

    def begin_abort(self, number: int) -> None:
        self._check_current(number)
        if self.state is TransactionState.FATAL_ERROR:
            self.raise_error()
        if self.must_repeat_commit:
            raise IllegalStateError("the transaction may be committed already: call `commit` again")
        self.state = TransactionState.ABORTING
        self._new_partitions.clear()

    def has_ended(self, number: int) -> bool:
        return number != self.number or self.state in (TransactionState.UNINITIALIZED, TransactionState.READY)

    def is_open(self, number: int | None) -> bool:
        """Returns whether this transaction can still be aborted."""
        if number != self.number or self.must_repeat_commit:
            return False
        return self.state in (
            TransactionState.IN_TRANSACTION,
            TransactionState.COMMITTING,
            TransactionState.ABORTABLE_ERROR,
            TransactionState.ABORTING,
        )

    def is_outcome_unknown(self, number: int) -> bool:
        return number == self.number and self._is_commit_sent

    @property
    def must_repeat_commit(self) -> bool:
        """Whether the last commit was sent, and only its repetition can tell the outcome."""
        return self.state is TransactionState.COMMITTING and self._is_commit_sent

    @property
    def must_send_end(self) -> bool:
        """Whether the coordinator must be told the end. It knows nothing of a transaction without requests."""
        return self._is_started

    def handle_end_sent(self) -> None:
        self._is_commit_sent = self.state is TransactionState.COMMITTING

    def handle_ended(self, producer: ProducerIdAndEpoch, *, has_sequence_gap: bool = False) -> None:
        """Ends the transaction; `producer` has the id and epoch of the next one."""
        assert self.state in (TransactionState.COMMITTING, TransactionState.ABORTING), self.state
        is_new_epoch = producer != self.producer
        self.producer = producer
        self.error = None
        self._partitions.clear()
        self._new_partitions.clear()
        self._is_started = self._is_commit_sent = self._is_commit_refused = False
        needs_new_epoch = has_sequence_gap and not is_new_epoch
        self.state = TransactionState.UNINITIALIZED if needs_new_epoch else TransactionState.READY

    def _check_current(self, number: int) -> None:
        if self.has_ended(number):
            raise IllegalStateError("this transaction has ended, or was aborted because the producer was closed")

    # Errors

    def handle_error(self, request: TransactionRequest, error: KafkaError) -> None:
        """Decides what the final error of a request means for the transaction, after all retries."""
        if self.state is TransactionState.FATAL_ERROR:
            return
        if self._is_fatal(request, error):
            self.state = TransactionState.FATAL_ERROR
            self.error = self._fatal_error(error)
        elif request in (TransactionRequest.COMMIT, TransactionRequest.ABORT) and error.is_retriable:
            # The coordinator did not respond, so the outcome is unknown, and the same request must be repeated.
            return
        elif self.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            self.state = TransactionState.ABORTABLE_ERROR
            self.error = error
            if request is TransactionRequest.COMMIT and error.code == ErrorCode.invalid_txn_state:
                text = "the coordinator has aborted it, because it took longer than transaction_timeout_ms"
                self.error = KafkaError(error.code, text)
            self._is_commit_refused = self._is_commit_sent
            self._is_commit_sent = False

    def is_nothing_to_abort(self, error: KafkaError) -> bool:
        """Returns whether an abort was refused because the coordinator has no open transaction (TV1).

        That happens if no request to add a partition reached it.
        """
        return error.code == ErrorCode.invalid_txn_state and not self.is_v2 and not self._is_commit_refused

    def _is_fatal(self, request: TransactionRequest, error: KafkaError) -> bool:
        code = error.code
        if code in (
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.transactional_id_authorization_failed,
            ErrorCode.unsupported_version,
        ):
            return True
        if request is TransactionRequest.PRODUCE:
            # The partition cannot tell a fenced producer from one whose transaction has timed out. The abort will.
            return False
        if code == ErrorCode.invalid_producer_epoch:
            return True
        if request is TransactionRequest.COMMIT:
            # INVALID_TXN_STATE: the coordinator has aborted the transaction, because it took too long.
            is_aborted = code in (ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable)
            return not is_aborted and not error.is_retriable
        return request is TransactionRequest.ABORT and not error.is_retriable

    def _fatal_error(self, error: KafkaError) -> KafkaError:
        name = f"the transactional id {self.transactional_id!r}"
        if error.code in _FENCED_ERRORS:
            return ProducerFencedError(
                error.code,
                f"another producer with {name} has started, or a transaction took longer than transaction_timeout_ms: "
                "close this producer, and start a new one only if it is the one that should run",
            )
        if error.code == ErrorCode.invalid_producer_id_mapping:
            text = f"the coordinator does not know the producer of {name}, perhaps because it was unused for too long"
        else:
            text = f"transactions of {name} cannot continue ({error.message})" if error.message else name
        return KafkaError(error.code, f"{text}: close this producer and start a new one")

    def raise_error(self) -> None:
        """Raises the error of the current state, if it has one. Each caller gets its own exception."""
        error = self.error
        if self.state is TransactionState.FATAL_ERROR and error is not None:
            raise _copy(error)
        if self.state is TransactionState.ABORTABLE_ERROR and error is not None:
            raise TransactionAbortableError(error)

    def handle_batch_error(self, error: KafkaError) -> Callable[[], KafkaError]:
        """Fails the transaction after a failed batch. Returns a function that makes the error of each record."""
        self.handle_error(TransactionRequest.PRODUCE, error)
        fatal = self.error if self.state is TransactionState.FATAL_ERROR else None
        if fatal is not None:
            return lambda: _copy(fatal)
        if self.state is TransactionState.ABORTABLE_ERROR and not isinstance(error, TransactionAbortableError):
            return lambda: TransactionAbortableError(error)
        return lambda: _copy(error)

    def batch_error(self) -> KafkaError:
        """Returns the error of batches that are dropped because the transaction has failed."""
        if self.state is TransactionState.FATAL_ERROR and self.error is not None:
            return self.error
        if self.error is not None:
            return TransactionAbortableError(self.error)
        return KafkaError(ErrorCode.transaction_abortable, "the transaction was aborted before the record was sent")

    def end_timeout_error(self, error: KafkaError) -> RequestTimedOutError:
        """Returns the error for an end whose outcome is unknown after all retries."""
        name = "commit" if self.state is TransactionState.COMMITTING else "abort"
        return RequestTimedOutError(
            f"the outcome of the {name} is unknown ({error}): call `{name}` again, or close the producer and start a "
            "new one, which waits for the outcome"
        )


def _copy(error: KafkaError) -> KafkaError:
    """Returns an equal error, because an exception that is raised several times collects the tracebacks of all."""
    if isinstance(error, TransactionAbortableError):
        return TransactionAbortableError(error.cause)
    kind = ProducerFencedError if isinstance(error, ProducerFencedError) else KafkaError
    return kind(error.code, error.message)
