r"""Logs as lines of text: `offset key payload` for a partition, `offset epoch action body` for the metadata log.

Each record is one line whatever its bytes are, and the original bytes can be restored: a backslash is `\\`, a newline
`\n`, a carriage return `\r`, another control character or a byte that is not UTF-8 `\xNN`, a control character or line
separator beyond ASCII `\uNNNN`, and a null key or payload `\N`. A space in a key is `\x20`, so that the key ends at the
second space of the line.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.cli.log.files import LogFile, LogFileKind, read_batches
from moldau.errors import CorruptRecordError, MoldauError
from moldau.metadata import records as metadata_records
from moldau.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from moldau.records.batch import Batch
from moldau.records.record import Record, iterate_records

CREATE_TOPIC, DELETE_TOPIC, UNDECODABLE = "create-topic", "delete-topic", "undecodable"
NULL = r"\N"

Report = Callable[[LogFile, str], None]
OnBatch = Callable[[LogFile, int], None]
"""Called with the position of each batch that is read."""

_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
_LINE_SEPARATORS = ("Zl", "Zp")


def logs_of(files: Iterable[LogFile]) -> Iterator[tuple[Path, list[LogFile]]]:
    """Yields each log's directory with its segments and metadata snapshots, in order of their offsets."""
    kinds = (LogFileKind.BATCHES, LogFileKind.METADATA_SNAPSHOT)
    for directory, group in groupby((file for file in files if file.kind in kinds), lambda file: file.path.parent):
        yield directory, sorted(group, key=lambda file: file.path.name)


def log_lines(files: list[LogFile], report: Report, on_batch: OnBatch = lambda file, position: None) -> Iterator[str]:
    """Yields the lines of one log. Calls `report` for batches that cannot be read, and continues after them."""
    if files[0].is_metadata:
        yield from _metadata_lines(files, report, on_batch)
    else:
        for file in files:
            for _, record in _records(file, report, on_batch):
                yield f"{record.offset} {escape(record.key, is_key=True)} {escape(record.value)}"


def escape(data: bytes | None, *, is_key: bool = False) -> str:
    """Returns bytes as text without line breaks."""
    if data is None:
        return NULL
    return "".join(_escape_character(character, is_key) for character in data.decode("utf-8", "surrogateescape"))


def _escape_character(character: str, is_key: bool) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character == " ":
        return r"\x20" if is_key else character
    category = unicodedata.category(character)
    if category == "Cc" and character != "\t":
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
    return f"\\u{code:04x}" if category in _LINE_SEPARATORS else character


def _metadata_lines(files: list[LogFile], report: Report, on_batch: OnBatch) -> Iterator[str]:
    """Yields creations and deletions of topics.

    If the start of the log was deleted, the topics of the latest snapshot have the last offsets before its end, as in
    responses of the HTTP API.
    """
    segments = [file for file in files if not file.is_snapshot]
    snapshots = [file for file in files if file.is_snapshot]
    names: dict[UUID, str] = {}
    start_offset = 0
    if snapshots and (not segments or segments[0].base_offset > 0):
        start_offset = snapshots[-1].snapshot_id.end_offset
        actions = list(_topic_actions(_records(snapshots[-1], report, on_batch), names))
        for offset, (_, epoch, action, body) in enumerate(actions, start_offset - len(actions)):
            yield _metadata_line(offset, epoch, action, body)
    for file in segments:
        for _, batch in groupby(_records(file, report, on_batch), key=lambda found: found[0].base_offset):
            for offset, epoch, action, body in _topic_actions(batch, names):
                if offset >= start_offset:
                    yield _metadata_line(offset, epoch, action, body)


def _metadata_line(offset: int, epoch: int, action: str, body: dict[str, Any]) -> str:
    return f"{offset} {epoch} {action} {json.dumps(body, separators=(',', ':'))}"


def _topic_actions(
    records: Iterable[tuple[Batch, Record]], names: dict[UUID, str]
) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    """Yields offset, epoch, action and body of each topic that `records` create or delete.

    `names` has the topics that exist before, and afterwards those that exist then.
    """
    decoded = [(record.offset, batch.leader_epoch, _decode(record)) for batch, record in records]
    partitions = Counter(each.topic_id for _, _, each in decoded if isinstance(each, PartitionRecord))
    for offset, epoch, change in decoded:
        match change:
            case TopicRecord(name=name, topic_id=topic_id):
                names[topic_id] = name
                yield offset, epoch, CREATE_TOPIC, {"topic_name": name, "partition_count": partitions[topic_id]}
            case RemoveTopicRecord(topic_id=topic_id):
                # A single segment may not have the creation of the topic, and thus not its name.
                known = names.pop(topic_id, None)
                body = {"topic_id": str(topic_id)} if known is None else {"topic_name": known}
                yield offset, epoch, DELETE_TOPIC, body
            case MoldauError():
                yield offset, epoch, UNDECODABLE, {"problem": str(change)}


def _decode(record: Record) -> metadata_records.Record | MoldauError:
    try:
        return metadata_records.decode(record.value or b"")
    except MoldauError as error:
        return error


def _records(file: LogFile, report: Report, on_batch: OnBatch) -> Iterator[tuple[Batch, Record]]:
    """Yields the records of clients and of the controller, without control records."""
    try:
        for position, batch in read_batches(file.path):
            on_batch(file, position)
            if not batch.has_valid_checksum():
                report(file, f"invalid checksum at offset {batch.base_offset} (batch at position {position})")
            elif not batch.is_control:
                yield from _records_of(file, batch, report)
    except CorruptRecordError as error:
        report(file, str(error))


def _records_of(file: LogFile, batch: Batch, report: Report) -> Iterator[tuple[Batch, Record]]:
    try:
        for record in iterate_records(batch):
            yield batch, record
    except MoldauError as error:
        report(file, f"the batch at offset {batch.base_offset} cannot be decoded: {error}")
