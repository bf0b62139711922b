"""`moldau log dump`: prints the contents of log files, without a broker."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from moldau.cli.console import bytes_to_json
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
from moldau.cli.log.internal_records import decode_internal_record
from moldau.cli.log.lines import log_lines, logs_of
from moldau.cli.parameters import Json
from moldau.cli.progress import ProgressBar, progress_bar
from moldau.errors import MoldauError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import TransactionIndex
from moldau.metadata import records as metadata_records
from moldau.raft.messages import NO_LEADER, NO_VOTE
from moldau.raft.quorum_state_store import parse_quorum_state
from moldau.records import control_records as control
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.compression import NAMES
from moldau.records.record import Record, iterate_records

SHOWN_CHARACTERS_MAX = 120
"""Maximum length of a key or value in text output. JSON output is not truncated."""

Line = dict[str, Any]


def log_dump(
    paths: LogPaths,
    records: Annotated[bool, typer.Option("--records", help="Also decode the records of batches.")] = False,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Print one line per record: `offset key payload`, and of the metadata log `offset epoch action body` "
            "for topics that are created or deleted.",
        ),
    ] = False,
    as_json: Json = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of lines per file.")] = None,
) -> None:
    r"""Print the contents of log files: batches, records, indexes, producers, leader epochs, quorum state.

    Read-only. It can run while the broker is running; the active segment may then end with an incomplete batch.

    With --lines each record is one line whatever its bytes are: a backslash is \\, a newline \n, another control
    character or a byte that is not UTF-8 \xNN, a space in a key \x20, and a null key or payload \N. Several logs are
    separated by lines such as `==> orders-0 <==`.
    """
    if lines:
        if records or as_json:
            raise typer.BadParameter("--lines cannot be combined with --records or --json.")
        _dump_lines(find_log_files(paths), limit)
        return
    is_damaged = False
    files = find_log_files(paths)
    with _reading(files) as progress:
        for file in files:
            if not as_json:
                typer.echo(f"{file.path} ({file.kind.value})")
            try:
                for line in islice(_lines(file, records), limit):
                    is_damaged = is_damaged or not line.get("checksum_is_right", "problem" not in line)
                    typer.echo(_format_json(file, line) if as_json else f"  {_format_text(line)}")
                    if line["is"] == "batch":
                        progress.update(file, line["position"])
            except MoldauError as error:
                is_damaged = True
                _print_problem(file, str(error))
            progress.finish(file)
    if is_damaged:
        raise typer.Exit(1)


class _ReadProgress:
    """How many bytes of files are read."""

    def __init__(self, bar: ProgressBar, files: Sequence[LogFile]) -> None:
        self._bar = bar
        self._sizes = {file.path: file.path.stat().st_size for file in files} if bar.is_shown else {}
        self._total = sum(self._sizes.values())
        self._finished = 0

    def update(self, file: LogFile, position: int) -> None:
        if self._sizes:
            self._bar.update_bytes(self._finished + position, self._total)

    def finish(self, file: LogFile) -> None:
        self._finished += self._sizes.get(file.path, 0)
        self.update(file, 0)


@contextmanager
def _reading(files: Sequence[LogFile]) -> Iterator[_ReadProgress]:
    # The lines and a bar must not be on the same terminal.
    with progress_bar("reading", enabled=not sys.stdout.isatty()) as bar:
        yield _ReadProgress(bar, files)


def _print_problem(file: LogFile, problem: str) -> None:
    typer.echo(f"{file.path}: {problem}. Run `moldau log verify` for advice.", err=True)


def _dump_lines(files: list[LogFile], limit: int | None) -> None:
    logs = list(logs_of(files))
    if not logs:
        raise typer.BadParameter("--lines needs segments: a partition directory, a data directory or .log files.")
    is_damaged = False

    def report(file: LogFile, problem: str) -> None:
        nonlocal is_damaged
        is_damaged = True
        _print_problem(file, problem)

    with _reading([file for _, segments in logs for file in segments]) as progress:
        for directory, segments in logs:
            if len(logs) > 1:
                typer.echo(f"==> {directory.name} <==")
            for line in islice(log_lines(segments, report, progress.update), limit):
                typer.echo(line)
            for file in segments:
                progress.finish(file)
    if is_damaged:
        raise typer.Exit(1)


def _lines(file: LogFile, with_records: bool) -> Iterator[Line]:
    match file.kind:
        case LogFileKind.BATCHES | LogFileKind.METADATA_SNAPSHOT:
            yield from _batch_lines(file, with_records)
        case LogFileKind.OFFSET_INDEX:
            for offset, position in read_entries(file.path, OFFSET_ENTRY):
                yield {"is": "index entry", "offset": file.base_offset + offset, "position": position}
        case LogFileKind.TIME_INDEX:
            for timestamp, offset in read_entries(file.path, TIME_ENTRY):
                yield {"is": "time index entry", "timestamp": timestamp, "offset": file.base_offset + offset}
        case LogFileKind.TRANSACTION_INDEX:
            for aborted in TransactionIndex.from_bytes(file.path.read_bytes(), file.base_offset):
                yield {"is": "aborted transaction"} | aborted._asdict()
        case LogFileKind.PRODUCERS:
            yield from _producer_lines(file)
        case LogFileKind.EPOCHS:
            for epoch, offset in LeaderEpochCache.from_text(file.path.read_text("utf-8", "replace")):
                yield {"is": "leader epoch", "epoch": epoch, "start_offset": offset}
        case LogFileKind.QUORUM_STATE:
            yield _quorum_state_line(file)


def _batch_lines(file: LogFile, with_records: bool) -> Iterator[Line]:
    for position, batch in read_batches(file.path):
        has_valid_checksum = batch.has_valid_checksum()
        yield {
            "is": "batch",
            "position": position,
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "count": batch.count,
            "size": batch.size,
            "leader_epoch": batch.leader_epoch,
            "timestamp_type": "LogAppendTime" if batch.is_log_append_time else "CreateTime",
            "base_timestamp": batch.base_timestamp,
            "max_timestamp": batch.max_timestamp,
            "compression": NAMES[batch.compression] if batch.compression < len(NAMES) else "unknown",
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "last_sequence": batch.last_sequence,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "delete_horizon_ms": batch.delete_horizon_ms,
            "checksum_is_right": has_valid_checksum,
        }
        if with_records and has_valid_checksum:
            try:
                for record in iterate_records(batch):
                    yield _record_line(file, batch, record)
            except MoldauError as error:
                yield {"is": "problem", "problem": str(error)}


def _record_line(file: LogFile, batch: Batch, record: Record) -> Line:
    line: Line = {"is": "record", "offset": record.offset, "timestamp": record.timestamp}
    plain = {"key": record.key, "value": record.value, "headers": record.headers}
    try:
        if batch.is_control:
            message = control.decode(record)
            return line | {"is": "control record", "type": type(message).__name__, "fields": message._asdict()}
        if file.is_metadata and record.value is not None:
            decoded = metadata_records.decode(record.value)
            return line | {"is": "metadata record", "type": type(decoded).__name__, "fields": _json_value(decoded)}
        if (internal := decode_internal_record(file.topic, record)) is not None:
            return line | {"is": "internal record"} | internal._asdict()
    except MoldauError as error:
        return line | plain | {"problem": f"cannot be decoded: {error}"}
    return line | plain


def _quorum_state_line(file: LogFile) -> Line:
    cluster_id, election = parse_quorum_state(file.path.read_bytes())
    return {
        "is": "quorum state",
        "cluster_id": cluster_id,
        "leader_id": election.leader_id,
        "leader_epoch": election.epoch,
        "voted_id": election.voted_for,
        "voted_directory_id": election.voted_directory_id,
    }


def _producer_lines(file: LogFile) -> Iterator[Line]:
    producers = ProducerStateManager()
    producers.restore(file.path.read_bytes())
    for state in producers:
        yield {
            "is": "producer",
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_offset": state.last_offset,
            "last_timestamp": state.last_timestamp_ms,
            "coordinator_epoch": state.coordinator_epoch,
            "transaction_first_offset": state.transaction_first_offset,
            "batches_remembered": len(state.batches),
        }


def _format_json(file: LogFile, line: Line) -> str:
    if line["is"] == "control record":
        line = line | {"fields": _namedtuples_to_dicts(line["fields"])}
    return json.dumps({"file": str(file.path)} | line, default=_json_value, ensure_ascii=True)


def _namedtuples_to_dicts(value: Any) -> Any:
    """Converts named tuples in a control record to dicts, because JSON would encode named tuples as lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _namedtuples_to_dicts(each) for name, each in value.items()}
    return [_namedtuples_to_dicts(each) for each in value] if isinstance(value, tuple) else value


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_to_json(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def _format_text(line: Line) -> str:
    match line["is"]:
        case "batch":
            return _format_batch(line)
        case "record":
            parts = [f"  {line['offset']}", _format_time(line["timestamp"])]
            parts += [f"key {_format_bytes(line['key'])}", f"value {_format_bytes(line['value'])}"]
            if line["headers"]:
                shown = ", ".join(f"{name}={_format_bytes(content)}" for name, content in line["headers"])
                parts.append(f"headers {shown}")
            if "problem" in line:
                parts.append(f"PROBLEM: {line['problem']}")
            return "  ".join(parts).encode("utf-8", "backslashreplace").decode()
        case "control record" | "metadata record":
            fields = " ".join(f"{name}={value}" for name, value in line["fields"].items())
            return f"  {line['offset']}  {_format_time(line['timestamp'])}  {line['type']} {fields}"
        case "internal record":
            key, value = (json.dumps(line[name], default=_json_value, ensure_ascii=False) for name in ("key", "value"))
            text = f"  {line['offset']}  {_format_time(line['timestamp'])}  {line['type']}  key {key}  value {value}"
            return text.encode("utf-8", "backslashreplace").decode()
        case "quorum state":
            leader, voted = line["leader_id"], line["voted_id"]
            return (
                f"epoch {line['leader_epoch']}, {'no leader' if leader == NO_LEADER else f'leader {leader}'}, "
                f"{'no vote' if voted == NO_VOTE else f'voted for {voted}'}, cluster {line['cluster_id'] or 'unknown'}"
            )
        case "problem":
            return f"  PROBLEM: {line['problem']}"
        case "index entry":
            return f"offset {line['offset']} at position {line['position']}"
        case "time index entry":
            return f"{_format_time(line['timestamp'])} up to offset {line['offset']}"
        case "aborted transaction":
            return (
                f"producer {line['producer_id']}, offsets {line['first_offset']}..{line['last_offset']}, "
                f"last stable offset {line['last_stable_offset']}"
            )
        case "leader epoch":
            return f"epoch {line['epoch']} from offset {line['start_offset']}"
        case _:
            first_offset = line["transaction_first_offset"]
            return (
                f"producer {line['producer_id']} epoch {line['producer_epoch']}: last sequence "
                f"{line['last_sequence']} at offset {line['last_offset']}, {_format_time(line['last_timestamp'])}"
            ) + ("" if first_offset is None else f", transaction since offset {first_offset}")


def _format_batch(line: Line) -> str:
    parts = [
        f"offsets {line['base_offset']}..{line['last_offset']}",
        f"{line['count']} records",
        f"{line['size']} bytes at position {line['position']}",
        f"epoch {line['leader_epoch']}",
        f"{line['timestamp_type']} {_format_time(line['max_timestamp'])}",
        line["compression"],
    ]
    if line["producer_id"] >= 0:
        parts.append(f"producer {line['producer_id']} epoch {line['producer_epoch']}")
        parts.append(f"sequences {line['base_sequence']}..{line['last_sequence']}")
    parts += [name for name in ("transactional", "control") if line[name]]
    if line["delete_horizon_ms"] is not None:
        parts.append(f"tombstones until {_format_time(line['delete_horizon_ms'])}")
    if not line["checksum_is_right"]:
        parts.append("INVALID CHECKSUM")
    return ", ".join(parts)


def _format_time(timestamp_ms: int) -> str:
    if timestamp_ms == NO_TIMESTAMP:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _format_bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        text = json.dumps(value[: 4 * SHOWN_CHARACTERS_MAX].decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        text = f"0x{value[:SHOWN_CHARACTERS_MAX].hex()}"
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(value)} bytes)"
    return text
