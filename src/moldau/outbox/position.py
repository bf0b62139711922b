"""The position of an outbox in Kafka: the last batch that was committed, in the batch's own transaction.

It is the committed offset of a consumer group for a topic that stays empty, so any Kafka can store it. The offset is
the number of the batch, and its metadata is the token of the batch.
"""

from typing import NamedTuple

from moldau.client.admin.admin import Admin
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.producer.transaction import Transaction
from moldau.client.record import TopicPartition

POSITION_TOPIC = "moldau.outbox.positions"
_PARTITION = TopicPartition(POSITION_TOPIC, 0)


class SentBatch(NamedTuple):
    number: int
    token: str
    """Random for each batch: copies of a database can have batches with the same number, but not with the same
    token."""


class OutboxPosition:
    def __init__(self, cluster: Cluster, name: str) -> None:
        """`name` is the group, which is also the transactional id."""
        self._cluster = cluster
        self._name = name

    async def create_topic(self) -> None:
        """Creates the topic of the positions if it does not exist."""
        try:
            await self._cluster.refresh([POSITION_TOPIC])
            if POSITION_TOPIC in self._cluster.topics:
                return
            await Admin(self._cluster).create_topic(POSITION_TOPIC, 1)
        except KafkaError as error:
            if error.code != ErrorCode.topic_already_exists:
                raise
        await self._cluster.wait_for_topics([POSITION_TOPIC])

    async def read(self) -> SentBatch | None:
        """Returns the last committed batch; None if Kafka knows none. Waits for an open transaction of it."""
        committed = await GroupOffsets(self._cluster, self._name).committed([_PARTITION], require_stable=True)
        found = committed.get(_PARTITION)
        return None if found is None else SentBatch(found.offset, found.metadata)

    async def send(self, transaction: Transaction, batch: SentBatch) -> None:
        await transaction.send_offsets({_PARTITION: OffsetAndMetadata(batch.number, batch.token)}, self._name)
