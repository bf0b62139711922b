"""All transactions of one partition of `__transaction_state`, as a replicated state machine without I/O.

The state of a transaction changes only in `apply`. An operation that has to change the producer id first returns
PRODUCER_ID_NEEDED, because allocating an id needs I/O; the caller repeats the operation with a new id.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from moldau.coordinator.result import CompletedRequest, CoordinatorResult, Now
from moldau.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionStateError,
    MoldauError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from moldau.transactions.producer_checks import (
    aborted_by_coordinator,
    check_producer,
    fenced_epoch,
    next_producer_id,
    require,
    still_completing,
    wrong_producer_id,
)
from moldau.transactions.records import StateRecord, TransactionGroupRecord, TransactionRecord
from moldau.transactions.requests import (
    EMPTY_RESPONSE,
    PRODUCER_ID_NEEDED,
    AddPartitionsRequest,
    EmptyResponse,
    EndTransactionRequest,
    InitProducerIdRequest,
    ListedTransaction,
    LongTransaction,
    PartitionErrors,
    ProducerIdAndEpoch,
    ProducerIdNeeded,
    TransactionDescription,
    TransactionFilter,
    TransactionMarkers,
)
from moldau.transactions.timeouts import TransactionTimeouts
from moldau.transactions.transaction_groups import TransactionGroups
from moldau.transactions.transaction_metadata import (
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    TV2,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)
from moldau.wire.transaction_group_id import group_of_member

TransactionResult = CoordinatorResult[StateRecord, Sequence[CompletedRequest[Any]]]

IDS_PER_EXPIRATION_PASS = 1_000
"""An expiration step checks this many transactional ids. Requests can run between two steps. A round deletes at most
this many groups, so that the tombstones fit into one batch."""

ProducerResult = CoordinatorResult[StateRecord, ProducerIdAndEpoch | ProducerIdNeeded | MoldauError]

_NEEDS_PRODUCER_ID: ProducerResult = CoordinatorResult((), PRODUCER_ID_NEEDED, min_committed_offset=0)


class TransactionCoordinatorShard:
    def __init__(self, *, id_expiration_ms: int, transaction_version: Callable[[], int]) -> None:
        """`transaction_version` returns the finalized level of transaction.version."""
        self._transaction_version = transaction_version
        self._id_expiration_ms = id_expiration_ms
        self._transactions: dict[str, TransactionMetadata] = {}
        self.groups = TransactionGroups(self._transactions, transaction_version=transaction_version)
        self._timeouts = TransactionTimeouts()
        self._long_transactions: dict[str, LongTransaction] = {}
        """Reports that `take_long_transactions` has not returned yet."""
        self._timed_out_and_exhausted: dict[str, None] = {}
        """Timed out transactions that can only be aborted with a new producer id."""
        self._unsent_markers: dict[str, int] = {}
        """Prepared transactions whose markers `take_markers` has not returned yet, with the end offset of the record,
        in the order of these offsets."""
        self._ids_to_expire: deque[str] | None = None
        """Transactional ids that the current expiration round has not checked yet; None between rounds."""

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def apply(self, records: Sequence[StateRecord], end_offset: int) -> None:
        for record in records:
            if isinstance(record, TransactionGroupRecord):
                self.groups.apply(record)
                continue
            transactional_id, metadata = record.transactional_id, record.metadata
            if metadata is not None and metadata is self._transactions.get(transactional_id):
                # The unchanged state of `_confirmed`. Markers of a prepared transaction are not sent again.
                continue
            self.groups.apply_transaction(record)
            self._unsent_markers.pop(transactional_id, None)
            self._timed_out_and_exhausted.pop(transactional_id, None)
            self._timeouts.update(transactional_id, metadata)
            if metadata is None:
                self._transactions.pop(transactional_id, None)
                continue
            self._transactions[transactional_id] = metadata
            if metadata.is_prepared:
                self._unsent_markers[transactional_id] = end_offset

    def _change(
        self, transactional_id: str, metadata: TransactionMetadata, response: Any
    ) -> CoordinatorResult[StateRecord, Any]:
        record = TransactionRecord(transactional_id, metadata, self._transaction_version())
        return CoordinatorResult([record], response)

    def _confirmed(
        self, transactional_id: str, run: Callable[[], CoordinatorResult[StateRecord, Any]]
    ) -> CoordinatorResult[StateRecord, Any]:
        """Runs an operation. If it is rejected for good, writes the state again without a change.

        The response then waits for the commit of this record. So it is not sent if another node has become the
        coordinator without the knowledge of this one, whose state is outdated. The producer would stop.
        """
        try:
            return run()
        except (InvalidProducerIdMappingError, InvalidTransactionStateError, ProducerFencedError) as error:
            metadata = self._transactions.get(transactional_id)
            if metadata is None:
                raise
            return self._change(transactional_id, metadata, error.with_traceback(None))

    # Producers

    def init_producer_id(
        self, now: Now, request: InitProducerIdRequest, new_producer_id: int | None = None
    ) -> ProducerResult:
        return self._confirmed(request.transactional_id, lambda: self._init_producer_id(now, request, new_producer_id))

    def _init_producer_id(
        self, now: Now, request: InitProducerIdRequest, new_producer_id: int | None
    ) -> ProducerResult:
        """Fences all earlier producers with the transactional id, and returns producer id and epoch of the new one.

        If a transaction is ongoing, this operation only aborts it. The response is then ConcurrentTransactionsError,
        and the client repeats the request until the abort is complete.
        """
        transactional_id, expected = request.transactional_id, request.expected
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            created = TransactionMetadata.initial(new_producer_id, request.timeout_ms, now.wall_ms, request.client)
            return self._change(transactional_id, created, _identity(created))
        if metadata.is_prepared:
            raise still_completing(transactional_id)
        if expected is not None and not _may_continue(metadata, expected):
            raise ProducerFencedError(
                f"producer id {expected.producer_id} and epoch {expected.producer_epoch} are fenced by "
                f"{metadata.producer_id} and {metadata.producer_epoch}"
            )
        if metadata.state is TransactionState.ONGOING:
            aborted = self._fenced(now, metadata, new_producer_id)
            if aborted is None:
                return _NEEDS_PRODUCER_ID
            return self._change(transactional_id, aborted, still_completing(transactional_id))
        expected_epoch = None if expected is None else expected.producer_epoch
        if metadata.is_epoch_exhausted and expected_epoch in (None, metadata.producer_epoch):
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            restarted = metadata.with_next_producer_id(
                new_producer_id, expected_epoch, request.timeout_ms, now.wall_ms, request.client
            )
        else:
            restarted = metadata.with_next_epoch(expected_epoch, request.timeout_ms, now.wall_ms, request.client)
        return self._change(transactional_id, restarted, _identity(restarted))

    def _fenced(
        self, now: Now, metadata: TransactionMetadata, new_producer_id: int | None
    ) -> TransactionMetadata | None:
        """Returns the aborted transaction; None if a new producer id is needed."""
        return aborted_by_coordinator(metadata, self._transaction_version(), now.wall_ms, new_producer_id)

    # Partitions

    def add_partitions(self, now: Now, request: AddPartitionsRequest) -> CoordinatorResult[StateRecord, EmptyResponse]:
        return self._confirmed(request.transactional_id, lambda: self._add_partitions(now, request))

    def _add_partitions(self, now: Now, request: AddPartitionsRequest) -> CoordinatorResult[StateRecord, EmptyResponse]:
        metadata = self._require(request.transactional_id)
        if metadata.is_prepared:
            # A producer with TV2 may have a new producer id already, so ids are not compared before.
            raise still_completing(request.transactional_id)
        check_producer(metadata, request.producer_id, request.producer_epoch)
        if metadata.state is TransactionState.ONGOING and request.partitions <= metadata.partitions:
            if request.client_version >= TV2:
                return CoordinatorResult((), EMPTY_RESPONSE)
            # Without TV2 this may be another transaction than the one that this node knows; see `_confirmed`.
            return self._change(request.transactional_id, metadata, EMPTY_RESPONSE)
        changed = metadata.with_partitions(request.partitions, request.client_version, now.wall_ms)
        return self._change(request.transactional_id, changed, EMPTY_RESPONSE)

    def verify_partitions(self, request: AddPartitionsRequest) -> CoordinatorResult[StateRecord, PartitionErrors]:
        """Returns for each partition whether it is in the transaction. Changes nothing."""
        metadata = self._require(request.transactional_id)
        check_producer(metadata, request.producer_id, request.producer_epoch)
        if metadata.is_prepared:
            raise still_completing(request.transactional_id)
        errors: PartitionErrors = {
            (topic, partition): None
            if (topic, partition) in metadata.partitions
            else TransactionAbortableError(f"{topic}-{partition} is not in the transaction")
            for topic, partition in request.partitions
        }
        return CoordinatorResult((), errors)

    # The end

    def end_transaction(
        self, now: Now, request: EndTransactionRequest, new_producer_id: int | None = None
    ) -> ProducerResult:
        """Decides the outcome of a transaction. The response is the producer id and epoch of the next transaction; it
        has no values for a client without TV2, whose producer id and epoch do not change."""
        return self._confirmed(request.transactional_id, lambda: self._end_transaction(now, request, new_producer_id))

    def _end_transaction(self, now: Now, request: EndTransactionRequest, new_producer_id: int | None) -> ProducerResult:
        metadata = self._require(request.transactional_id)
        if request.commit and group_of_member(request.transactional_id) is not None:
            raise InvalidRequestError(
                f"{request.transactional_id!r} is a member of a transaction group, which is committed as a whole"
            )
        if request.client_version < TV2:
            return self._end_with_same_epoch(now, metadata, request)
        if metadata.is_prepared:
            # The producer may have its next producer id already, so ids are not compared before.
            raise still_completing(request.transactional_id)
        is_retry = _is_retry(metadata, request)
        is_same_producer = metadata.producer_id == request.producer_id
        if not is_same_producer and not is_retry:
            raise wrong_producer_id(metadata, request.producer_id)
        if metadata.state in (TransactionState.ONGOING, TransactionState.EMPTY):
            # An earlier epoch is no retry here, because that retry's transaction has ended or never existed.
            is_retry = False
        if not is_retry and (not is_same_producer or metadata.producer_epoch != request.producer_epoch):
            raise fenced_epoch(metadata, request.producer_epoch)
        if is_retry and metadata.state is _complete_state(commit=request.commit):
            return self._change(request.transactional_id, metadata, _identity(metadata))
        if is_retry or (request.commit and metadata.state is not TransactionState.ONGOING):
            raise _wrong_state(metadata, request)
        if metadata.is_epoch_exhausted and new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        prepared = metadata.prepared(
            commit=request.commit,
            client_version=request.client_version,
            next_producer_id=next_producer_id(metadata, new_producer_id),
            now_ms=now.wall_ms,
        )
        response = ProducerIdAndEpoch(*prepared.after_completion())
        return self._change(request.transactional_id, prepared, response)

    def _end_with_same_epoch(
        self, now: Now, metadata: TransactionMetadata, request: EndTransactionRequest
    ) -> ProducerResult:
        """Ends a transaction of a client without TV2."""
        check_producer(metadata, request.producer_id, request.producer_epoch)
        if metadata.is_prepared:
            raise still_completing(request.transactional_id)
        if metadata.state is _complete_state(commit=request.commit):
            # A repetition, or the end of a later transaction that this node does not know, because another node has
            # become the coordinator. The commit of the same state excludes the latter.
            return self._change(request.transactional_id, metadata, ProducerIdAndEpoch())
        if metadata.state is not TransactionState.ONGOING:
            raise _wrong_state(metadata, request)
        prepared = metadata.prepared(
            commit=request.commit,
            client_version=request.client_version,
            next_producer_id=NO_PRODUCER_ID,
            now_ms=now.wall_ms,
        )
        return self._change(request.transactional_id, prepared, ProducerIdAndEpoch())

    def take_markers(self, high_watermark: int) -> list[TransactionMarkers]:
        """Returns the markers of each prepared transaction once, when its record is below the high watermark.

        Before that the next coordinator could still decide the other outcome.
        """
        taken: list[TransactionMarkers] = []
        while self._unsent_markers:
            transactional_id, end_offset = next(iter(self._unsent_markers.items()))
            if end_offset > high_watermark:
                break
            del self._unsent_markers[transactional_id]
            taken.append(_markers(transactional_id, self._transactions[transactional_id]))
        return taken

    def complete_transaction(
        self, now: Now, markers: TransactionMarkers
    ) -> CoordinatorResult[StateRecord, EmptyResponse]:
        """Completes a transaction whose markers are written to all partitions. Does nothing if it is complete."""
        metadata = self._transactions.get(markers.transactional_id)
        if metadata is None or not metadata.is_prepared or _markers(markers.transactional_id, metadata) != markers:
            return CoordinatorResult((), EMPTY_RESPONSE)
        return self._change(markers.transactional_id, metadata.completed(now.wall_ms), EMPTY_RESPONSE)

    # Timeouts

    def on_loaded(self, now: Now) -> TransactionResult:
        return CoordinatorResult((), ())

    def next_deadline_ms(self, now: Now) -> int | None:
        return self._timeouts.next_ms(now)

    def tick(self, now: Now) -> TransactionResult:
        """Aborts one timed out transaction. If more are due, the next deadline stays in the past."""
        while (due := self._timeouts.pop_due(now)) is not None:
            transactional_id = due.transactional_id
            metadata = self._transactions[transactional_id]
            self._long_transactions[transactional_id] = LongTransaction(
                transactional_id,
                _identity(metadata),
                metadata.client,
                len(metadata.partitions),
                due.open_ms,
                metadata.timeout_ms,
                due.is_timed_out,
            )
            if not due.is_timed_out:
                continue
            aborted = self._fenced(now, metadata, None)
            if aborted is not None:
                # Keep the deadline until the record is applied, because the append can fail.
                self._timeouts.keep(transactional_id)
                return self._change(transactional_id, aborted, ())
            self._timed_out_and_exhausted[transactional_id] = None
        return CoordinatorResult((), ())

    def take_long_transactions(self) -> list[LongTransaction]:
        """Returns what `tick` has found: each transaction once before it times out, and once when it has timed out."""
        taken, self._long_transactions = self._long_transactions, {}
        return list(taken.values())

    def take_timed_out_and_exhausted(self) -> list[str]:
        """Returns each timed out transaction that `tick` could not abort, once. `abort_timed_out` aborts it."""
        taken, self._timed_out_and_exhausted = self._timed_out_and_exhausted, {}
        return list(taken)

    def abort_timed_out(
        self, now: Now, transactional_id: str, new_producer_id: int
    ) -> CoordinatorResult[StateRecord, EmptyResponse]:
        """Aborts a timed out transaction with exhausted epochs. Does nothing if the transaction has ended."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or not self._timeouts.is_timed_out(transactional_id, now):
            return CoordinatorResult((), EMPTY_RESPONSE)
        aborted = self._fenced(now, metadata, new_producer_id)
        assert aborted is not None
        return self._change(transactional_id, aborted, EMPTY_RESPONSE)

    def expire_ids(self, now: Now) -> TransactionResult | None:
        """Checks some transactional ids, and deletes those that were not used for a long time. Also deletes groups that
        are not needed any more.

        Each call continues after the ids that the previous call checked. After the last id, one call returns None, and
        the next call starts a new round over all ids.
        """
        oldest_ms = now.wall_ms - self._id_expiration_ms
        records: list[StateRecord] = []
        if self._ids_to_expire is None:
            self._ids_to_expire = deque(self._transactions)
            records += self.groups.expired(oldest_ms, IDS_PER_EXPIRATION_PASS)
        elif not self._ids_to_expire:
            self._ids_to_expire = None
            return None
        for _ in range(min(IDS_PER_EXPIRATION_PASS, len(self._ids_to_expire))):
            transactional_id = self._ids_to_expire.popleft()
            metadata = self._transactions.get(transactional_id)
            if metadata is not None and metadata.is_idle and metadata.last_update_ms <= oldest_ms:
                records.append(TransactionRecord(transactional_id, None))
        return CoordinatorResult(records, ())

    # Descriptions

    def describe(self, transactional_id: str) -> CoordinatorResult[StateRecord, TransactionDescription]:
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            raise TransactionalIdNotFoundError(f"the transactional id {transactional_id!r} does not exist")
        description = TransactionDescription(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            state=metadata.state,
            timeout_ms=metadata.timeout_ms,
            start_ms=metadata.start_ms,
            partitions=metadata.partitions,
            client=metadata.client,
        )
        return CoordinatorResult((), description)

    def list_transactions(
        self, now: Now, filter_: TransactionFilter
    ) -> CoordinatorResult[StateRecord, list[ListedTransaction]]:
        listed = [
            ListedTransaction(transactional_id, metadata.producer_id, metadata.state)
            for transactional_id, metadata in self._transactions.items()
            if _passes(filter_, metadata, now.wall_ms)
        ]
        return CoordinatorResult((), listed)

    def _require(self, transactional_id: str) -> TransactionMetadata:
        return require(self._transactions.get(transactional_id), transactional_id)


