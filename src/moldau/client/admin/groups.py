"""The admin client's part for consumer groups: who is in them, what they have committed, and putting that right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.client.admin.base import AdminBase, Results, error_of, only
from moldau.client.consumer.positions import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError, check
from moldau.client.group.offsets import GroupOffsets, outcomes_in
from moldau.client.net.retries import Retry
from moldau.client.record import TopicPartition, by_topic
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription

_TYPES_VERSION = 5
"""The first version of ListGroups that knows of types."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """`consumer`, what else uses groups (`connect`), or empty for a group that only has offsets."""
    state: str
    type: str
    """`classic` or `consumer`; empty where the broker does not say."""


@dataclass(frozen=True, slots=True)
class GroupMember:
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
    members: tuple[GroupMember, ...]
    coordinator: int


class MemberToRemove(NamedTuple):
    """By member id, or by instance id alone."""

    member_id: str = ""
    instance_id: str | None = None


class GroupAdmin(AdminBase):
    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers by name, if wanted only those of some states or types.

        Raises KafkaError when a broker cannot be asked: a list that is not whole would look whole.
        """
        tree = {"states_filter": list(states), "types_filter": list(types)}

        async def ask_node(node: int | None, _: list[int], retry: Retry) -> Results[int, list[GroupListing]]:
            answer = await self._cluster.call(node, ApiKey.LIST_GROUPS, tree)
            if tree["types_filter"] and answer.api_version < _TYPES_VERSION:
                raise KafkaError(ErrorCode.unsupported_version, "the broker cannot list groups by type")
            check(answer.error_code)
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
            return await self._by_node({node: node for node in left}, ask_node, retry)

        async def refresh(retry: Retry) -> None:
            await self._cluster.refresh()

        await self._once(refresh)
        found: dict[str, GroupListing] = {}
        for result in (await self._each(self._cluster.brokers, ask)).values():
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
            return {each.group_id: _described(each, node) for each in answer.groups}

        return await self._each_group(groups, ask)

    async def describe_group(self, group: str) -> GroupDescription:
        return only(await self.describe_groups([group]))

    async def delete_groups(self, groups: Iterable[str]) -> Results[str, None]:
        async def ask(node: int | None, left: list[str], retry: Retry) -> Results[str, None]:
            answer = await self._cluster.call(node, ApiKey.DELETE_GROUPS, {"groups_names": left})
            return {
                each.group_id: error_of(each.error_code, f"the group {each.group_id!r}")
                for each in answer.results
            }

        return await self._each_group(groups, ask)

    async def delete_group(self, group: str) -> None:
        only(await self.delete_groups([group]))

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
            for name, indexes in by_topic(list(partitions)).items()
        ]

        async def ask(node: int, timeout_ms: int) -> Results[TopicPartition, None]:
            tree = {"group_id": group, "topics": topics}
            answer = await self._cluster.call(node, ApiKey.OFFSET_DELETE, tree, timeout_ms=timeout_ms)
            check(answer.error_code, f"the group {group!r}")
            return outcomes_in(answer)

        return await self._one_group(group, ask)

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
            check(answer.error_code, f"the group {group!r}")
            # One by one, for the answer may hold a member id where the request had only an instance id.
            return {
                member: error_of(each.error_code, f"{member.instance_id or member.member_id}")
                for member, each in zip(leaving, answer.members, strict=True)
            }

        return await self._one_group(group, ask)


def _described(group: Message, node: int) -> GroupDescription | KafkaError:
    error = error_of(group.error_code, group.get("error_message") or f"the group {group.group_id!r}")
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
        tuple(_member(each, is_consumers) for each in group.members),
        node,
    )


def _member(member: Message, is_consumer: bool) -> GroupMember:
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
    return GroupMember(
        member.member_id,
        member.get("group_instance_id"),
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )
