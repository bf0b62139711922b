"""`moldau log dump`: what stands in the files of a log, one line each. Reads only, needs no broker."""

import base64
import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.log.files import OFFSET_ENTRY, TIME_ENTRY, Kind, LogFile, find, read_batches, read_entries
from moldau.errors import MoldauError
from moldau.logs.epochs import EpochHistory
from moldau.logs.producers import ProducerStates
from moldau.metadata import records as metadata_records
from moldau.records import control
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.records.compression import NAMES
from moldau.records.record import Record, iterate

SHOWN_CHARACTERS_MAX = 120
"""Of a key or value in the readable form; JSON has all of it."""

Line = dict[str, Any]


def log_dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Segments, indexes, snapshots, a partition's directory or a whole data directory."
        ),
    ],
    records: Annotated[
        bool, typer.Option("--records", help="Decode the records in the batches too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many lines of each file.")
    ] = None,
) -> None:
    """Show what is in the files of a log: batches, records, index entries, producers, leader epochs.

    Reads only. It may run beside the broker; the newest segment then ends wherever the broker just is.
    """
    damaged = False
    for file in find(paths):
        if not as_json:
            typer.echo(f"{file.path} ({file.kind.value})")
        try:
            for line in islice(_lines(file, records), limit):
                damaged = damaged or not line.get("checksum_is_right", line["is"] != "problem")
                typer.echo(_as_json(file, line) if as_json else f"  {_as_text(line)}")
        except MoldauError as error:
            damaged = True
            typer.echo(f"{file.path}: {error}. `moldau log verify` says what can be done.", err=True)
    if damaged:
        raise typer.Exit(1)


def _lines(file: LogFile, with_records: bool) -> Iterator[Line]:
    if file.kind in (Kind.BATCHES, Kind.METADATA_SNAPSHOT):
        yield from _batch_lines(file, with_records)
    elif file.kind is Kind.OFFSET_INDEX:
        for offset, position in read_entries(file.path, OFFSET_ENTRY):
            yield {"is": "index entry", "offset": file.base_offset + offset, "position": position}
    elif file.kind is Kind.TIME_INDEX:
        for timestamp, offset in read_entries(file.path, TIME_ENTRY):
            yield {"is": "time index entry", "timestamp": timestamp, "offset": file.base_offset + offset}
    elif file.kind is Kind.PRODUCERS:
        yield from _producer_lines(file)
    else:
        for epoch, offset in EpochHistory.from_text(file.path.read_text("utf-8", "replace")):
            yield {"is": "leader epoch", "epoch": epoch, "start_offset": offset}


def _batch_lines(file: LogFile, with_records: bool) -> Iterator[Line]:
    for position, batch in read_batches(file.path):
        checksum_is_right = batch.checksum_is_right()
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
            "checksum_is_right": checksum_is_right,
        }
        if with_records and checksum_is_right:
            try:
                for record in iterate(batch):
                    yield _record_line(file, batch, record)
            except MoldauError as error:
                yield {"is": "problem", "problem": str(error)}


def _record_line(file: LogFile, batch: Batch, record: Record) -> Line:
    line: Line = {"is": "record", "offset": record.offset, "timestamp": record.timestamp}
    if batch.is_control:
        message = control.decode(record)
        return line | {"is": "control record", "type": type(message).__name__, "fields": message._asdict()}
    if file.is_metadata and record.value is not None:
        decoded = metadata_records.decode(record.value)
        fields = {field.name: getattr(decoded, field.name) for field in dataclasses.fields(decoded)}
        return line | {"is": "metadata record", "type": type(decoded).__name__, "fields": fields}
    return line | {"key": record.key, "value": record.value, "headers": record.headers}


def _producer_lines(file: LogFile) -> Iterator[Line]:
    producers = ProducerStates()
    producers.restore(file.path.read_bytes())
    for state in producers:
        yield {
            "is": "producer",
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_offset": state.last_offset,
            "last_timestamp": state.last_timestamp_ms,
            "batches_remembered": len(state.batches),
        }


def _as_json(file: LogFile, line: Line) -> str:
    if line["is"] == "control record":
        line = line | {"fields": _with_names(line["fields"])}
    return json.dumps({"file": str(file.path)} | line, default=_json_value, ensure_ascii=True)


def _with_names(value: Any) -> Any:
    """Named tuples within a control record as objects: JSON would make bare lists of them."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _with_names(each) for name, each in value.items()}
    return [_with_names(each) for each in value] if isinstance(value, tuple) else value


def _json_value(value: Any) -> Any:
    """Bytes that are no text come as {"base64": ...}, so that the two cannot be taken for each other."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def _as_text(line: Line) -> str:
    match line["is"]:
        case "batch":
            return _batch_text(line)
        case "record":
            parts = [f"  {line['offset']}", _time(line["timestamp"])]
            parts += [f"key {_bytes_text(line['key'])}", f"value {_bytes_text(line['value'])}"]
            if line["headers"]:
                shown = ", ".join(f"{name}={_bytes_text(content)}" for name, content in line["headers"])
                parts.append(f"headers {shown}")
            return "  ".join(parts).encode("utf-8", "backslashreplace").decode()
        case "control record" | "metadata record":
            fields = " ".join(f"{name}={value}" for name, value in line["fields"].items())
            return f"  {line['offset']}  {_time(line['timestamp'])}  {line['type']} {fields}"
        case "problem":
            return f"  PROBLEM: {line['problem']}"
        case "index entry":
            return f"offset {line['offset']} at position {line['position']}"
        case "time index entry":
            return f"{_time(line['timestamp'])} up to offset {line['offset']}"
        case "leader epoch":
            return f"epoch {line['epoch']} from offset {line['start_offset']}"
        case _:
            return (
                f"producer {line['producer_id']} epoch {line['producer_epoch']}: last sequence "
                f"{line['last_sequence']} at offset {line['last_offset']}, {_time(line['last_timestamp'])}"
            )


def _batch_text(line: Line) -> str:
    parts = [
        f"offsets {line['base_offset']}..{line['last_offset']}",
        f"{line['count']} records",
        f"{line['size']} bytes at position {line['position']}",
        f"epoch {line['leader_epoch']}",
        f"{line['timestamp_type']} {_time(line['max_timestamp'])}",
        line["compression"],
    ]
    if line["producer_id"] >= 0:
        parts.append(f"producer {line['producer_id']} epoch {line['producer_epoch']}")
        parts.append(f"sequences {line['base_sequence']}..{line['last_sequence']}")
    parts += [name for name in ("transactional", "control") if line[name]]
    if line["delete_horizon_ms"] is not None:
        parts.append(f"tombstones until {_time(line['delete_horizon_ms'])}")
    if not line["checksum_is_right"]:
        parts.append("WRONG CHECKSUM")
    return ", ".join(parts)


def _time(timestamp_ms: int) -> str:
    if timestamp_ms == NO_TIMESTAMP:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _bytes_text(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        text = json.dumps(value[: 4 * SHOWN_CHARACTERS_MAX].decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        text = f"0x{value[:SHOWN_CHARACTERS_MAX].hex()}"
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(value)} bytes)"
    return text
