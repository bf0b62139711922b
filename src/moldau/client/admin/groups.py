"""The admin client's part for consumer groups: who is in them, what they have committed, and putting that right."""

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
"""The first version of ListGroups that knows of types."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """`consumer`, what else uses groups (`connect`), or empty for a group that only has offsets."""
    state: str
    type: str
    """`classic` or `consumer`; empty where the broker does not say."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """What it subscribes to; empty where that is not told or no consumer's."""
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    """The protocol the members agreed on: for consumers the name of an assignor."""
    members: tuple[MemberDescription, ...]
    coordinator: int


class MemberToRemove(NamedTuple):
    """By member id, or by instance id alone."""

    member_id: str = ""
    instance_id: str | None = None


class GroupAdmin(AdminRequester):
    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers by name, if wanted only those of some states or types.

        Raises KafkaError when a broker cannot be asked: a list that is not whole would look whole.
        """
        tree = {"states_filter": list(states), "types_filter": list(types)}

        async def ask_node(node: int | None, _: list[int], retry: Retry) -> Results[int, list[GroupListing]]:
            answer = await self._cluster.call(node, ApiKey.LIST_GROUPS, tree)
            if tree["types_filter"] and answer.api_version < _GROUP_TYPES_VERSION_MIN:
                raise KafkaError(ErrorCode.unsupported_version, "the broker cannot list groups by type")
            raise_for_code(answer.error_code)
            assert node is not None
            return {
                node: [
                    GroupListing(
                        each.group_id, each.protocol_type, each.group_state, each.get("group_type", "")
                    )
                    for each in answer.groups
                ]
            }

        async def ask(left: list[int], retry: Retry) -> Results[int, list[GroupListing]]:
            return await self.call_by_node({node: node for node in left}, ask_node, retry)

        async def refresh(retry: Retry) -> None:
            await self._cluster.refresh()

        await self.call_once(refresh)
        found: dict[str, GroupListing] = {}
        for result in (await self.call_for_each(self._cluster.brokers, ask)).values():
            if isinstance(result, KafkaError):
                raise result
            found |= {each.group_id: each for each in result}
        return sorted(found.values())

    async def describe_groups(self, groups: Iterable[str]) -> Results[str, GroupDescription]:
        """A group that does not exist is GROUP_ID_NOT_FOUND."""

        async def ask(node: int | None, left: list[str], retry: Retry) -> Results[str, GroupDescription]:
            tree = {"groups": left, "include_authorized_operations": False}
            answer = await self._cluster.call(node, ApiKey.DESCRIBE_GROUPS, tree)
            assert node is not None
            return {each.group_id: _parse_group(each, node) for each in answer.groups}

        return await self.call_for_each_group(groups, ask)

    async def describe_group(self, group: str) -> GroupDescription:
        return single_result(await self.describe_groups([group]))

    async def delete_groups(self, groups: Iterable[str]) -> Results[str, None]:
        async def ask(node: int | None, left: list[str], retry: Retry) -> Results[str, None]:
            answer = await self._cluster.call(node, ApiKey.DELETE_GROUPS, {"groups_names": left})
            return {
                each.group_id: to_error(each.error_code, f"the group {each.group_id!r}")
                for each in answer.results
            }

        return await self.call_for_each_group(groups, ask)

    async def delete_group(self, group: str) -> None:
        single_result(await self.delete_groups([group]))

    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for all partitions or for these. Those without a commit are left out."""
        offsets = GroupOffsets(self._cluster, group)
        return await offsets.committed(partitions, require_stable=False, timeout_ms=self._timeout_ms)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        """Sets what a group has committed. Brokers refuse it while the group has members (UNKNOWN_MEMBER_ID)."""
        wanted = {
            partition: OffsetAndMetadata(given) if isinstance(given, int) else given
            for partition, given in offsets.items()
        }
        return await GroupOffsets(self._cluster, group).commit_each(wanted, timeout_ms=self._timeout_ms)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Forgets what a group has committed. Topics that its members subscribe to keep theirs."""
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in group_by_topic(list(partitions)).items()
        ]

        async def ask(node: int, timeout_ms: int) -> Results[TopicPartition, None]:
            tree = {"group_id": group, "topics": topics}
            answer = await self._cluster.call(node, ApiKey.OFFSET_DELETE, tree, timeout_ms=timeout_ms)
            raise_for_code(answer.error_code, f"the group {group!r}")
            return parse_partition_errors(answer)

        return await self.call_coordinator(group, ask)

    async def remove_members(
        self, group: str, members: Iterable[MemberToRemove] | None = None, *, reason: str = ""
    ) -> Results[MemberToRemove, None]:
        """Takes these members out of a group, or all of them."""
        if members is None:
            described = await self.describe_group(group)
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

        async def ask(node: int, timeout_ms: int) -> Results[MemberToRemove, None]:
            answer = await self._cluster.call(node, ApiKey.LEAVE_GROUP, tree, timeout_ms=timeout_ms)
            raise_for_code(answer.error_code, f"the group {group!r}")
            # One by one, for the answer may hold a member id where the request had only an instance id.
            return {
                member: to_error(each.error_code, f"{member.instance_id or member.member_id}")
                for member, each in zip(leaving, answer.members, strict=True)
            }

        return await self.call_coordinator(group, ask)


def _parse_group(group: Message, node: int) -> GroupDescription | KafkaError:
    error = to_error(group.error_code, group.get("error_message") or f"the group {group.group_id!r}")
    if error is not None:
        return error
    if group.group_state == "Dead":
        # Before version 6 this is how brokers say so.
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
            # While members join, and in groups of old, there is nothing in these.
            if member.member_metadata:
                topics = decode_subscription(member.member_metadata).topics
            partitions = decode_assignment(member.member_assignment).partitions
            assignment = tuple(TopicPartition(*each) for each in partitions)
        except DecodeError:
            # Whatever calls itself a consumer may put in there what it likes: the member is shown without.
            pass
    return MemberDescription(
        member.member_id,
        member.get("group_instance_id"),
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )
