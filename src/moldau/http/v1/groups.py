"""`/v1/groups`: lists, describes and deletes groups, with their lag, and resets their committed offsets."""

from math import isfinite
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import Field, model_validator

from moldau.client.admin.admin import Admin
from moldau.client.admin.group_lag import PartitionLagSample
from moldau.client.admin.group_offsets import OffsetReset, describe_group_lag, plan_offset_reset
from moldau.client.admin.requester import single_result
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition
from moldau.http.body import json_body
from moldau.http.v1.errors import BODY_ERRORS, CONFLICT, ErrorView, view_error
from moldau.http.v1.fields import Body, GroupPath, IsolationLevel, TopicName, View, request_body
from moldau.http.v1.state import State
from moldau.settings.registry import LONG_MAX

router = APIRouter(tags=["groups"])


class GroupView(View):
    group: str
    state: str
    type: str
    """`classic` or `consumer`."""
    protocol_type: str


class GroupList(View):
    groups: list[GroupView]


class GroupMemberView(View):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: list[str]


class GroupPartitionView(View):
    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int | None
    """The high watermark, or the last stable offset for read_committed; null if the partition does not exist or has no
    leader."""
    lag: int | None
    member_id: str | None
    """The member to which the partition is assigned."""


class GroupDescriptionView(View):
    group: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[GroupMemberView]
    partitions: list[GroupPartitionView]
    total_lag: int | None
    """Null if the lag of a partition is unknown because it has no leader."""


class GroupPartitionLagView(View):
    topic: str
    partition: int
    time_ms: int
    """When the lag was sampled, in milliseconds since 1970."""
    state: str
    """`ok`, `falling_behind`, `stalled`, `stopped`, `rewound` or `lost_records`; `no_leader` or `unknown` if the leader
    is missing or did not respond."""
    isolation_level: str
    """How the consumers of the group read, as far as the cluster has seen."""
    committed_offset: int
    high_watermark: int | None
    """Null without a response of the leader, as are the other ends and the lag."""
    last_stable_offset: int | None
    log_start_offset: int | None
    lag_records: int | None
    lag_ms: int | None
    """The age of the first unread record; 0 if there is none, null if it is unknown."""
    commit_rate: float | None
    """Offsets per second; null before the second sample."""
    produce_rate: float | None
    catch_up_seconds: float | None
    """The estimated time until the lag is 0; null if it is unknown or the lag does not shrink."""
    member_id: str | None
    client_id: str | None
    client_host: str | None


class GroupLagView(View):
    group: str
    state: str
    interval_ms: int
    """The time between two samples."""
    partitions: list[GroupPartitionLagView]


class ResetOffsetsBody(Body):
    topics: list[TopicName] = Field(min_length=1, max_length=100)
    """The topics whose committed offsets are reset, with all their partitions."""
    to: Literal["earliest", "latest", "offset", "time", "shift"]
    """Where to. `offset`, `time` and `shift` need a `value`."""
    value: Annotated[int, Field(ge=-LONG_MAX, le=LONG_MAX)] | None = None
    """The offset, the time in milliseconds since 1970, or the number of records to shift by (negative: back)."""
    dry_run: bool = True
    """Only return the changes. Nothing is changed unless this is false."""

    @model_validator(mode="after")
    def _check_value(self) -> "ResetOffsetsBody":
        needs_value = self.to in ("offset", "time", "shift")
        if needs_value != (self.value is not None):
            raise ValueError(f"`value` is {'required' if needs_value else 'not allowed'} with to={self.to}")
        if self.value is not None and self.value < 0 and self.to != "shift":
            raise ValueError("`value` must not be negative")
        return self


class OffsetChangeView(View):
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    error: ErrorView | None = None
    """Why the offset was not changed."""


class OffsetChanges(View):
    dry_run: bool
    changes: list[OffsetChangeView]


@router.get("/groups", summary="List groups")
async def list_groups(state: State) -> GroupList:
    groups = await (await state.client.admin()).list_groups()
    return GroupList(
        groups=[
            GroupView(group=each.group_id, state=each.state, type=each.type, protocol_type=each.protocol_type)
            for each in groups
        ]
    )


