"""A TransactionCoordinatorShard without a log: records are applied at once, and a high watermark is set by tests."""

from collections.abc import Iterable
from typing import Any

from moldau.coordinator.result import CoordinatorResult, Now
from moldau.errors import MoldauError
from moldau.transactions.formats import decode, encode
from moldau.transactions.records import StateRecord, TransactionRecord
from moldau.transactions.requests import (
    BATCH_COMMITTED,
    PRODUCER_ID_NEEDED,
    AddPartitionsRequest,
    EndGroupRequest,
    EndTransactionRequest,
    GroupMember,
    InitGroupMemberRequest,
    InitProducerIdRequest,
    ProducerIdAndEpoch,
    TransactionMarkers,
)
from moldau.transactions.shard import TransactionCoordinatorShard
from moldau.transactions.transaction_metadata import (
    TV0,
    TV2,
    UNKNOWN_CLIENT,
    ProducerClient,
    TopicPartition,
    TransactionMetadata,
)

TIMEOUT_MS = 60_000
DAY_MS = 86_400_000


class ShardHarness:
    def __init__(self, transaction_version: int = TV2, id_expiration_ms: int = 7 * DAY_MS) -> None:
        self.transaction_version = transaction_version
        self.id_expiration_ms = id_expiration_ms
        self.shard = self._new_shard()
        self.now_ms = 1_700_000_000_000
        self.wall_offset_ms = 0
        """How far the wall clock of the coordinator is ahead."""
        self.next_producer_id = 1_000
        self.log: list[list[StateRecord]] = []
        """One list of records per append."""

    def _new_shard(self) -> TransactionCoordinatorShard:
        return TransactionCoordinatorShard(
            id_expiration_ms=self.id_expiration_ms, transaction_version=lambda: self.transaction_version
        )

    @property
    def now(self) -> Now:
        return Now(self.now_ms - 1_600_000_000_000, self.now_ms + self.wall_offset_ms)

    @property
    def end_offset(self) -> int:
        return sum(map(len, self.log))

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def apply(self, result: CoordinatorResult[StateRecord, Any]) -> Any:
        if result.records:
            self.log.append(list(result.records))
            self.shard.apply(result.records, self.end_offset)
        if isinstance(result.response, MoldauError):
            raise result.response
        return result.response

    def put(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Writes a state without an operation."""
        self.apply(CoordinatorResult([TransactionRecord(transactional_id, metadata, self.transaction_version)], None))

    def get(self, transactional_id: str = "t") -> TransactionMetadata:
        metadata = self.shard.get(transactional_id)
        assert metadata is not None
        return metadata

    def reload(self) -> None:
        """Loads the log into a new shard, as the next coordinator does."""
        self.shard = self._new_shard()
        end_offset = 0
        for records in self.log:
            end_offset += len(records)
            loaded = [decode(*encode(record)) for record in records]
            self.shard.apply([each for each in loaded if each is not None], end_offset)

    # Operations

    def init(
        self,
        transactional_id: str = "t",
        expected: tuple[int, int] | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        client: ProducerClient = UNKNOWN_CLIENT,
    ) -> ProducerIdAndEpoch:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            expected=None if expected is None else ProducerIdAndEpoch(*expected),
            client=client,
        )
        response = self.apply(self.shard.init_producer_id(self.now, request))
        if response is PRODUCER_ID_NEEDED:
            response = self.apply(self.shard.init_producer_id(self.now, request, self.new_producer_id()))
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    def add(
        self,
        producer: tuple[int, int],
        *partitions: TopicPartition,
        transactional_id: str = "t",
        client_version: int = TV2,
    ) -> None:
        self.apply(
            self.shard.add_partitions(self.now, _add_request(transactional_id, producer, partitions, client_version))
        )

    def verify(
        self, producer: tuple[int, int], *partitions: TopicPartition, transactional_id: str = "t"
    ) -> dict[TopicPartition, MoldauError | None]:
        request = _add_request(transactional_id, producer, partitions, TV0)
        return dict(self.apply(self.shard.verify_partitions(request)))

    def end(
        self, producer: tuple[int, int], *, commit: bool = True, client_version: int = TV2, transactional_id: str = "t"
    ) -> ProducerIdAndEpoch:
        request = EndTransactionRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            commit=commit,
            client_version=client_version,
        )
        response = self.apply(self.shard.end_transaction(self.now, request))
        if response is PRODUCER_ID_NEEDED:
            response = self.apply(self.shard.end_transaction(self.now, request, self.new_producer_id()))
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    # Transaction groups

    def init_member(
        self, member: str = "0/0", batch_id: int = 0, run_id: str = "r1", group_id: str = "q"
    ) -> ProducerIdAndEpoch | None:
        """Returns None if the batch is committed."""
        request = InitGroupMemberRequest(
            group_id=group_id, batch_id=batch_id, run_id=run_id, member=member, timeout_ms=TIMEOUT_MS
        )
        response = self.apply(self.shard.groups.init_member(self.now, request))
        if response is PRODUCER_ID_NEEDED:
            response = self.apply(self.shard.groups.init_member(self.now, request, self.new_producer_id()))
        if response is BATCH_COMMITTED:
            return None
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    def end_group(
        self,
        *members: tuple[str, tuple[int, int]],
        batch_id: int = 0,
        run_id: str = "r1",
        group_id: str = "q",
        commit: bool = True,
        is_last: bool = False,
    ) -> None:
        request = EndGroupRequest(
            group_id=group_id,
            batch_id=batch_id,
            run_id=run_id,
            commit=commit,
            is_last=is_last,
            members=tuple(GroupMember(member, *producer) for member, producer in members),
        )
        self.apply(self.shard.groups.end(self.now, request))

    def take_markers(self, high_watermark: int | None = None) -> list[TransactionMarkers]:
        return self.shard.take_markers(self.end_offset if high_watermark is None else high_watermark)

    def complete(self) -> list[TransactionMarkers]:
        """Writes all markers, and completes their transactions."""
        taken = self.take_markers()
        for markers in taken:
            self.apply(self.shard.complete_transaction(self.now, markers))
        return taken

    def tick(self) -> None:
        """Handles all timeouts, as the driver does."""
        while (due_ms := self.shard.next_deadline_ms(self.now)) is not None and due_ms <= self.now.monotonic_ms:
            self.apply(self.shard.tick(self.now))
        for transactional_id in self.shard.take_timed_out_and_exhausted():
            self.apply(self.shard.abort_timed_out(self.now, transactional_id, self.new_producer_id()))


def _add_request(
    transactional_id: str, producer: tuple[int, int], partitions: Iterable[TopicPartition], client_version: int
) -> AddPartitionsRequest:
    return AddPartitionsRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        partitions=frozenset(partitions),
        client_version=client_version,
    )
