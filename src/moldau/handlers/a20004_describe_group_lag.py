"""DescribeGroupLag: returns the latest sample of the lag of groups (an API of Moldau).

Only the coordinator of a group has samples; another broker returns NOT_COORDINATOR. An empty list of groups means all
groups of the broker; while some are loading, the error is COORDINATOR_LOAD_IN_PROGRESS, as with ListGroups. Partitions
that were not sampled yet are sampled now. Unknown offsets, lags, times and rates are -1. The member is the one to which
the partition is assigned.
"""

from collections.abc import Mapping
from typing import TypeVar

from moldau.concurrency.time_slice import TimeSlice
from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError, NotCoordinatorError
from moldau.groups.records import MemberMetadataValue
from moldau.groups.requests import GroupDescription, TopicPartition
from moldau.lag.sampler import LagSampler
from moldau.lag.state import PartitionLag
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from moldau.wire.messages import (
    DescribeGroupLagRequest,
    DescribeGroupLagResponse,
    DescribeGroupLagResponseGroupLagSample,
    DescribeGroupLagResponsePartitionLagSample,
)

T = TypeVar("T", int, float)

UNKNOWN = -1


@handles(versions=(0, 0), error_response=top_level_error)
async def describe_group_lag(
    request: DescribeGroupLagRequest, session: RequestContext, broker: Broker
) -> DescribeGroupLagResponse:
    sampler = broker.lag_sampler
    sampler.request()
    group_ids = list(dict.fromkeys(request.group_ids))
    if not group_ids:
        # Raises an error while groups are loading, which would be missing in the response.
        group_ids = [each.group_id for each in await broker.groups.list_groups()]
    time_slice = TimeSlice(broker.platform.clock)
    for group_id in group_ids:
        if not sampler.has_sampled(group_id):
            await sampler.wait_for_sample()
            break
        await time_slice.yield_if_used()
    groups = []
    for group_id in group_ids:
        groups.append(await _group_response(broker, sampler, group_id))
        await time_slice.yield_if_used()
    return {"interval_ms": sampler.interval_ms, "now_ms": broker.platform.clock.wall_ms(), "groups": groups}


async def _group_response(broker: Broker, sampler: LagSampler, group_id: str) -> DescribeGroupLagResponseGroupLagSample:
    try:
        description = await broker.groups.describe(group_id)
        sample = sampler.read(group_id)
        if sample is None:
            raise NotCoordinatorError(f"this node has stopped coordinating {group_id!r}")
    except MoldauError as error:
        return {"group_id": group_id, "error_code": error_code(error), "error_message": error_message(error)}
    owners = _owners(description)
    return {
        "group_id": group_id,
        "group_state": str(description.state),
        "member_count": len(description.members),
        "partitions": [
            _partition_response(partition, tracker.lag, owners)
            for partition, tracker in sorted(sample.partitions.items(), key=lambda each: each[0])
            if tracker.lag is not None
        ],
    }


def _or_unknown(value: T | None) -> T | int:
    return UNKNOWN if value is None else value


def _owners(description: GroupDescription) -> dict[TopicPartition, MemberMetadataValue]:
    """Returns the member to which each partition is assigned."""
    owners: dict[TopicPartition, MemberMetadataValue] = {}
    if description.protocol_type == PROTOCOL_TYPE:
        for member in description.members:
            try:
                owners.update((partition, member) for partition in decode_assignment(member.assignment).partitions)
            except DecodeError:
                # The assignment was made by a client with another format.
                continue
    return owners


def _partition_response(
    partition: TopicPartition, lag: PartitionLag, owners: Mapping[TopicPartition, MemberMetadataValue]
) -> DescribeGroupLagResponsePartitionLagSample:
    owner = owners.get(partition)
    return {
        "topic": partition[0],
        "partition_index": partition[1],
        "sampled_ms": lag.sampled_ms,
        "state": str(lag.state),
        "committed_offset": lag.committed_offset,
        "high_watermark": _or_unknown(lag.high_watermark),
        "last_stable_offset": _or_unknown(lag.last_stable_offset),
        "log_start_offset": _or_unknown(lag.log_start_offset),
        "is_read_committed": lag.is_read_committed,
        "lag_records": _or_unknown(lag.lag_records),
        "lag_ms": _or_unknown(lag.lag_ms),
        "is_append_time": lag.is_append_time,
        "commit_rate": _or_unknown(lag.commit_rate),
        "produce_rate": _or_unknown(lag.produce_rate),
        "commit_timestamp_ms": lag.commit_timestamp_ms,
        "member_id": None if owner is None else owner.member_id,
        "client_id": None if owner is None else owner.client_id,
        "client_host": None if owner is None else owner.client_host,
    }
