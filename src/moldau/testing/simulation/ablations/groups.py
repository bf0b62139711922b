"""Group ablations. Each disables one safeguard of the group coordinator. The simulation must then report a
violation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from moldau.coordinator import runtime
from moldau.groups import offsets_partition as loading
from moldau.groups.classic_group import ClassicGroup
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.formats import decode
from moldau.groups.records import GroupRecord
from moldau.groups.requests import MemberIdentity, Now
from moldau.groups.shard import GroupCoordinatorShard


def without_generation_check() -> AbstractContextManager[object]:
    """Makes the coordinator accept members of an old generation."""

    def check_generation(group: ClassicGroupMetadata, generation: int) -> None:
        pass

    return mock.patch.object(ClassicGroupMetadata, "check_generation", check_generation)


def without_member_fencing() -> AbstractContextManager[object]:
    """Makes the coordinator check only the generation of a commit, not the member id and instance id."""

    def validate_offset_commit(group: ClassicGroup, now: Now, claim: MemberIdentity) -> None:
        if not (claim.generation < 0 and group.metadata.is_empty):
            group.metadata.check_generation(claim.generation)

    return mock.patch.object(ClassicGroup, "validate_offset_commit", validate_offset_commit)


def with_replies_before_durable() -> AbstractContextManager[object]:
    """Makes the coordinator respond when its records are written, before they are committed."""
    park = runtime.CoordinatorRuntime._park

    def release_at_once(decisions: runtime.CoordinatorRuntime[Any, Any], parked: runtime._ParkedResponse) -> None:
        if isinstance(decisions._state, GroupCoordinatorShard):
            runtime._complete(parked)
        else:
            park(decisions, parked)

    return mock.patch.object(runtime.CoordinatorRuntime, "_park", release_at_once)


def without_tombstones() -> AbstractContextManager[object]:
    """Makes the coordinator ignore tombstones when it loads groups."""

    def decode_if_not_deleted(key: bytes, value: bytes | None) -> GroupRecord | None:
        return None if value is None else decode(key, value)

    return mock.patch.object(loading, "decode", decode_if_not_deleted)


ABLATIONS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "generation-check": without_generation_check,
    "member-fencing": without_member_fencing,
    "reply-before-durable": with_replies_before_durable,
    "tombstones": without_tombstones,
}
