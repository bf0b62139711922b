"""Authorized operations as the bit fields of Kafka's responses.

There is no authorizer yet, so every client is authorized for all operations of a resource.
"""

from enum import IntEnum

NOT_REQUESTED = -(2**31)
"""The bit field in the response if the client did not request authorized operations."""


class AclOperation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bit_field(names: str) -> int:
    return sum(1 << AclOperation[name] for name in names.split())


CLUSTER_OPERATIONS = _bit_field("CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE")
TOPIC_OPERATIONS = _bit_field("READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS")
GROUP_OPERATIONS = _bit_field("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS")
