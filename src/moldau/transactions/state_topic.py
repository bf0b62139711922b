"""The topic `__transaction_state`, which stores transactions."""

from moldau.controller.requests import NewTopic
from moldau.settings.broker import BrokerSettings

TRANSACTION_STATE_TOPIC = "__transaction_state"


def new_transaction_state_topic(settings: BrokerSettings) -> NewTopic:
    return NewTopic(
        TRANSACTION_STATE_TOPIC,
        settings.transaction_state_log_num_partitions,
        settings.transaction_state_log_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings.transaction_state_log_min_isr),
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
