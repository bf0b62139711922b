"""What a consumer tells its user besides the errors of brokers."""

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition


class CommitFailedError(KafkaError):
    """The group has gone on without this consumer: others have its partitions and will read again what it could
    not commit. The next poll joins again."""


class RebalanceInProgressError(KafkaError):
    """The group is between two generations. Poll until the rebalance is over, then commit what is still
    assigned."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.rebalance_in_progress, message)


class NoOffsetForPartitionError(KafkaError):
    """There is nothing to go on from, and auto_offset_reset="none" says not to guess."""

    def __init__(self, partitions: list[TopicPartition], why: str) -> None:
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"{why} for {', '.join(map(str, partitions))}, and auto_offset_reset is 'none': seek, or commit an "
            "offset",
        )
        self.partitions = partitions
