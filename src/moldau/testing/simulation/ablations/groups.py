"""Group ablations. Each disables a safeguard of the group coordinator, so that the simulation reports a violation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from moldau.coordinator import runtime
from moldau.coordinator.result import Now
from moldau.groups import formats
from moldau.groups.classic_group import ClassicGroup
from moldau.groups.classic_group_metadata import ClassicGroupMetadata
from moldau.groups.records import GroupRecord
from moldau.groups.requests import MemberIdentity
from moldau.groups.shard import GroupCoordinatorShard


def _accept_generation(group: ClassicGroupMetadata, generation: int) -> None:
    pass


def _check_only_generation(group: ClassicGroup, now: Now, claim: MemberIdentity) -> None:
    if not (claim.generation < 0 and group.metadata.is_empty):
        group.metadata.check_generation(claim.generation)


_park = runtime.CoordinatorRuntime._park


def _complete_at_once(decisions: runtime.CoordinatorRuntime[Any, Any], parked: runtime._ParkedResponse) -> None:
    if isinstance(decisions._state, GroupCoordinatorShard):
        runtime._complete(parked)
    else:
        _park(decisions, parked)


_decode = formats.decode


def _decode_if_not_deleted(key: bytes, value: bytes | None) -> GroupRecord | None:
    return None if value is None else _decode(key, value)


ABLATIONS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    # The coordinator accepts requests of members with an old generation.
    "generation-check": partial(mock.patch.object, ClassicGroupMetadata, "check_generation", _accept_generation),
    # The coordinator checks only the generation of a commit, not the member id and instance id.
    "member-fencing": partial(mock.patch.object, ClassicGroup, "validate_offset_commit", _check_only_generation),
    # The coordinator responds when its records are written, before they are committed.
    "reply-before-durable": partial(mock.patch.object, runtime.CoordinatorRuntime, "_park", _complete_at_once),
    # The coordinator ignores tombstones when it loads groups.
    "tombstones": partial(mock.patch.object, formats, "decode", _decode_if_not_deleted),
}
