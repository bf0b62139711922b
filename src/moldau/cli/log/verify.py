"""`moldau log verify`: checks that log files are valid and consistent with each other."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from moldau.cli.console import print_json_lines
from moldau.cli.log.files import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    LogFile,
    LogFileKind,
    LogPaths,
    find_log_files,
    read_batches,
    read_entries,
)
from moldau.cli.parameters import Json
from moldau.errors import CorruptRecordError, MoldauError
from moldau.logs.leader_epochs import NO_EPOCH, LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import TransactionIndex
from moldau.metadata import records as metadata_records
from moldau.raft import snapshot_format
from moldau.raft.quorum_state_store import REPAIR_HINT, parse_quorum_state
from moldau.records import control_records as control
from moldau.records.batch import Batch
from moldau.records.record import iterate_records

PROBLEMS_SHOWN_MAX = 20
"""Maximum number of problems printed per file."""

HINTS = {
    LogFileKind.BATCHES: (
        "An incomplete batch at the end of the active segment is truncated at the next start. Any other problem is "
        "data loss: stop the node, keep a copy of the directory, and restore it from a replica or a backup."
    ),
    LogFileKind.METADATA_SNAPSHOT: (
        "At the next start the node ignores a damaged snapshot and loads the previous one, if the metadata log starts "
        "early enough. Keep a copy of the directory."
    ),
    LogFileKind.OFFSET_INDEX: "Stop the node and delete the index: it is rebuilt at the next start.",
    LogFileKind.TIME_INDEX: "Stop the node and delete the time index: it is rebuilt at the next start.",
    LogFileKind.TRANSACTION_INDEX: "Restart the node: the index is rebuilt when the log is opened.",
    LogFileKind.PRODUCERS: "Stop the node and delete the snapshot: it is rebuilt from the log at the next start.",
    LogFileKind.EPOCHS: "Stop the node and delete the checkpoint: it is rebuilt from the log at the next start.",
    LogFileKind.QUORUM_STATE: f"The node does not start: {REPAIR_HINT}.",
}


class SegmentSummary:
    """Positions, offsets and timestamps of a segment's batches, used to check the indexes of the segment."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.base_offsets = array("q")
        self.last_offsets = array("q")
        self.max_timestamps = array("q")
        """For each batch, the maximum timestamp of this batch and all earlier batches."""

    def add(self, position: int, batch: Batch) -> None:
        previous_max = self.max_timestamps[-1] if self.max_timestamps else batch.max_timestamp
        self.positions.append(position)
        self.base_offsets.append(batch.base_offset)
        self.last_offsets.append(batch.last_offset)
        self.max_timestamps.append(max(previous_max, batch.max_timestamp))


@dataclass
class BatchTail:
    """The highest offset and leader epoch of the batches checked so far."""

    last_offset: int = -1
    epoch: int = NO_EPOCH


