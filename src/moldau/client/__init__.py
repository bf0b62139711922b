"""Moldau's asyncio client, for any Kafka-compatible cluster: admin, producer, raw fetcher and group consumer.

    from moldau.client import Admin, Consumer, Producer

What is not used is not loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin
    from moldau.client.consumer.consumer import Consumer
    from moldau.client.consumer.errors import (
        CommitFailedError,
        NoOffsetForPartitionError,
        RebalanceInProgressError,
    )
    from moldau.client.consumer.fetcher import Fetcher
    from moldau.client.consumer.subscription_state import OffsetAndMetadata
    from moldau.client.errors import (
        AuthenticationError,
        ClientClosedError,
        ConnectionLostError,
        ErrorCode,
        IllegalStateError,
        KafkaError,
        RequestTimedOutError,
    )
    from moldau.client.net.cluster import Cluster
    from moldau.client.producer.producer import Producer, RecordMetadata
    from moldau.client.record import ConsumerRecord, TopicPartition
    from moldau.client.security.config import Security

__all__ = [
    "Admin",
    "AuthenticationError",
    "ClientClosedError",
    "Cluster",
    "CommitFailedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerRecord",
    "ErrorCode",
    "Fetcher",
    "IllegalStateError",
    "KafkaError",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "Producer",
    "RebalanceInProgressError",
    "RecordMetadata",
    "RequestTimedOutError",
    "Security",
    "TopicPartition",
]

_HOMES = {
    "Admin": "moldau.client.admin.admin",
    "AuthenticationError": "moldau.client.errors",
    "ClientClosedError": "moldau.client.errors",
    "Cluster": "moldau.client.net.cluster",
    "CommitFailedError": "moldau.client.consumer.errors",
    "ConnectionLostError": "moldau.client.errors",
    "Consumer": "moldau.client.consumer.consumer",
    "ConsumerRecord": "moldau.client.record",
    "ErrorCode": "moldau.client.errors",
    "Fetcher": "moldau.client.consumer.fetcher",
    "IllegalStateError": "moldau.client.errors",
    "KafkaError": "moldau.client.errors",
    "NoOffsetForPartitionError": "moldau.client.consumer.errors",
    "OffsetAndMetadata": "moldau.client.consumer.subscription_state",
    "Producer": "moldau.client.producer.producer",
    "RebalanceInProgressError": "moldau.client.consumer.errors",
    "RecordMetadata": "moldau.client.producer.producer",
    "RequestTimedOutError": "moldau.client.errors",
    "Security": "moldau.client.security.config",
    "TopicPartition": "moldau.client.record",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
