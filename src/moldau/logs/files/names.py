"""The names of files and directories, as Kafka spells them, and the small text files among them."""

import base64
import re
from uuid import UUID

from moldau.errors import CorruptRecordError
from moldau.logs.store import LogName

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
SNAPSHOT = ".snapshot"
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"
EPOCHS = "leader-epoch-checkpoint"
PARTITION = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_OFFSET_DIGITS = 20
_NAME_BYTES_MAX = 255
_REMOVED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_PARTITION_LINES = re.compile(r"version: ?0\ntopic_id: ?([A-Za-z0-9_-]{22})\n?")


def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a name such as `00000000000000000042.log`; None where it is no such name."""
    digits = name[:_OFFSET_DIGITS]
    if name[_OFFSET_DIGITS:] == suffix and len(digits) == _OFFSET_DIGITS and digits.isdecimal():
        return int(digits)
    return None


def log_name_of(directory: str) -> LogName | None:
    """The log that a directory of this name holds, or None."""
    match = _DIRECTORY.fullmatch(directory)
    return LogName(match[1], int(match[2])) if match else None


def removed_name(name: LogName, topic_id: UUID) -> str:
    """What a log's directory is called from its removal until it is gone."""
    return _with_suffix(name, topic_id, _REMOVED_SUFFIX)


def stray_name(name: LogName, topic_id: UUID) -> str:
    """What a log's directory is called that nobody knows."""
    return _with_suffix(name, topic_id, _STRAY_SUFFIX)


def _with_suffix(name: LogName, topic_id: UUID, suffix: str) -> str:
    suffix = f".{topic_id.hex}{suffix}"
    return str(name)[: _NAME_BYTES_MAX - len(suffix)] + suffix


def is_removed(directory: str) -> bool:
    return directory.endswith(_REMOVED_SUFFIX)


def partition_text(topic_id: UUID) -> str:
    """partition.metadata: which topic the log belongs to, since names can be used again."""
    return f"version: 0\ntopic_id: {base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}"


def topic_id_of(text: str) -> UUID:
    match = _PARTITION_LINES.fullmatch(text)
    if match is None:
        raise CorruptRecordError(f"{PARTITION} cannot be read: {text[:80]!r}")
    return UUID(bytes=base64.urlsafe_b64decode(match[1] + "=="))
