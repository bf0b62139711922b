"""The transaction groups of one partition of `__transaction_state`, as a part of its state machine.

`transaction_group.py` explains groups. A decision is one batch of the log: the group's last committed batch, the commit
of the listed members, and the abort of all other open members.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from moldau.coordinator.result import CoordinatorResult, Now
from moldau.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionStateError,
    MoldauError,
    ProducerFencedError,
)
from moldau.transactions.producer_checks import aborted_by_coordinator, check_producer, require, still_completing
from moldau.transactions.records import StateRecord, TransactionGroupRecord, TransactionRecord
from moldau.transactions.requests import (
    BATCH_COMMITTED,
    EMPTY_RESPONSE,
    PRODUCER_ID_NEEDED,
    BatchCommitted,
    EmptyResponse,
    EndGroupRequest,
    InitGroupMemberRequest,
    ProducerIdAndEpoch,
    ProducerIdNeeded,
)
from moldau.transactions.transaction_group import TransactionGroupMetadata
from moldau.transactions.transaction_metadata import (
    NO_PRODUCER_ID,
    TV0,
    TV2,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)
from moldau.wire.transaction_group_id import group_of_member, member_transactional_id

MemberResult = CoordinatorResult[StateRecord, ProducerIdAndEpoch | ProducerIdNeeded | BatchCommitted | MoldauError]

ABORTS_MAX = 1_000
"""The number of members that one request aborts in addition to what it does, so that this fits into one batch. Others
are aborted by the next requests or by their timeouts; they cannot be committed."""

_NO_GROUP = TransactionGroupMetadata()


class TransactionGroups:
    def __init__(
        self, transactions: Mapping[str, TransactionMetadata], *, transaction_version: Callable[[], int]
    ) -> None:
        """`transactions` are those of the partition. Their owner passes each change to `apply_transaction`."""
        self._transactions = transactions
        self._transaction_version = transaction_version
        self._groups: dict[str, TransactionGroupMetadata] = {}
        self._members: dict[str, dict[str, None]] = {}
        """The transactional ids of each group's members."""

    def get(self, group_id: str) -> TransactionGroupMetadata | None:
        return self._groups.get(group_id)

    def apply(self, record: TransactionGroupRecord) -> None:
        if record.metadata is None:
            self._groups.pop(record.group_id, None)
        else:
            self._groups[record.group_id] = record.metadata

    def apply_transaction(self, record: TransactionRecord) -> None:
        group_id = group_of_member(record.transactional_id)
        if group_id is None:
            return
        members = self._members.setdefault(group_id, {})
        if record.metadata is not None:
            members[record.transactional_id] = None
            return
        members.pop(record.transactional_id, None)
        if not members:
            del self._members[group_id]

    # Operations

    def init_member(
        self, now: Now, request: InitGroupMemberRequest, new_producer_id: int | None = None
    ) -> MemberResult:
        """Returns the producer id and epoch with which a member writes records of a batch, unless it is committed.

        The first member of a new run aborts all transactions that earlier runs have left open. As in InitProducerId,
        the response is ConcurrentTransactionsError while an earlier transaction of the member is being completed.
        """
        group = self._groups.get(request.group_id, _NO_GROUP)
        if group.is_committed(request.group_id, request.batch_id):
            return CoordinatorResult((), BATCH_COMMITTED)
        current = group.with_run(request.group_id, request.run_id, now.wall_ms)
        transactional_id = member_transactional_id(request.group_id, request.member)
        metadata = self._transactions.get(transactional_id)
        if metadata is not None and metadata.is_prepared:
            raise still_completing(transactional_id)
        changed: TransactionMetadata | None
        response: ProducerIdAndEpoch | MoldauError
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            changed = aborted_by_coordinator(metadata, self._transaction_version(), now.wall_ms, new_producer_id)
            response = still_completing(transactional_id)
        else:
            changed = _restarted(metadata, request, now.wall_ms, new_producer_id)
            response = ProducerIdAndEpoch()
            if changed is not None:
                response = ProducerIdAndEpoch(changed.producer_id, changed.producer_epoch)
        if changed is None:
            return CoordinatorResult((), PRODUCER_ID_NEEDED, min_committed_offset=0)
        records: list[StateRecord] = [self._record(transactional_id, changed)]
        if current is not group:
            records.append(TransactionGroupRecord(request.group_id, current))
            records += self._ended_members(request.group_id, now, except_for={transactional_id})
        return CoordinatorResult(records, response)

    def end(self, now: Now, request: EndGroupRequest) -> CoordinatorResult[StateRecord, EmptyResponse]:
        """Commits or aborts a batch. Repetitions succeed and change nothing.

        A commit is refused as a whole if the transaction of one listed member is not open any more. An abort ends the
        run, and does nothing if the batch is committed or the run has ended.
        """
        try:
            return self._end(now, request)
        except (InvalidProducerIdMappingError, InvalidTransactionStateError, ProducerFencedError) as error:
            return self._confirmed(request.group_id, error.with_traceback(None))

    def _confirmed(self, group_id: str, response: EmptyResponse | MoldauError) -> CoordinatorResult[StateRecord, Any]:
        """Writes a group again without a change. The response waits for the commit of the record, so it is not sent if
        another node has become the coordinator without the knowledge of this one."""
        group = self._groups.get(group_id)
        return CoordinatorResult([] if group is None else [TransactionGroupRecord(group_id, group)], response)

    def _end(self, now: Now, request: EndGroupRequest) -> CoordinatorResult[StateRecord, EmptyResponse]:
        group = self._groups.get(request.group_id, _NO_GROUP)
        if not request.commit:
            if request.batch_id <= group.last_batch_id or request.run_id != group.run_id:
                return self._confirmed(request.group_id, EMPTY_RESPONSE)
            ended = TransactionGroupRecord(request.group_id, group.with_ended_run(now.wall_ms))
            return CoordinatorResult(
                [ended, *self._ended_members(request.group_id, now, except_for=())], EMPTY_RESPONSE
            )
        if group.is_committed(request.group_id, request.batch_id):
            return CoordinatorResult((), EMPTY_RESPONSE)
        # A run whose tasks had no records begins with its first commit.
        current = group.with_run(request.group_id, request.run_id, now.wall_ms)
        committed = current.with_committed(request.batch_id, now.wall_ms, is_complete=request.is_last)
        members = self._committed_members(request, now)
        records: list[StateRecord] = [TransactionGroupRecord(request.group_id, committed), *members.values()]
        records += self._ended_members(request.group_id, now, except_for=members)
        return CoordinatorResult(records, EMPTY_RESPONSE)

    def _committed_members(self, request: EndGroupRequest, now: Now) -> dict[str, TransactionRecord]:
        client_version = TV2 if self._transaction_version() >= TV2 else TV0
        records: dict[str, TransactionRecord] = {}
        for member, producer_id, producer_epoch in request.members:
            transactional_id = member_transactional_id(request.group_id, member)
            if transactional_id in records:
                raise InvalidRequestError(f"the member {member!r} is listed twice")
            metadata = require(self._transactions.get(transactional_id), transactional_id)
            check_producer(metadata, producer_id, producer_epoch)
            if metadata.state is not TransactionState.ONGOING or metadata.is_epoch_exhausted:
                # `init_member` returns no epoch with which a transaction exhausts the epochs.
                raise InvalidTransactionStateError(
                    f"the transaction of {transactional_id!r} is {metadata.state.label} and cannot be committed"
                )
            prepared = metadata.prepared(
                commit=True, client_version=client_version, next_producer_id=NO_PRODUCER_ID, now_ms=now.wall_ms
            )
            records[transactional_id] = self._record(transactional_id, prepared)
        return records

    def _ended_members(self, group_id: str, now: Now, *, except_for: Collection[str]) -> list[TransactionRecord]:
        """Ends up to ABORTS_MAX members: aborts open transactions, and deletes members that have not written yet, which
        could otherwise begin a transaction that nobody ends. A transaction that needs a new producer id is left to its
        timeout."""
        records: list[TransactionRecord] = []
        for transactional_id in self._members.get(group_id, ()):
            if len(records) == ABORTS_MAX:
                break
            metadata = self._transactions[transactional_id]
            if transactional_id in except_for:
                continue
            if metadata.state is TransactionState.EMPTY:
                records.append(TransactionRecord(transactional_id, None))
            elif metadata.state is TransactionState.ONGOING:
                aborted = aborted_by_coordinator(metadata, self._transaction_version(), now.wall_ms, None)
                if aborted is not None:
                    records.append(self._record(transactional_id, aborted))
        return records

    def _record(self, transactional_id: str, metadata: TransactionMetadata) -> TransactionRecord:
        return TransactionRecord(transactional_id, metadata, self._transaction_version())

    def expired(self, oldest_ms: int, count_max: int) -> list[StateRecord]:
        """Returns tombstones of up to `count_max` groups that are not needed and were not used since `oldest_ms`."""
        expired = (
            TransactionGroupRecord(group_id, None)
            for group_id, group in self._groups.items()
            if group.may_expire and group.last_update_ms <= oldest_ms
        )
        return list(islice(expired, count_max))


def _restarted(
    metadata: TransactionMetadata | None, request: InitGroupMemberRequest, now_ms: int, new_producer_id: int | None
) -> TransactionMetadata | None:
    """Returns a member that starts a transaction; None if it needs a new producer id.

    It gets one before the epochs are exhausted, so that a decision about many members needs none.
    """
    if metadata is not None and not is_epoch_exhausted(metadata.producer_epoch + 1):
        return metadata.with_next_epoch(None, request.timeout_ms, now_ms, request.client)
    if new_producer_id is None:
        return None
    if metadata is None:
        return TransactionMetadata.initial(new_producer_id, request.timeout_ms, now_ms, request.client)
    return metadata.with_next_producer_id(new_producer_id, None, request.timeout_ms, now_ms, request.client)
