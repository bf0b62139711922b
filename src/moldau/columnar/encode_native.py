"""Encoder that runs the compiled kernel. All sections are encoded into the same buffer, one at a time."""

from collections.abc import Iterator

import numpy as np

from moldau.columnar import encode_kernels as kernels
from moldau.columnar.encode_python import EncodedRows
from moldau.columnar.rows import EncoderRows


def encode(rows: EncoderRows, bytes_max: int) -> Iterator[EncodedRows]:
    """Does the same as `encode_python.encode`. The bytes of a section are valid until the next section is requested."""
    columns = (
        rows.order,
        rows.partitions,
        rows.timestamps,
        rows.keys.data.ctypes.data,
        rows.keys.starts,
        rows.keys.lengths,
        rows.values.data.ctypes.data,
        rows.values.starts,
        rows.values.lengths,
        rows.header_starts,
        rows.header_counts,
        rows.names.data.ctypes.data,
        rows.names.starts,
        rows.names.lengths,
        rows.contents.data.ctypes.data,
        rows.contents.starts,
        rows.contents.lengths,
    )
    out = np.empty(bytes_max, np.uint8)
    results = np.empty(kernels.RESULT_FIELDS, np.int64)
    first = 0
    while first < len(rows.order):
        section = out
        while needed := kernels.encode_section(section, first, *columns, results):
            section = np.empty(needed, np.uint8)
        count, size, base_timestamp, max_timestamp = results.tolist()
        partition = int(rows.partitions[rows.order[first]])
        yield partition, section[:size].data, count, base_timestamp, max_timestamp
        first += count