class DirectoryVerifier:
    """Checks the files of one log against each other."""

    def __init__(self, files: list[LogFile], with_records: bool, progress: Progress, task: TaskID) -> None:
        self.batches = 0
        self._files = files
        self._with_records = with_records
        self._progress = progress
        self._task = task
        self._segments: dict[Path, SegmentSummary] = {}
        self._epochs: LeaderEpochCache | None = None
        self._tail = BatchTail()

    def problems(self) -> Iterator[tuple[LogFile, str]]:
        """Yields all problems. Leader epochs are checked before segments, and segments before their indexes."""
        checks = {
            LogFileKind.EPOCHS: self._check_epochs,
            LogFileKind.BATCHES: self._check_batches,
            LogFileKind.METADATA_SNAPSHOT: self._check_snapshot,
            LogFileKind.OFFSET_INDEX: self._check_offset_index,
            LogFileKind.TIME_INDEX: self._check_time_index,
            LogFileKind.TRANSACTION_INDEX: self._check_transaction_index,
            LogFileKind.PRODUCERS: self._check_producers,
            LogFileKind.QUORUM_STATE: self._check_quorum_state,
        }
        order = list(checks)
        for file in sorted(self._files, key=lambda file: (order.index(file.kind), file.path)):
            try:
                for problem in checks[file.kind](file):
                    yield file, problem
            except MoldauError as error:
                yield file, str(error)
            except OSError as error:
                yield file, f"cannot be read: {error.strerror}"
            self._progress.update(self._task, advance=file.path.stat().st_size)

    def _check_epochs(self, file: LogFile) -> Iterator[str]:
        self._epochs = LeaderEpochCache.from_text(file.path.read_text("utf-8", "replace"))
        yield from ()

    def _check_batches(self, file: LogFile) -> Iterator[str]:
        segment = self._segments[file.path] = SegmentSummary()
        tail = BatchTail() if file.is_snapshot else self._tail
        for position, batch in read_batches(file.path):
            self.batches += 1
            segment.add(position, batch)
            if not batch.has_valid_checksum():
                yield f"invalid checksum at offset {batch.base_offset} (batch at position {position})"
                continue
            for problem in self._check_batch(file, batch, tail):
                yield f"{problem} (batch at position {position})"
            tail.last_offset = max(tail.last_offset, batch.last_offset)
            tail.epoch = max(tail.epoch, batch.leader_epoch)

    def _check_snapshot(self, file: LogFile) -> Iterator[str]:
        is_damaged = False
        for problem in self._check_batches(file):
            is_damaged = True
            yield problem
        if not is_damaged:
            # The batches are valid, so only the header and footer of the snapshot remain to be checked.
            snapshot_format.decode_snapshot(file.snapshot_id, file.path.read_bytes())

    def _check_batch(self, file: LogFile, batch: Batch, tail: BatchTail) -> Iterator[str]:
        if batch.last_offset_delta < 0 or not 0 <= batch.count <= batch.last_offset_delta + 1:
            yield f"{batch.count} records do not match offsets {batch.base_offset}..{batch.last_offset}"
        if batch.base_offset <= tail.last_offset:
            yield f"offset {batch.base_offset} comes after offset {tail.last_offset}"
        if not file.is_snapshot:
            if batch.base_offset < file.base_offset:
                yield f"offset {batch.base_offset} is below the segment's base offset {file.base_offset}"
            if batch.leader_epoch < tail.epoch:
                yield f"leader epoch {batch.leader_epoch} comes after epoch {tail.epoch}"
            if self._epochs is not None and self._epochs.epoch_for_offset(batch.base_offset) != batch.leader_epoch:
                yield (
                    f"offset {batch.base_offset} has leader epoch {batch.leader_epoch}, "
                    f"but the checkpoint has {self._epochs.epoch_for_offset(batch.base_offset)}"
                )
        if self._with_records:
            yield from _check_records(file, batch)

    def _segment_of(self, file: LogFile) -> SegmentSummary | None:
        """Returns a summary of the index's segment, or None if it is missing. Reads a segment that was not checked."""
        if file.log not in self._segments:
            if not file.log.is_file():
                return None
            segment = self._segments[file.log] = SegmentSummary()
            try:
                for position, batch in read_batches(file.log):
                    segment.add(position, batch)
            except CorruptRecordError:
                # Do not report the error, because the segment is not one of the files to check. The index is checked
                # only against the batches that precede the corrupt one.
                pass
        return self._segments[file.log]

    def _check_offset_index(self, file: LogFile) -> Iterator[str]:
        segment = self._segment_of(file)
        if segment is None:
            yield f"its segment {file.log.name} does not exist"
        last_offset = last_position = -1
        for relative, position in read_entries(file.path, OFFSET_ENTRY):
            offset = file.base_offset + relative
            if relative < 0 or offset <= last_offset or position <= last_position:
                yield f"the entry for offset {offset} at position {position} is out of order"
            last_offset, last_position = offset, position
            if segment is None:
                continue
            index = bisect_left(segment.positions, position)
            if index == len(segment.positions) or segment.positions[index] != position:
                yield f"no batch starts at position {position} of the entry for offset {offset}"
            elif not segment.base_offsets[index] <= offset <= segment.last_offsets[index]:
                yield (
                    f"offset {offset} is not in the batch at position {position} with offsets "
                    f"{segment.base_offsets[index]}..{segment.last_offsets[index]}"
                )

    def _check_time_index(self, file: LogFile) -> Iterator[str]:
        segment = self._segment_of(file)
        if segment is None:
            yield f"its segment {file.log.name} does not exist"
        last_timestamp = last_offset = -1
        for timestamp, relative in read_entries(file.path, TIME_ENTRY):
            offset = file.base_offset + relative
            if relative < 0 or timestamp <= last_timestamp or offset < last_offset:
                yield f"the entry for time {timestamp} and offset {offset} is out of order"
            last_timestamp, last_offset = timestamp, offset
            if segment is None:
                continue
            index = bisect_left(segment.last_offsets, offset)
            if index == len(segment.last_offsets):
                yield f"offset {offset} for time {timestamp} is not in the segment"
            elif segment.max_timestamps[index] != timestamp:
                largest = segment.max_timestamps[index]
                yield f"the maximum timestamp up to offset {offset} is {largest}, not {timestamp}"

    def _check_transaction_index(self, file: LogFile) -> Iterator[str]:
        segment = self._segment_of(file)
        if segment is None:
            yield f"its segment {file.log.name} does not exist"
        for aborted in TransactionIndex.from_bytes(file.path.read_bytes(), file.base_offset):
            offsets = () if segment is None else segment.base_offsets
            index = bisect_left(offsets, aborted.last_offset)
            if segment is not None and (index == len(offsets) or offsets[index] != aborted.last_offset):
                yield f"there is no marker at offset {aborted.last_offset} of an aborted transaction"

    def _check_producers(self, file: LogFile) -> Iterator[str]:
        producers = ProducerStateManager()
        producers.restore(file.path.read_bytes())
        for state in producers:
            if state.last_offset >= file.base_offset:
                yield (
                    f"producer {state.producer_id} has last offset {state.last_offset}, which is not below "
                    f"the snapshot's {file.base_offset}"
                )

    def _check_quorum_state(self, file: LogFile) -> Iterator[str]:
        parse_quorum_state(file.path.read_bytes())
        yield from ()


