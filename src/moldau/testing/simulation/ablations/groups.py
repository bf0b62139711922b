"""The safeguards of groups, each with a switch that takes it out of the code under test. A simulation that does not
notice would be a hole in the simulation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from moldau.coordinator import runtime
from moldau.groups import offsets_partition as loading
from moldau.groups.classic_group import ClassicGroup
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.formats import decode
from moldau.groups.records import GroupRecord
from moldau.groups.requests import MemberIdentity, Now
from moldau.groups.shard import GroupCoordinatorShard
from moldau.testing.simulation.ablations.patch import patched


def without_generation_check() -> AbstractContextManager[None]:
    """A member of the group is taken at its word, whatever generation it speaks of."""

    def check_generation(group: ClassicGroupMetadata, generation: int) -> None:
        pass

    return patched(ClassicGroupMetadata, "check_generation", check_generation)


def without_member_fencing() -> AbstractContextManager[None]:
    """A commit is judged by its generation alone, and not by who sends it."""

    def validate_offset_commit(group: ClassicGroup, now: Now, claim: MemberIdentity) -> None:
        if not (claim.generation < 0 and group.metadata.is_empty):
            group.metadata.check_generation(claim.generation)

    return patched(ClassicGroup, "validate_offset_commit", validate_offset_commit)


def with_replies_before_durable() -> AbstractContextManager[None]:
    """What a coordinator has decided is told as soon as it is written, and not when it is safe."""
    park = runtime.CoordinatorRuntime._park

    def release_at_once(
        decisions: runtime.CoordinatorRuntime[Any, Any], parked: runtime._ParkedResponse
    ) -> None:
        if isinstance(decisions._state, GroupCoordinatorShard):
            runtime._release(parked)
        else:
            park(decisions, parked)

    return patched(runtime.CoordinatorRuntime, "_park", release_at_once)


def without_tombstones() -> AbstractContextManager[None]:
    """When groups are loaded, deletions in the log are passed over."""

    def decode_if_not_deleted(key: bytes, value: bytes | None) -> GroupRecord | None:
        return None if value is None else decode(key, value)

    return patched(loading, "decode", decode_if_not_deleted)


ABLATIONS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "generation-check": without_generation_check,
    "member-fencing": without_member_fencing,
    "reply-before-durable": with_replies_before_durable,
    "tombstones": without_tombstones,
}
