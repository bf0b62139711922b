"""The rows of a task into topics: encoded here, in the thread that Spark calls, and sent meanwhile by the client's."""

import random
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from moldau.columnar.encode import to_sections
from moldau.records.batch import HEADER_SIZE
from moldau.records.compression import NUMBERS
from moldau.spark.native import choose_native
from moldau.spark.portal import portal
from moldau.spark.sink.columns import Columns
from moldau.spark.sink.options import TopicOptions
from moldau.spark.sink.records import Placing, by_topic, check_sizes, gathered, rows_of
from moldau.spark.sink.sending import Sending

GATHERED_BYTES = 4 * 1024 * 1024


def write_rows(
    batches: Iterator[pa.RecordBatch], options: TopicOptions, columns: Columns
) -> dict[tuple[str, int], int]:
    """Returns when all rows are acknowledged, with their counts by topic and partition."""
    choose_native()
    sending = Sending(portal(), options)
    try:
        counts = _send(batches, options, columns, sending)
        sending.finish()
    except BaseException:
        sending.abandon()
        raise
    return counts


def _send(
    batches: Iterator[pa.RecordBatch], options: TopicOptions, columns: Columns, sending: Sending
) -> dict[tuple[str, int], int]:
    request_bytes_max = options.producer["max_request_size"] - HEADER_SIZE
    batch_bytes = max(1, min(options.producer["batch_size"] - HEADER_SIZE, request_bytes_max))
    compression = NUMBERS[options.producer["compression"]]
    placing = Placing(random.randrange(2**31))
    counts: dict[tuple[str, int], int] = {}
    for table in gathered(batches, GATHERED_BYTES):
        for topic, some in by_topic(table, columns, options.topic):
            rows = rows_of(some, columns, time.time_ns() // 1_000_000)
            check_sizes(rows, topic, request_bytes_max)
            shape = sending.shape(topic)
            bytes_max = batch_bytes
            if shape.batch_bytes_max is not None:
                bytes_max = max(1, min(batch_bytes, shape.batch_bytes_max - HEADER_SIZE))
            partitions = placing.partitions(rows, topic, shape.partition_count, shape.available, bytes_max)
            for encoded in to_sections(
                partitions,
                key=rows.key,
                value=rows.value,
                headers=rows.headers,
                timestamp_ms=rows.timestamp_ms,
                batch_bytes_max=bytes_max,
                compression=compression,
            ):
                sending.send(topic, encoded.partition, encoded.section)
            for partition, count in zip(*np.unique(partitions, return_counts=True), strict=True):
                where = (topic, int(partition))
                counts[where] = counts.get(where, 0) + int(count)
    return counts
