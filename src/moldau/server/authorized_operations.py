"""Authorized operations as bit fields. There is no authorizer yet, so every client may do everything."""

NOT_REQUESTED = -(2**31)
"""The bit field in the response if the client did not request authorized operations."""

_NAMES = "READ WRITE CREATE DELETE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE"
"""The names of Kafka's AclOperation codes, starting with code 3."""


def _bit_field(names: str) -> int:
    return sum(1 << _NAMES.split().index(name) + 3 for name in names.split())


CLUSTER_OPERATIONS = _bit_field("CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE")
TOPIC_OPERATIONS = _bit_field("READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS")
GROUP_OPERATIONS = _bit_field("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS")
