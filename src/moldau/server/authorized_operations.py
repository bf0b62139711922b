"""What a caller may do with a resource, as the bits in which Kafka's answers say it.

Nobody is kept from anything yet, so these are all the operations that make sense for a resource.
"""

from collections.abc import Iterable
from enum import IntEnum

NOT_ASKED = -(2**31)
"""What stands where the caller did not ask."""


class Operation(IntEnum):
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


def as_bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


CLUSTER_OPERATIONS = as_bits(
    (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    )
)
TOPIC_OPERATIONS = as_bits(
    (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
)
GROUP_OPERATIONS = as_bits(
    (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
)
