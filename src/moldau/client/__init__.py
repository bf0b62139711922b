"""Asyncio client for any Kafka-compatible cluster: admin, producer, fetcher and group consumer.

    from moldau.client import Admin, Consumer, Producer

Modules are imported on first use of their names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin
    from moldau.client.consume_transform_produce import exactly_once
    from moldau.client.consumer.consumer import Consumer
    from moldau.client.consumer.fetcher import Fetcher
    from moldau.client.consumer.subscription_state import OffsetAndMetadata
    from moldau.client.errors import (
        AuthenticationError,
        ClientClosedError,
        CommitFailedError,
        ConnectionLostError,
        ErrorCode,
        IllegalStateError,
        KafkaError,
        NoOffsetForPartitionError,
        ProducerFencedError,
        RebalanceInProgressError,
        RequestTimedOutError,
        TransactionAbortableError,
    )
    from moldau.client.group.assignors import ConsumerPartitionAssignor
    from moldau.client.group.sticky_assignment import SubscribedMember
    from moldau.client.listener.dead_letters import DeadLetterTopic
    from moldau.client.listener.record_listener import AckMode, Acknowledgement, HandlerFailedError, RecordListener
    from moldau.client.net.cluster import Cluster
    from moldau.client.producer.producer import Producer, RecordMetadata
    from moldau.client.producer.transaction import Transaction
    from moldau.client.record import ConsumerRecord, TopicPartition
    from moldau.client.security.config import Security

__all__ = [
    "AckMode",
    "Acknowledgement",
    "Admin",
    "AuthenticationError",
    "ClientClosedError",
    "Cluster",
    "CommitFailedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerPartitionAssignor",
    "ConsumerRecord",
    "DeadLetterTopic",
    "ErrorCode",
    "Fetcher",
    "HandlerFailedError",
    "IllegalStateError",
    "KafkaError",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "Producer",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordListener",
    "RecordMetadata",
    "RequestTimedOutError",
    "Security",
    "SubscribedMember",
    "TopicPartition",
    "Transaction",
    "TransactionAbortableError",
    "exactly_once",
]

_MODULES = {
    "AckMode": "moldau.client.listener.record_listener",
    "Acknowledgement": "moldau.client.listener.record_listener",
    "Admin": "moldau.client.admin.admin",
    "Cluster": "moldau.client.net.cluster",
    "Consumer": "moldau.client.consumer.consumer",
    "ConsumerPartitionAssignor": "moldau.client.group.assignors",
    "ConsumerRecord": "moldau.client.record",
    "DeadLetterTopic": "moldau.client.listener.dead_letters",
    "Fetcher": "moldau.client.consumer.fetcher",
    "HandlerFailedError": "moldau.client.listener.record_listener",
    "OffsetAndMetadata": "moldau.client.consumer.subscription_state",
    "Producer": "moldau.client.producer.producer",
    "RecordListener": "moldau.client.listener.record_listener",
    "RecordMetadata": "moldau.client.producer.producer",
    "Security": "moldau.client.security.config",
    "SubscribedMember": "moldau.client.group.sticky_assignment",
    "TopicPartition": "moldau.client.record",
    "Transaction": "moldau.client.producer.transaction",
    "exactly_once": "moldau.client.consume_transform_produce",
}
"""The module of each exported name. Names that are missing here are in `moldau.client.errors`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "moldau.client.errors")), name)
