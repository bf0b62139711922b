"""The transactional ids of a transaction group's members.

The members of a group are producers whose transactions are committed by one decision. Their transactional ids have the
form `__moldau.group/<group id>/<member>`. The transaction coordinator of all of them is the one of the group, because
only the part before the member is hashed.
"""

RESERVED_PREFIX = "__moldau.group/"


def member_transactional_id(group_id: str, member: str) -> str:
    return f"{group_coordinator_key(group_id)}/{member}"


def group_coordinator_key(group_id: str) -> str:
    """Returns the key of a group in FindCoordinator requests for transactional ids."""
    return f"{RESERVED_PREFIX}{group_id}"


def coordinator_key(transactional_id: str) -> str:
    """Returns the part of a transactional id whose hash selects the coordinator."""
    group_id = group_of_member(transactional_id)
    return transactional_id if group_id is None else group_coordinator_key(group_id)


def group_of_member(transactional_id: str) -> str | None:
    """Returns the group id in the transactional id of a member; None if the id is not one of a member."""
    if not transactional_id.startswith(RESERVED_PREFIX):
        return None
    group_id, slash, _ = transactional_id[len(RESERVED_PREFIX) :].partition("/")
    return group_id if slash else None
