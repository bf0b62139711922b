"""Beginning a log anew: everything in it goes, and an empty log begins at another offset.

That is more than one step on a disk, so what is wanted is written down first. Whatever a crash leaves behind, the
next opening finds the note and does all of it again; without a note nothing has happened yet.
"""

import base64
import json
import re
from typing import NamedTuple

from moldau.errors import CorruptRecordError
from moldau.logs.epochs import EpochHistory
from moldau.logs.files.checkpoints import Checkpoints
from moldau.logs.files.names import EPOCHS, LOG, SNAPSHOT, offset_name
from moldau.logs.files.segment import read_file
from moldau.logs.store import LogName
from moldau.platform.disk import Disk

NOTE = "begin-anew"

_VERSION = 0
_OF_A_SEGMENT = re.compile(r"[0-9]{20}\..+")


class Beginning(NamedTuple):
    offset: int
    producers: bytes | None = None
    """A snapshot of what is to be remembered of them."""
    epochs: str = EpochHistory().to_text()
    """The leader epochs to be remembered, as their file has them."""


async def announce(disk: Disk, directory: str, beginning: Beginning) -> None:
    """Writes the note. An OSError leaves the log as it is, unless the note `is_announced` all the same."""
    await disk.replace(f"{directory}/{NOTE}", _to_json(beginning))


def is_announced(disk: Disk, directory: str) -> bool:
    """Whether the next opening of the log will begin it anew."""
    return disk.exists(f"{directory}/{NOTE}")


async def finish_beginning_anew(disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints) -> bool:
    """What a crash interrupted, if there is such; raises CorruptRecordError where the note cannot be read."""
    note = read_file(disk, f"{directory}/{NOTE}")
    if note is None:
        return False
    await carry_out(disk, directory, name, checkpoints, _from_json(note))
    return True


async def carry_out(
    disk: Disk, directory: str, name: LogName, checkpoints: Checkpoints, beginning: Beginning
) -> None:
    """Does what was announced; durable when it returns. An OSError leaves it to the next opening of the log to finish
    it."""
    for found in disk.list(directory):
        if _OF_A_SEGMENT.fullmatch(found):
            disk.remove(f"{directory}/{found}")
    file = disk.open(f"{directory}/{offset_name(beginning.offset, LOG)}")
    try:
        await file.sync()
    finally:
        file.close()
    if beginning.producers is not None:
        await disk.replace(f"{directory}/{offset_name(beginning.offset, SNAPSHOT)}", beginning.producers)
    await disk.replace(f"{directory}/{EPOCHS}", beginning.epochs.encode())
    await disk.sync_directory(directory)
    for checkpoint in checkpoints:
        checkpoint.set(name, beginning.offset)
        await checkpoint.flush()
    disk.remove(f"{directory}/{NOTE}")
    await disk.sync_directory(directory)


def _to_json(beginning: Beginning) -> bytes:
    producers = beginning.producers
    content = {
        "version": _VERSION,
        "offset": beginning.offset,
        "producers": None if producers is None else base64.b64encode(producers).decode(),
        "epochs": beginning.epochs,
    }
    return json.dumps(content).encode()


def _from_json(note: bytes) -> Beginning:
    try:
        content = json.loads(note)
        offset, producers, epochs = content["offset"], content["producers"], content["epochs"]
        if content["version"] != _VERSION or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"version {content['version']}, offset {offset}")
        EpochHistory.from_text(epochs)
        return Beginning(offset, None if producers is None else base64.b64decode(producers), epochs)
    except (ValueError, KeyError, TypeError, AttributeError, CorruptRecordError) as error:
        raise CorruptRecordError(f"the file {NOTE} cannot be read: {error}") from error