def _identity(metadata: TransactionMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)


def _markers(transactional_id: str, metadata: TransactionMetadata) -> TransactionMarkers:
    return TransactionMarkers(
        transactional_id=transactional_id,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        commit=metadata.state is TransactionState.PREPARE_COMMIT,
        transaction_version=metadata.client_version,
        partitions=metadata.partitions,
    )


def _complete_state(*, commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def _may_continue(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer with this id and epoch may get the next epoch, or get it again.

    `with_next_epoch` compares the epochs of producers without a transaction.
    """
    producer_id, epoch = expected
    if metadata.state is TransactionState.ONGOING:
        # Kafka does not compare the epoch here, so that a fenced producer can abort the transaction of its successor.
        return producer_id == metadata.producer_id and epoch in (metadata.producer_epoch, metadata.last_producer_epoch)
    return producer_id == metadata.producer_id or (
        producer_id == metadata.previous_producer_id and is_epoch_exhausted(epoch)
    )


def _is_retry(metadata: TransactionMetadata, request: EndTransactionRequest) -> bool:
    """Whether the request repeats the one that increased the epoch to the current epoch, or that changed the producer
    id.

    The last end must have been one with TV2. Kafka does not check this: with it, a fenced producer with TV2 gets the
    epoch of its successor without TV2, if that has ended a transaction with the same outcome.
    """
    if metadata.client_version < TV2:
        return False
    if metadata.producer_epoch == request.producer_epoch + 1:
        return metadata.producer_id == request.producer_id
    return (
        metadata.previous_producer_id == request.producer_id
        and request.producer_epoch == PRODUCER_EPOCH_MAX - 1
        and metadata.producer_epoch == 0
    )


def _wrong_state(metadata: TransactionMetadata, request: EndTransactionRequest) -> MoldauError:
    action = "committed" if request.commit else "aborted"
    return InvalidTransactionStateError(
        f"the transaction of {request.transactional_id!r} is {metadata.state.label} and cannot be {action}"
    )


def _passes(filter_: TransactionFilter, metadata: TransactionMetadata, now_ms: int) -> bool:
    if filter_.producer_ids and metadata.producer_id not in filter_.producer_ids:
        return False
    if filter_.states is not None and metadata.state not in filter_.states:
        return False
    return filter_.duration_ms < 0 or now_ms - metadata.start_ms > filter_.duration_ms
