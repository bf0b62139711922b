"""Discovery and reading of log files for offline tools. The contents of the files may be invalid."""

import enum
import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from moldau.errors import CorruptRecordError
from moldau.logs.files.file_names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from moldau.raft.messages import SnapshotId
from moldau.raft.quorum_state_store import FILE_NAME as QUORUM_STATE_FILE
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION, Batch

LogPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Segment, index or snapshot files, the file quorum-state, partition directories or data directories.",
    ),
]

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
METADATA_LOG_PREFIX = "__cluster_metadata-"

_BATCHES = re.compile(r"[0-9]{20}\.log(\.[a-z]+)?")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint(\.[a-z]+)?")
_OFFSET = re.compile(r"[0-9]{20}")
_IGNORED_SUFFIXES = (".deleted", ".cleaned", ".swap", ".tmp", ".part", ".damaged")


class LogFileKind(enum.Enum):
    BATCHES = "record batches"
    METADATA_SNAPSHOT = "metadata snapshot"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCERS = "producer snapshot"
    EPOCHS = "leader epochs"
    QUORUM_STATE = "quorum state"


class LogFile(NamedTuple):
    path: Path
    kind: LogFileKind

    @property
    def base_offset(self) -> int:
        """The offset in the file name, or 0 if the name has no offset."""
        match = _OFFSET.match(self.path.name)
        return int(match[0]) if match else 0

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a metadata snapshot, whose offsets start at 0. Its name has the end offset."""
        return self.kind is LogFileKind.METADATA_SNAPSHOT

    @property
    def snapshot_id(self) -> SnapshotId:
        match = _SNAPSHOT.fullmatch(self.path.name)
        assert match is not None, "not a snapshot"
        return SnapshotId(int(match[1]), int(match[2]))

    @property
    def log_name(self) -> str:
        """The name of the directory, for example orders-0."""
        return self.path.resolve().parent.name

    @property
    def topic(self) -> str:
        return self.log_name.rpartition("-")[0]

    @property
    def is_metadata(self) -> bool:
        return self.log_name.startswith(METADATA_LOG_PREFIX)

    @property
    def log(self) -> Path:
        """The path of the segment with the base offset of this file."""
        return self.path.with_suffix(LOG_SUFFIX)


def kind_of(path: Path) -> LogFileKind | None:
    if path.name == LEADER_EPOCH_CHECKPOINT:
        return LogFileKind.EPOCHS
    if path.name == QUORUM_STATE_FILE:
        return LogFileKind.QUORUM_STATE
    if _BATCHES.fullmatch(path.name):
        return LogFileKind.BATCHES
    if _SNAPSHOT.fullmatch(path.name):
        return LogFileKind.METADATA_SNAPSHOT
    if _OFFSET.match(path.name):
        kinds = {
            OFFSET_INDEX_SUFFIX: LogFileKind.OFFSET_INDEX,
            TIME_INDEX_SUFFIX: LogFileKind.TIME_INDEX,
            TRANSACTION_INDEX_SUFFIX: LogFileKind.TRANSACTION_INDEX,
            SNAPSHOT_SUFFIX: LogFileKind.PRODUCERS,
        }
        return kinds.get(path.suffix)
    return None


def find_log_files(paths: Iterable[Path]) -> list[LogFile]:
    """Returns log files: those in `paths`, and those in directories in `paths` except temporary files."""
    log_files: list[LogFile] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(child for child in path.rglob("*") if child.suffix not in _IGNORED_SUFFIXES)
            files = [LogFile(child, kind) for child in inside if (kind := kind_of(child)) and child.is_file()]
            if not files:
                raise typer.BadParameter(
                    f"{path} has no log files. Use a data directory, a partition directory (orders-0), or files in one."
                )
        else:
            if not path.is_file():
                if str(path).startswith(("postgresql:", "postgres:")):
                    raise typer.BadParameter(
                        "this command reads files. The batches of a Postgres store are rows of its table batch."
                    )
                raise typer.BadParameter(
                    f"{path} does not exist. The data directory of a node is its setting --data-dir."
                )
            if (kind := kind_of(path)) is None:
                raise typer.BadParameter(
                    f"{path} is not a log file. Log files are 00000000000000000000.log, .index, .timeindex, .txnindex "
                    f"and .snapshot, 00000000000000000000-0000000000.checkpoint, {LEADER_EPOCH_CHECKPOINT} and "
                    f"{QUORUM_STATE_FILE}."
                )
            files = [LogFile(path, kind)]
        log_files += files
    return list(dict.fromkeys(log_files))


def read_batches(path: Path) -> Iterator[tuple[int, Batch]]:
    """Yields each batch with its position, without checking checksums. Raises CorruptRecordError."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        if not end:
            return
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    position = 0
    while position < end:
        if end - position < HEADER_SIZE:
            raise CorruptRecordError(
                f"the last {end - position} bytes, at position {position}, are an incomplete batch"
            )
        magic = view[position + MAGIC_POSITION]
        size = int.from_bytes(view[position + 8 : position + 12], "big", signed=True) + LOG_OVERHEAD
        if size < HEADER_SIZE or magic != 2:
            raise CorruptRecordError(f"no record batch at position {position}")
        if position + size > end:
            raise CorruptRecordError(
                f"the batch at position {position} has {size} bytes, but the file ends after {end - position}"
            )
        yield position, Batch(view[position : position + size])
        position += size


def read_entries(path: Path, layout: struct.Struct) -> list[tuple[int, int]]:
    """Returns index entries without the zeros that Kafka preallocates. Raises CorruptRecordError."""
    data = path.read_bytes()
    if len(data) % layout.size:
        raise CorruptRecordError(f"{len(data)} bytes are not a multiple of the entry size {layout.size}")
    entries: list[tuple[int, int]] = list(layout.iter_unpack(data))
    while len(entries) > 1 and entries[-1] == (0, 0):
        entries.pop()
    return entries
