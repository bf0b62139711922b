"""What stands beside a static member's partitions in its assignment: a note for who comes back in its place. All else
that the member knew is gone with it, and the group does not rebalance for a restart. Other clients pass over it.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple


class AssignmentUserData(NamedTuple):
    hands_over: bool = False
    """The member had partitions to give up, and to join again when it had: others wait for them."""
    partition_counts: Mapping[str, int] | None = None
    """The leader's: what the group's topics had when they were shared out. It is what the leader has to watch."""


NO_USER_DATA = AssignmentUserData()


def encode_user_data(note: AssignmentUserData) -> bytes | None:
    return None if note == NO_USER_DATA else json.dumps(note._asdict(), separators=(",", ":")).encode()


def decode_user_data(data: bytes | None) -> AssignmentUserData:
    """What somebody else put there is no note."""
    try:
        found = json.loads(data or b"{}")
        counts = found.get("partition_counts")
        return AssignmentUserData(
            found.get("hands_over") is True,
            None if counts is None else {str(topic): int(count) for topic, count in counts.items()},
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return NO_USER_DATA
