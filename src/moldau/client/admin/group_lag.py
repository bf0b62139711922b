"""The lag of groups as their coordinators have sampled it, and from committed offsets and ends where they do not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from moldau.client.admin.requester import Results
from moldau.client.errors import KafkaError, raise_for_code
from moldau.client.record import TopicPartition
from moldau.lag.state import LagState, PartitionLag
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

if TYPE_CHECKING:
    from moldau.client.admin.admin import Admin


T = TypeVar("T", int, float)


class PartitionLagSample(NamedTuple):
    partition: TopicPartition
    lag: PartitionLag
    member_id: str | None
    """The member to which the partition is assigned; None if there is none."""
    client_id: str | None
    client_host: str | None


class GroupLagSample(NamedTuple):
    group: str
    state: str
    member_count: int
    interval_ms: int
    """The time between two samples."""
    partitions: tuple[PartitionLagSample, ...]
    age_ms: int | None = None
    """The age of the oldest sample of a partition, in the clock of the coordinator; None if there is none."""


async def request_group_lags(admin: "Admin", node: int | None, groups: Sequence[str]) -> Results[str, GroupLagSample]:
    """Returns the samples of these groups from their coordinator. An empty list means all groups of the node."""
    response = await admin.cluster.call(node, ApiKey.DESCRIBE_GROUP_LAG, {"group_ids": list(groups)})
    raise_for_code(response.error_code, response.error_message)
    results: Results[str, GroupLagSample] = {}
    for each in response.groups:
        if each.error_code:
            results[each.group_id] = KafkaError(each.error_code, each.error_message)
        else:
            partitions = tuple(map(_partition_sample, each.partitions))
            oldest_ms = min((partition.lag.sampled_ms for partition in partitions), default=None)
            results[each.group_id] = GroupLagSample(
                each.group_id,
                each.group_state,
                each.member_count,
                response.interval_ms,
                partitions,
                None if oldest_ms is None else max(0, response.now_ms - oldest_ms),
            )
    return results


def _known(value: T) -> T | None:
    return None if value < 0 else value


def _partition_sample(found: Message) -> PartitionLagSample:
    lag = PartitionLag(
        sampled_ms=found.sampled_ms,
        state=LagState(found.state),
        committed_offset=found.committed_offset,
        commit_timestamp_ms=found.commit_timestamp_ms,
        high_watermark=_known(found.high_watermark),
        last_stable_offset=_known(found.last_stable_offset),
        log_start_offset=_known(found.log_start_offset),
        is_read_committed=found.is_read_committed,
        lag_records=_known(found.lag_records),
        lag_ms=_known(found.lag_ms),
        is_append_time=found.is_append_time,
        commit_rate=_known(found.commit_rate),
        produce_rate=_known(found.produce_rate),
    )
    partition = TopicPartition(found.topic, found.partition_index)
    return PartitionLagSample(partition, lag, found.member_id, found.client_id, found.client_host)
