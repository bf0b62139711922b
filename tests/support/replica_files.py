"""Reads the batches of a replica from its segment files, without a broker."""

from pathlib import Path

from moldau.records.batch import LOG_OVERHEAD, Batch


def batches(data_dir: Path, topic: str, partition: int) -> dict[int, bytes]:
    """Returns the bytes of whole batches by base offset."""
    found: dict[int, bytes] = {}
    for segment in sorted((data_dir / f"{topic}-{partition}").glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + LOG_OVERHEAD <= len(data):
            size = int.from_bytes(data[position + 8 : position + LOG_OVERHEAD], "big") + LOG_OVERHEAD
            if position + size > len(data):
                break
            batch = Batch(memoryview(data)[position : position + size])
            assert batch.has_valid_checksum(), f"{segment} has a damaged batch at {position}"
            found[batch.base_offset] = data[position : position + size]
            position += size
    return found
