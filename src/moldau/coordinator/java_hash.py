"""Java's String.hashCode, by which Kafka selects the coordinator of a group or of a transactional id."""

import struct
from functools import lru_cache

_INT_MIN = -(2**31)


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Returns the signed 32-bit hash of the text's UTF-16 code units."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = 31 * code + unit & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code


def partition_for(key: str, partitions: int) -> int:
    """Returns the partition whose leader coordinates `key`, a group id or transactional id. Kafka selects the same
    partition."""
    code = java_hash(key)
    return 0 if code == _INT_MIN else abs(code) % partitions
