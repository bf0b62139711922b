"""Admin requests for consumer groups and their committed offsets; `Admin` documents them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.client.admin.requester import AdminRequester, Results, single_result, to_error
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.group.offsets import GroupOffsets, parse_partition_errors
from moldau.client.net.cluster import Retry
from moldau.client.record import TopicPartition, group_by_topic
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription

_GROUP_TYPES_VERSION_MIN = 5
"""The first version of ListGroups with group types."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """`consumer`, another type such as `connect`, or empty for a group that only has offsets."""
    state: str
    type: str
    """`classic` or `consumer`; empty if the broker did not return it."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """The subscribed topics; empty if unknown or if the member is not a consumer."""
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    """The protocol that the group selected; for consumers the name of the assignor."""
    members: tuple[MemberDescription, ...]
    coordinator: int


class MemberToRemove(NamedTuple):
    """A member to remove, identified by its member id or only by its instance id."""

    member_id: str = ""
    instance_id: str | None = None


async def list_groups(admin: AdminRequester, states: Iterable[str], types: Iterable[str]) -> list[GroupListing]:
    tree = {"states_filter": list(states), "types_filter": list(types)}

    async def request_node(node: int | None, _: list[int], retry: Retry) -> Results[int, list[GroupListing]]:
        response = await admin.cluster.call(node, ApiKey.LIST_GROUPS, tree)
        if tree["types_filter"] and response.api_version < _GROUP_TYPES_VERSION_MIN:
            raise KafkaError(ErrorCode.unsupported_version, "the broker does not support listing groups by type")
        raise_for_code(response.error_code)
        assert node is not None
        return {
            node: [
                GroupListing(each.group_id, each.protocol_type, each.group_state, each.get("group_type", ""))
                for each in response.groups
            ]
        }

    async def request(remaining: list[int], retry: Retry) -> Results[int, list[GroupListing]]:
        return await admin.by_node({node: node for node in remaining}, request_node, retry)

    async def refresh(retry: Retry) -> None:
        await admin.cluster.refresh()

    await admin.with_retries(refresh)
    groups: dict[str, GroupListing] = {}
    for result in (await admin.for_each(admin.cluster.brokers, request)).values():
        if isinstance(result, KafkaError):
            raise result
        groups |= {each.group_id: each for each in result}
    return sorted(groups.values())


async def describe_groups(admin: AdminRequester, groups: Iterable[str]) -> Results[str, GroupDescription]:
    async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, GroupDescription]:
        tree = {"groups": remaining, "include_authorized_operations": False}
        response = await admin.cluster.call(node, ApiKey.DESCRIBE_GROUPS, tree)
        assert node is not None
        return {each.group_id: _parse_group(each, node) for each in response.groups}

    return await admin.for_each_group(groups, request)


async def delete_groups(admin: AdminRequester, groups: Iterable[str]) -> Results[str, None]:
    async def request(node: int | None, remaining: list[str], retry: Retry) -> Results[str, None]:
        response = await admin.cluster.call(node, ApiKey.DELETE_GROUPS, {"groups_names": remaining})
        return {each.group_id: to_error(each.error_code, f"the group {each.group_id!r}") for each in response.results}

    return await admin.for_each_group(groups, request)


async def list_group_offsets(
    admin: AdminRequester, group: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    offsets = GroupOffsets(admin.cluster, group)
    return await offsets.committed(partitions, require_stable=False, timeout_ms=admin.timeout_ms)


async def alter_group_offsets(
    admin: AdminRequester, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> Results[TopicPartition, None]:
    commits = {
        partition: OffsetAndMetadata(given) if isinstance(given, int) else given for partition, given in offsets.items()
    }
    return await GroupOffsets(admin.cluster, group).commit_each(commits, timeout_ms=admin.timeout_ms)


async def delete_group_offsets(
    admin: AdminRequester, group: str, partitions: Iterable[TopicPartition]
) -> Results[TopicPartition, None]:
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in group_by_topic(list(partitions)).items()
    ]

    async def request(node: int, timeout_ms: int) -> Results[TopicPartition, None]:
        tree = {"group_id": group, "topics": topics}
        response = await admin.cluster.call(node, ApiKey.OFFSET_DELETE, tree, timeout_ms=timeout_ms)
        raise_for_code(response.error_code, f"the group {group!r}")
        return parse_partition_errors(response)

    return await admin.to_coordinator(group, request)


async def remove_members(
    admin: AdminRequester, group: str, members: Iterable[MemberToRemove] | None, reason: str
) -> Results[MemberToRemove, None]:
    if members is None:
        described = single_result(await describe_groups(admin, [group]))
        members = [MemberToRemove(each.member_id, each.instance_id) for each in described.members]
    leaving = list(members)
    if not leaving:
        return {}
    tree = {
        "group_id": group,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "reason": reason or None}
            for each in leaving
        ],
    }

    async def request(node: int, timeout_ms: int) -> Results[MemberToRemove, None]:
        response = await admin.cluster.call(node, ApiKey.LEAVE_GROUP, tree, timeout_ms=timeout_ms)
        raise_for_code(response.error_code, f"the group {group!r}")
        # Match by position, because the response may have a member id where the request had only an instance id.
        return {
            member: to_error(each.error_code, f"{member.instance_id or member.member_id}")
            for member, each in zip(leaving, response.members, strict=True)
        }

    return await admin.to_coordinator(group, request)


def _parse_group(group: Message, node: int) -> GroupDescription | KafkaError:
    error = to_error(group.error_code, group.get("error_message") or f"the group {group.group_id!r}")
    if error is not None:
        return error
    if group.group_state == "Dead":
        # Before version 6, brokers report a missing group in this way.
        return KafkaError(ErrorCode.group_id_not_found, f"the group {group.group_id!r}")
    is_consumers = group.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(_parse_member(each, is_consumers) for each in group.members),
        node,
    )


def _parse_member(member: Message, is_consumer: bool) -> MemberDescription:
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if is_consumer:
        try:
            # The metadata can be empty, for example while members join.
            if member.member_metadata:
                topics = decode_subscription(member.member_metadata).topics
            partitions = decode_assignment(member.member_assignment).partitions
            assignment = tuple(TopicPartition(*each) for each in partitions)
        except DecodeError:
            # Other clients may use another format. Return the member without the data that cannot be decoded.
            pass
    return MemberDescription(
        member.member_id, member.get("group_instance_id"), member.client_id, member.client_host, topics, assignment
    )