def log_verify(
    paths: LogPaths,
    records: Annotated[
        bool, typer.Option("--records", help="Also decompress and decode all records, which takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check checksums, offsets, leader epochs, indexes and snapshots, and print one line per problem.

    The exit code is 1 if there is a problem. Stop the node first: the active segment of a running node may end with an
    incomplete batch.
    """
    files = find_log_files(paths)
    size = sum(file.path.stat().st_size for file in files)
    damaged: list[LogFileKind] = []
    batches = 0
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=size)
        for _, group in groupby(sorted(files, key=_directory), key=_directory):
            directory = DirectoryVerifier(list(group), records, progress, task)
            for file, problems in groupby(directory.problems(), key=lambda found: found[0]):
                damaged.append(file.kind)
                for number, (_, problem) in enumerate(problems, 1):
                    if as_json:
                        print_json_lines([{"file": str(file.path), "kind": file.kind.value, "problem": problem}])
                    elif number <= PROBLEMS_SHOWN_MAX:
                        typer.echo(f"{file.path}: {problem}")
                if number > PROBLEMS_SHOWN_MAX and not as_json:
                    typer.echo(f"{file.path}: {number - PROBLEMS_SHOWN_MAX} more problems")
            batches += directory.batches
    summary = f"{len(files)} files, {batches} batches, {size} bytes"
    if not damaged:
        typer.echo(f"{summary}: no problems found", err=as_json)
        return
    typer.echo(f"{summary}: {len(damaged)} files have problems", err=True)
    for kind in LogFileKind:
        if kind in damaged:
            typer.echo(f"{kind.value}: {HINTS[kind]}", err=True)
    raise typer.Exit(1)


def _directory(file: LogFile) -> Path:
    return file.path.parent


def _check_records(file: LogFile, batch: Batch) -> Iterator[str]:
    try:
        for record in iterate_records(batch):
            if batch.is_control:
                control.decode(record)
            elif file.is_metadata and record.value is not None:
                metadata_records.decode(record.value)
    except MoldauError as error:
        yield str(error)
