"""The names of files and directories, which are the same as in Kafka, and the format of partition.metadata."""

import base64
import re
from uuid import UUID

from moldau.errors import CorruptRecordError
from moldau.logs.store import LogName

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
DELETE_DIR_SUFFIX = "-delete"
STRAY_DIR_SUFFIX = "-stray"

_LOG_DIR = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_OFFSET_DIGITS = 20
_NAME_BYTES_MAX = 255
_PARTITION_METADATA_LINES = re.compile(r"version: ?0\ntopic_id: ?([A-Za-z0-9_-]{22})\n?")


def segment_file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_offset(name: str, suffix: str) -> int | None:
    """Returns the offset of a name such as `00000000000000000042.log`; None for any other name."""
    digits = name[:_OFFSET_DIGITS]
    if name[_OFFSET_DIGITS:] == suffix and len(digits) == _OFFSET_DIGITS and digits.isdecimal():
        return int(digits)
    return None


def parse_log_name(directory: str) -> LogName | None:
    """Returns the name of the log that a directory contains; None if the directory is not a log."""
    match = _LOG_DIR.fullmatch(directory)
    return LogName(match[1], int(match[2])) if match else None


def renamed_dir(name: LogName, topic_id: UUID, suffix: str) -> str:
    """Returns the new name of a log's directory. The suffix says that the log is stray or is being deleted."""
    suffix = f".{topic_id.hex}{suffix}"
    return str(name)[: _NAME_BYTES_MAX - len(suffix)] + suffix


def format_partition_metadata(topic_id: UUID) -> str:
    """Returns the content of partition.metadata: the topic id of the log, because topic names can be reused."""
    return f"version: 0\ntopic_id: {base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}"


def parse_topic_id(text: str) -> UUID:
    match = _PARTITION_METADATA_LINES.fullmatch(text)
    if match is None:
        raise CorruptRecordError(f"{PARTITION_METADATA} cannot be read: {text[:80]!r}")
    return UUID(bytes=base64.urlsafe_b64decode(match[1] + "=="))
