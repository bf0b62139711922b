"""The rows of a task into topics: encoded here, in the thread that Spark calls, and sent meanwhile by the client's."""

import random
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from moldau.columnar.encode import to_sections
from moldau.records.batch import HEADER_SIZE
from moldau.records.compression import CODECS_BY_NAME
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.native import configure_native
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import TopicSinkOptions
from moldau.spark.sink.records import (
    RowPartitioner,
    check_sizes,
    merge_batches,
    record_columns,
    split_by_topic,
)
from moldau.spark.sink.section_sender import SectionSender

MERGED_BATCH_BYTES_MIN = 4 * 1024 * 1024


def write_rows(
    batches: Iterator[pa.RecordBatch], options: TopicSinkOptions, columns: SinkColumns
) -> dict[tuple[str, int], int]:
    """Returns when all rows are acknowledged, with their counts by topic and partition."""
    configure_native()
    sending = SectionSender(event_loop_thread(), options)
    try:
        counts = _send(batches, options, columns, sending)
        sending.flush()
    except BaseException:
        sending.abort()
        raise
    return counts


def _send(
    batches: Iterator[pa.RecordBatch], options: TopicSinkOptions, columns: SinkColumns, sending: SectionSender
) -> dict[tuple[str, int], int]:
    request_bytes_max = options.producer["max_request_size"] - HEADER_SIZE
    batch_bytes = max(1, min(options.producer["batch_size"] - HEADER_SIZE, request_bytes_max))
    compression = CODECS_BY_NAME[options.producer["compression"]]
    placing = RowPartitioner(random.randrange(2**31))
    counts: dict[tuple[str, int], int] = {}
    for table in merge_batches(batches, MERGED_BATCH_BYTES_MIN):
        for topic, some in split_by_topic(table, columns, options.topic):
            rows = record_columns(some, columns, time.time_ns() // 1_000_000)
            check_sizes(rows, topic, request_bytes_max)
            topic_target = sending.topic_target(topic)
            bytes_max = batch_bytes
            if topic_target.batch_bytes_max is not None:
                bytes_max = max(1, min(batch_bytes, topic_target.batch_bytes_max - HEADER_SIZE))
            partitions = placing.partitions(
                rows, topic, topic_target.partition_count, topic_target.available, bytes_max
            )
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
