"""Partitioner of rows by key, with Kafka's murmur2 hash."""

from typing import Any

import numpy as np
import numpy.typing as npt

from moldau.client.producer.partitioner import partition_of_key
from moldau.columnar.arrays import byte_spans
from moldau.columnar.native import is_native


def key_partitions(keys: Any, count: int, no_key_partition: int) -> npt.NDArray[np.int32]:
    """Returns the partition that Java's producer chooses for each key, or `no_key_partition` for a null key."""
    if count < 1:
        raise ValueError(f"a topic with {count} partitions accepts no records")
    spans = byte_spans(keys, "key")
    partitions = np.empty(len(spans.lengths), np.int32)
    if is_native():
        from moldau.columnar import encode_kernels

        encode_kernels.key_partitions(spans.data, spans.starts, spans.lengths, count, no_key_partition, partitions)
        return partitions
    data = spans.data.tobytes()
    for row, (start, length) in enumerate(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)):
        partitions[row] = no_key_partition if length < 0 else partition_of_key(data[start : start + length], count)
    return partitions
