"""Java's String.hashCode. Kafka uses it to select the partition of a group and to break ties between protocols."""

import struct
from functools import lru_cache


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Returns the signed 32-bit hash of the text's UTF-16 code units."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = 31 * code + unit & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