@router.get("/groups/{group}", summary="Describe a group and its lag")
async def describe_group(
    state: State, group: GroupPath, isolation_level: IsolationLevel = "read_uncommitted"
) -> GroupDescriptionView:
    """Returns members, committed offsets and lag. `isolation_level` says how the consumers of the group read."""
    description, committed, ends = await describe_group_lag(await state.client.admin(), group)
    end_offsets = ends.last_stable_offsets if isolation_level == "read_committed" else ends.high_watermarks
    owners = {each: member.member_id for member in description.members for each in member.assignment}
    partitions = []
    for each in sorted({**committed, **owners}):
        offset, end = committed[each].offset if each in committed else None, end_offsets.get(each)
        partitions.append(
            GroupPartitionView(
                topic=each.topic,
                partition=each.partition,
                committed_offset=offset,
                end_offset=end,
                lag=None if offset is None or end is None else max(0, end - offset),
                member_id=owners.get(each),
            )
        )
    return GroupDescriptionView(
        group=group,
        state=description.state,
        protocol_type=description.protocol_type,
        assignor=description.assignor,
        coordinator=description.coordinator,
        members=[
            GroupMemberView(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                topics=list(each.topics),
            )
            for each in description.members
        ],
        partitions=partitions,
        total_lag=None if ends.without_leader & committed.keys() else sum(each.lag or 0 for each in partitions),
    )


@router.get("/groups/{group}/lag", summary="Get the lag of a group in records and seconds")
async def describe_lag(state: State, group: GroupPath) -> GroupLagView:
    """Returns the latest sample of the group's coordinator. The lag is that of `/metrics`."""
    sample = single_result(await (await state.client.admin()).describe_group_lags([group]))
    return GroupLagView(
        group=group,
        state=sample.state,
        interval_ms=sample.interval_ms,
        partitions=[_partition_lag_view(each) for each in sample.partitions],
    )


def _partition_lag_view(sample: PartitionLagSample) -> GroupPartitionLagView:
    lag = sample.lag
    left_s = lag.catch_up_s
    return GroupPartitionLagView(
        topic=sample.partition.topic,
        partition=sample.partition.partition,
        time_ms=lag.sampled_ms,
        state=lag.state,
        isolation_level="read_committed" if lag.is_read_committed else "read_uncommitted",
        committed_offset=lag.committed_offset,
        high_watermark=lag.high_watermark,
        last_stable_offset=lag.last_stable_offset,
        log_start_offset=lag.log_start_offset,
        lag_records=lag.lag_records,
        lag_ms=lag.lag_ms,
        commit_rate=lag.commit_rate,
        produce_rate=lag.produce_rate,
        catch_up_seconds=None if left_s is None or not isfinite(left_s) else left_s,
        member_id=sample.member_id,
        client_id=sample.client_id,
        client_host=sample.client_host,
    )


@router.delete("/groups/{group}", status_code=204, summary="Delete a group without members", responses=CONFLICT)
async def delete_group(state: State, group: GroupPath) -> Response:
    await (await state.client.admin()).delete_group(group)
    return Response(status_code=204)


@router.post(
    "/groups/{group}/offsets/reset",
    summary="Reset committed offsets",
    responses={**CONFLICT, **BODY_ERRORS},
    openapi_extra=request_body(ResetOffsetsBody, {"topics": ["orders"], "to": "earliest", "dry_run": True}),
)
async def reset_offsets(
    state: State, group: GroupPath, body: Annotated[ResetOffsetsBody, Depends(json_body(ResetOffsetsBody))]
) -> OffsetChanges:
    """Returns the changes, and makes them if `dry_run` is false. The group must have no members then."""
    admin = await state.client.admin()
    topics = [await state.find_topic(name) for name in dict.fromkeys(body.topics)]
    partitions = [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]
    plan = await plan_offset_reset(admin, group, partitions, OffsetReset(body.to, body.value or 0))
    errors: dict[TopicPartition, KafkaError] = {}
    if plan and not body.dry_run:
        await _require_no_members(admin, group)
        results = await admin.alter_group_offsets(group, {each: change.new for each, change in plan.items()})
        errors = {each: error for each, error in results.items() if isinstance(error, KafkaError)}
        if len(errors) == len(plan):
            raise _reset_error(group, next(iter(errors.values())))
    return OffsetChanges(
        dry_run=body.dry_run,
        changes=[
            OffsetChangeView(
                topic=each.topic,
                partition=each.partition,
                current_offset=change.current,
                new_offset=change.new,
                error=ErrorView.model_validate(view_error(errors[each])) if each in errors else None,
            )
            for each, change in plan.items()
        ],
    )


async def _require_no_members(admin: Admin, group: str) -> None:
    try:
        description = await admin.describe_group(group)
    except KafkaError as error:
        if error.code is ErrorCode.group_id_not_found:
            return
        raise
    if description.members:
        raise _has_members(group)


def _reset_error(group: str, error: KafkaError) -> KafkaError:
    # Brokers respond with this code to a commit without a member id if the group has members.
    return _has_members(group) if error.code is ErrorCode.unknown_member_id else error


def _has_members(group: str) -> KafkaError:
    return KafkaError(ErrorCode.non_empty_group, f"group {group} has members: stop them before a reset")
