"""Parquet files of one task, with their Delta statistics. The files are not part of the table until they are committed.

Memory is bounded. A row group is written when one file, or all files together, have buffered enough rows. The number of
open files is limited.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.delta_options import Location
from moldau.spark.sink.delta_stats import file_stats, has_bounds

_NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_DIRECTORY_NAME_MAX = 120


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file to be added to its table."""

    path: str
    """The path relative to the table's directory."""
    size: int
    modified_ms: int
    partition_values: dict[str, str | None]
    stats: dict[str, Any]
    null_columns: frozenset[str] = frozenset()
    """The names of columns that contain nulls."""

    @property
    def name(self) -> str:
        """The file name, which is unique among all files."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class _OpenFile:
    """A file being written, and its buffered rows."""

    path: str
    values: tuple[str | None, ...]
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    stream: Any = None
    writer: pq.ParquetWriter | None = None
    has_bounds: bool = True
    null_columns: set[str] = field(default_factory=set)


@dataclass
class TableFiles:
    """Writer of a task's Parquet files. Call `write` for each batch, then `finish`, or `discard` after a failure."""

    location: Location
    schema: pa.Schema
    partition_by: tuple[str, ...]
    compression: str = "snappy"
    row_group_bytes: int = 32 * 1024 * 1024
    buffered_bytes_max: int = 128 * 1024 * 1024
    file_bytes_max: int = 512 * 1024 * 1024
    files_open_max: int = 64

    def __post_init__(self) -> None:
        self._file_schema = pa.schema([each for each in self.schema if each.name not in self.partition_by])
        self._store = table_file_system(self.location)
        # The open files by partition values. The most recently used file is last.
        self._open: OrderedDict[tuple[str | None, ...], _OpenFile] = OrderedDict()
        self._buffered_bytes = 0
        self._started_paths: list[str] = []
        self._written_files: list[WrittenFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        # Cast to the expected types. Spark labels timestamps with the session's time zone, but instants are unchanged.
        batch = pa.record_batch(
            [column.cast(expected.type) for column, expected in zip(batch.columns, self.schema, strict=True)],
            schema=self.schema,
        )
        for values, rows in split_by_partition(batch, self.partition_by):
            self._buffer_rows(values, rows)
        while self._buffered_bytes > self.buffered_bytes_max:
            self._write_group(max(self._open.values(), key=lambda each: each.buffered_bytes))

    def finish(self) -> list[WrittenFile]:
        while self._open:
            self._close(next(iter(self._open)))
        return self._written_files

    def discard(self) -> None:
        """Removes all files of the task, including unfinished ones."""
        for each in self._open.values():
            if each.writer is not None:
                each.writer.close()
                each.stream.close()
        self._open.clear()
        remove_files(self._store, self._started_paths)

    def _buffer_rows(self, values: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= self.files_open_max:
                self._close(next(iter(self._open)))
            file = self._open[values] = _OpenFile(_path(self.partition_by, values), values)
        self._open.move_to_end(values)
        file.buffered.append(rows)
        file.buffered_bytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if file.buffered_bytes >= self.row_group_bytes:
            self._write_group(file)
            if file.stream.tell() >= self.file_bytes_max:
                self._close(values)

    def _write_group(self, file: _OpenFile) -> None:
        if file.writer is None:
            self._started_paths.append(file.path)
            file.stream = self._store.open_output_stream(file.path)
            file.writer = pq.ParquetWriter(
                file.stream, self._file_schema, compression=self.compression, store_schema=False
            )
        rows = pa.Table.from_batches(file.buffered, self._file_schema)
        file.has_bounds = file.has_bounds and has_bounds(rows)
        file.null_columns.update(name for name in rows.column_names if rows[name].null_count)
        file.writer.write_table(rows, row_group_size=rows.num_rows)
        self._buffered_bytes -= file.buffered_bytes
        file.buffered, file.buffered_bytes = [], 0

    def _close(self, values: tuple[str | None, ...]) -> None:
        file = self._open[values]
        if file.buffered:
            self._write_group(file)
        del self._open[values]
        assert file.writer is not None, "an open file has rows"
        file.writer.close()
        size = file.stream.tell()
        file.stream.close()
        self._written_files.append(
            WrittenFile(
                file.path,
                size,
                time.time_ns() // 1_000_000,
                dict(zip(self.partition_by, values, strict=True)),
                file_stats(file.writer.writer.metadata, self._file_schema, bounded=file.has_bounds),
                frozenset(file.null_columns),
            )
        )


def table_file_system(location: Location) -> pafs.FileSystem:
    """Returns the file system of the table's directory. Creates the directory if needed."""
    try:
        if location.is_directory:
            os.makedirs(location.path, exist_ok=True)
        return pafs.PyFileSystem(DeltaStorageHandler(location.path, location.options))
    except (OSError, DeltaError) as error:
        raise SparkSourceError(
            f"files cannot be written to {location.path} ({first_line(error)}): check the path, the "
            "right to write there on every executor, and the storage.* options"
        ) from error


def first_line(error: BaseException) -> str:
    """Returns an error's message without the library's traceback."""
    return str(error).strip().partition("\n")[0]


def remove_files(store: pafs.FileSystem, paths: list[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            store.delete_file(path)


def split_by_partition(
    batch: pa.RecordBatch, partition_by: tuple[str, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yields the values of each partition, as texts for the Delta log, and its rows without the partition columns."""
    if not partition_by:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    dictionaries: list[list[str | None]] = []
    for name in partition_by:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        dictionaries.append(_partition_texts(encoded.dictionary, name))
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    remaining = batch.select([name for name in batch.schema.names if name not in partition_by])
    order = np.argsort(codes, kind="stable")
    kinds, starts = np.unique(codes[order], return_index=True)
    for kind, rows in zip(kinds.tolist(), np.split(order, starts[1:]), strict=True):
        values = []
        for dictionary in reversed(dictionaries):
            kind, position = divmod(kind, len(dictionary))
            values.append(dictionary[position])
        yield tuple(reversed(values)), remaining if len(kinds) == 1 else remaining.take(pa.array(rows))


def _partition_texts(values: pa.Array, name: str) -> list[str | None]:
    try:
        return [_partition_value_text(each) for each in values.to_pylist()]
    except OverflowError:
        raise SparkSourceError(
            f"the partition column {name!r} has a date outside the years 1 to 9999: filter such "
            f"rows out (WHERE {name} BETWEEN DATE'0001-01-01' AND DATE'9999-12-31')"
        ) from None


def _partition_value_text(value: Any) -> str | None:
    """Formats a partition value for the Delta log. An empty string becomes null, as Delta requires."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _path(partition_by: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    """Returns a unique path. Its directories only help people, because the table's log stores the partition values."""
    directories = [
        f"{quote(name, safe='')}={_NULL_DIRECTORY if value is None else quote(value, safe='')[:_DIRECTORY_NAME_MAX]}"
        for name, value in zip(partition_by, values, strict=True)
    ]
    return "/".join([*directories, f"part-{uuid4()}.parquet"])
