"""Which names a topic may have."""

from moldau.errors import InvalidTopicError

NAME_LENGTH_MAX = 249
"""So that a partition's directory, which adds a dash and a number, and a suffix fit in 255 bytes."""

METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicError; a name that passes is also a safe name for a directory."""
    complaint = _invalid_reason(name)
    if complaint is not None:
        raise InvalidTopicError(f"Topic name is invalid: {complaint}")


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
    """Names with the same key would share their metrics, where '.' and '_' look alike; None: has no twin."""
    return name.replace(".", "_") if "." in name or "_" in name else None
