"""Validation of topic names."""

from moldau.errors import InvalidTopicError

NAME_LENGTH_MAX = 249
"""The maximum length of a topic name. The directory name of a partition is limited to 255 bytes and also contains a
dash, the partition index and a suffix."""

METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def require_user_topic(name: str) -> None:
    """Raises InvalidTopicError for the name of an internal topic. Coordinators create these with configs of their own,
    without which committed offsets would expire like records."""
    if is_internal(name):
        raise InvalidTopicError(f"topic {name} is internal: the cluster creates it when it is needed")


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicError for an invalid name. A valid name is also a safe directory name."""
    reason = _invalid_reason(name)
    if reason is not None:
        raise InvalidTopicError(f"Topic name is invalid: {reason}")


def _invalid_reason(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.issuperset(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str | None:
    """Returns a key that is equal for names whose metrics would collide, or None if the name cannot collide. Metric
    names do not distinguish '.' and '_'."""
    return name.replace(".", "_") if "." in name or "_" in name else None
