"""The topic `__consumer_offsets`, which stores groups and committed offsets."""

from moldau.controller.requests import NewTopic
from moldau.settings.broker import BrokerSettings

OFFSETS_TOPIC = "__consumer_offsets"


def new_offsets_topic(settings: BrokerSettings) -> NewTopic:
    return NewTopic(
        OFFSETS_TOPIC,
        settings.offsets_topic_num_partitions,
        settings.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        },
    )
