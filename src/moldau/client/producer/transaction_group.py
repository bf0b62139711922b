"""Transaction groups: the transactions of several producers, in several processes, that one process commits together.

Only Moldau's brokers have them. Each batch of a group has members. A member gets a producer, writes, and passes its
`GroupMember` to the process that commits the batch. The commit makes the records of all listed members visible and
aborts all others. The brokers remember the last committed batch, so a batch that is repeated is not written again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moldau.client.errors import ErrorCode, raise_for_code
from moldau.client.net.cluster import TRANSACTION, Cluster
from moldau.client.producer.producer import Producer
from moldau.client.producer.producer_batch import ProducerIdAndEpoch
from moldau.client.producer.transaction import COORDINATOR_BACKOFF_MS
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.transaction_group_id import group_coordinator_key, member_transactional_id


class GroupMember(NamedTuple):
    """The transaction of a member, in which all records are acknowledged."""

    member: str
    producer_id: int
    producer_epoch: int


class MemberProducer:
    """The producer of one member in one batch. Call `finish` or `abort`."""

    def __init__(self, member: str, identity: ProducerIdAndEpoch, producer: Producer) -> None:
        self.producer = producer
        self._member = member
        self._identity = identity

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Commits offsets of a consumer group if and when the transaction commits."""
        await self.producer.send_member_offsets(offsets, group_id)

    async def finish(self) -> GroupMember:
        """Waits until all records are acknowledged, and closes the producer. The transaction stays open.

        Raises TransactionAbortableError if a record was not written.
        """
        try:
            await self.producer.flush()
            self.producer.check_member_transaction()
        finally:
            await self.producer.abort()
        return GroupMember(self._member, self._identity.producer_id, self._identity.epoch)

    async def abort(self, *, timeout_ms: int) -> None:
        """Aborts the transaction and closes the producer."""
        await self.producer.close(timeout_ms=timeout_ms)


class TransactionGroup:
    def __init__(
        self, cluster: Cluster, group_id: str, run_id: str, *, transaction_timeout_ms: int, max_block_ms: int = 60_000
    ) -> None:
        """`run_id` identifies this start of the writer. When a later run begins, the brokers refuse this one. The
        transactions of a batch must be committed within `transaction_timeout_ms` after their first record."""
        self._cluster = cluster
        self._group_id = group_id
        self._run_id = run_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._max_block_ms = max_block_ms

    @staticmethod
    async def is_supported(cluster: Cluster) -> bool:
        connection = await cluster.connection(None)
        return ApiKey.INIT_TXN_GROUP_MEMBER in connection.versions

    async def start_member(self, batch_id: int, member: str, **settings: Any) -> MemberProducer | None:
        """Returns a producer in a new transaction; None if the batch is committed already.

        `settings` are those of `Producer`. Raises KafkaError with PRODUCER_FENCED if a later run has begun, and with
        INVALID_TXN_STATE if a later batch is committed.
        """
        tree = {**self._tree(batch_id), "member": member, "transaction_timeout_ms": self._transaction_timeout_ms}
        response = await self._call(
            ApiKey.INIT_TXN_GROUP_MEMBER, tree, f"starting the transaction of {member!r} in batch {batch_id}"
        )
        if response.is_committed:
            return None
        identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        producer = Producer(self._cluster, transactional_id=member_transactional_id(self._group_id, member), **settings)
        await producer.start_member_transaction(identity)
        return MemberProducer(member, identity, producer)

    async def commit(self, batch_id: int, members: Sequence[GroupMember], *, is_last: bool = False) -> None:
        """Commits the transactions of these members and aborts all others. Succeeds if the batch is committed already.

        `is_last` says that no batch will follow, so that brokers may forget the group after a week. Raises KafkaError
        if a transaction is not open any more; then none is committed. After RequestTimedOutError the outcome is
        unknown; call this method again.
        """
        await self._end(batch_id, members, committed=True, is_last=is_last)

    async def abort(self, batch_id: int) -> None:
        """Aborts all transactions and ends this run, unless the batch is committed."""
        await self._end(batch_id, (), committed=False, is_last=False)

    async def _end(self, batch_id: int, members: Sequence[GroupMember], *, committed: bool, is_last: bool) -> None:
        tree = {
            **self._tree(batch_id),
            "committed": committed,
            "is_last": is_last,
            "members": [each._asdict() for each in members],
        }
        await self._call(ApiKey.END_TXN_GROUP, tree, f"the {'commit' if committed else 'abort'} of batch {batch_id}")

    def _tree(self, batch_id: int) -> dict[str, Any]:
        return {"group_id": self._group_id, "batch_id": batch_id, "run_id": self._run_id}

    async def _call(self, api: ApiKey, tree: dict[str, Any], request: str) -> Message:
        return await self._cluster.call_coordinator(
            group_coordinator_key(self._group_id),
            api,
            tree,
            _parse(request),
            self._max_block_ms,
            kind=TRANSACTION,
            backoff_ms=COORDINATOR_BACKOFF_MS,
        )


def _parse(request: str) -> Callable[[Message], Message]:
    def parse(response: Message) -> Message:
        if response.error_code != ErrorCode.none:
            detail = response.error_message
            raise_for_code(response.error_code, f"{request}: {detail}" if detail else request)
        return response

    return parse
