"""String.hashCode of Java, by which Kafka spreads groups over partitions and breaks ties in votes."""

import struct
from functools import lru_cache


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """A signed number of 32 bits. Java counts UTF-16 units."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = 31 * code + unit & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
