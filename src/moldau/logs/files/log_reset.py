"""Reset of a log: deletes all records and starts an empty log at another offset.

A marker file commits the reset. After a crash the next open of the log finds the marker and repeats all steps.
"""

import base64
import json
import re
from typing import NamedTuple

from moldau.errors import CorruptRecordError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.file_names import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_file_name
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.store import LogName
from moldau.platform.disk import Disk, read_small_file

MARKER = "incomplete-reset"
OLD_MARKER = "begin-anew"
"""The name of the marker file in earlier releases. This file is still read."""

_VERSION = 0
_SEGMENT_FILE = re.compile(r"[0-9]{20}\..+")


class LogReset(NamedTuple):
    offset: int
    producers: bytes | None = None
    """The producer snapshot that the log keeps."""
    epochs: str = LeaderEpochCache().to_text()
    """The leader epoch checkpoint that the log keeps."""


async def write_reset_marker(disk: Disk, directory: str, reset: LogReset) -> None:
    """Commits the reset. After an OSError it is committed if the marker exists; otherwise the log is unchanged."""
    await disk.replace(f"{directory}/{MARKER}", _to_json(reset))


def has_reset_marker(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{MARKER}")


async def finish_pending_reset(disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints) -> bool:
    """Completes a reset that a crash interrupted. Returns whether there was one. Raises CorruptRecordError."""
    for marker in (MARKER, OLD_MARKER):
        data = read_small_file(disk, f"{directory}/{marker}")
        if data is not None:
            await reset_log(disk, directory, name, checkpoints, _from_json(data, marker), marker=marker)
            return True
    return False


async def reset_log(
    disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints, reset: LogReset, *, marker: str = MARKER
) -> None:
    """Carries out a committed reset, durably. After an OSError the next open of the log completes the reset."""
    for found in disk.list(directory):
        if _SEGMENT_FILE.fullmatch(found):
            disk.remove(f"{directory}/{found}")
    file = disk.open(f"{directory}/{segment_file_name(reset.offset, LOG_SUFFIX)}")
    try:
        await file.sync()
    finally:
        file.close()
    if reset.producers is not None:
        await disk.replace(f"{directory}/{segment_file_name(reset.offset, SNAPSHOT_SUFFIX)}", reset.producers)
    await disk.replace(f"{directory}/{LEADER_EPOCH_CHECKPOINT}", reset.epochs.encode())
    await disk.sync_directory(directory)
    for checkpoint in checkpoints:
        checkpoint.set(name, reset.offset)
        await checkpoint.flush()
    disk.remove(f"{directory}/{marker}")
    await disk.sync_directory(directory)


def _to_json(reset: LogReset) -> bytes:
    producers = None if reset.producers is None else base64.b64encode(reset.producers).decode()
    content = {"version": _VERSION, "offset": reset.offset, "producers": producers, "epochs": reset.epochs}
    return json.dumps(content).encode()


def _from_json(data: bytes, marker: str) -> LogReset:
    try:
        content = json.loads(data)
        offset, producers, epochs = content["offset"], content["producers"], content["epochs"]
        if content["version"] != _VERSION or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"version {content['version']}, offset {offset}")
        LeaderEpochCache.from_text(epochs)
        return LogReset(offset, None if producers is None else base64.b64decode(producers), epochs)
    except (ValueError, KeyError, TypeError, AttributeError, CorruptRecordError) as error:
        raise CorruptRecordError(f"the file {marker} cannot be read: {error}") from error
