"""Beginning a log anew: everything in it goes, and an empty log begins at another offset.

That is more than one step on a disk, so what is wanted is written down first. Whatever a crash leaves behind, the
next opening finds the note and does all of it again; without a note nothing has happened yet.
"""

import base64
import json
import re
from typing import NamedTuple

from moldau.errors import CorruptRecordError
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.file_names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    segment_file_name,
)
from moldau.logs.files.segment import read_small_file
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.store import LogName
from moldau.platform.disk import Disk

MARKER = "begin-anew"

_VERSION = 0
_SEGMENT_FILE = re.compile(r"[0-9]{20}\..+")


class LogReset(NamedTuple):
    offset: int
    producers: bytes | None = None
    """A snapshot of what is to be remembered of them."""
    epochs: str = LeaderEpochCache().to_text()
    """The leader epochs to be remembered, as their file has them."""


async def write_reset_marker(disk: Disk, directory: str, reset: LogReset) -> None:
    """Writes the note. An OSError leaves the log as it is, unless the note `has_reset_marker` all the same."""
    await disk.replace(f"{directory}/{MARKER}", _to_json(reset))


def has_reset_marker(disk: Disk, directory: str) -> bool:
    """Whether the next opening of the log will begin it anew."""
    return disk.exists(f"{directory}/{MARKER}")


async def finish_pending_reset(disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints) -> bool:
    """What a crash interrupted, if there is such; raises CorruptRecordError where the note cannot be read."""
    marker = read_small_file(disk, f"{directory}/{MARKER}")
    if marker is None:
        return False
    await reset_log(disk, directory, name, checkpoints, _from_json(marker))
    return True


async def reset_log(
    disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints, reset: LogReset
) -> None:
    """Does what was announced; durable when it returns. An OSError leaves it to the next opening of the log to finish
    it."""
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
    disk.remove(f"{directory}/{MARKER}")
    await disk.sync_directory(directory)


def _to_json(reset: LogReset) -> bytes:
    producers = reset.producers
    content = {
        "version": _VERSION,
        "offset": reset.offset,
        "producers": None if producers is None else base64.b64encode(producers).decode(),
        "epochs": reset.epochs,
    }
    return json.dumps(content).encode()


def _from_json(marker: bytes) -> LogReset:
    try:
        content = json.loads(marker)
        offset, producers, epochs = content["offset"], content["producers"], content["epochs"]
        if content["version"] != _VERSION or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"version {content['version']}, offset {offset}")
        LeaderEpochCache.from_text(epochs)
        return LogReset(offset, None if producers is None else base64.b64decode(producers), epochs)
    except (ValueError, KeyError, TypeError, AttributeError, CorruptRecordError) as error:
        raise CorruptRecordError(f"the file {MARKER} cannot be read: {error}") from error
