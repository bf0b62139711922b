"""The log store in a data directory: opens and deletes logs, and owns their checkpoint files."""

import asyncio
import json
import posixpath
from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.files.checkpoints import Checkpoints, OffsetCheckpoint
from moldau.logs.files.file_names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    DELETE_DIR_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIR_SUFFIX,
    TEMPORARY_SUFFIX,
    format_partition_metadata,
    parse_log_name,
    parse_offset,
    parse_topic_id,
    renamed_dir,
)
from moldau.logs.files.log import FileLog
from moldau.logs.files.log_reset import finish_pending_reset
from moldau.logs.files.recovery import damage_message, load_log
from moldau.logs.producer_state import PRODUCER_EXPIRATION_MS_DEFAULT
from moldau.logs.store import LogName, LogStore
from moldau.metrics.histogram import DurationHistogram
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.platform.disk import Disk, read_small_file
from moldau.settings.topic import TopicSettings

CONCURRENT_CLOSES_MAX = 64
"""How many logs are closed at the same time. Each close needs many fsyncs."""

_RESERVED_ID_MAX = 1
"""The largest reserved topic id. Kafka never assigns a reserved id, such as that of __cluster_metadata, to another
topic."""

log = get_logger(__name__)


class FileLogStore(LogStore):
    def __init__(
        self, disk: Disk, directory: str, clock: Clock, *, producer_expiration_ms: int = PRODUCER_EXPIRATION_MS_DEFAULT
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._producer_expiration_ms = producer_expiration_ms
        self._checkpoints = Checkpoints(
            recovery_points=OffsetCheckpoint(disk, f"{directory}/{RECOVERY_POINT_CHECKPOINT}", clock),
            start_offsets=OffsetCheckpoint(disk, f"{directory}/{LOG_START_OFFSET_CHECKPOINT}", clock),
            cleaned_offsets=OffsetCheckpoint(disk, f"{directory}/{CLEANER_OFFSET_CHECKPOINT}", clock),
            high_watermarks=OffsetCheckpoint(disk, f"{directory}/{HIGH_WATERMARK_CHECKPOINT}", clock),
        )
        self._topic_ids: dict[LogName, UUID] = {}
        self._logs: dict[LogName, FileLog] = {}
        self._unopened: set[LogName] = set()
        """Logs that start() found and that are not opened yet. They need recovery after a crash."""
        self._stale_in_checkpoints: set[LogName] = set()
        """Deleted logs that the checkpoint files may still contain."""

    async def start(self) -> None:
        disk, directory = self._disk, self._directory
        try:
            await self._create_data_directory()
            for name in disk.list(directory):
                if name.endswith((DELETE_DIR_SUFFIX, TEMPORARY_SUFFIX)):
                    disk.remove(f"{directory}/{name}")
                else:
                    self._load_directory(name)
            marker = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
            closed = read_small_file(disk, marker)
            self.had_clean_shutdown = closed is not None or not self._unopened
            self.previous_broker_epoch = -1 if closed is None else _broker_epoch(closed)
            disk.remove(marker)
            # Make the removal of the marker durable, because a later crash must not look like a clean shutdown.
            await disk.sync_directory(directory)
            for checkpoint in self._checkpoints:
                checkpoint.load()
                for log_name in checkpoint.names():
                    if log_name not in self._unopened:
                        checkpoint.discard(log_name)
                await checkpoint.flush()
        except OSError as error:
            raise StorageError(f"cannot use the data directory {directory}: {error}") from error

    async def _create_data_directory(self) -> None:
        """Creates the directory and its parents durably."""
        missing = []
        path = self._directory
        while path and not self._disk.exists(path):
            missing.append(path)
            path = posixpath.dirname(path)
        self._disk.make_directory(self._directory)
        for path in missing:
            await self._disk.sync_directory(posixpath.dirname(path) or ".")

    def _load_directory(self, name: str) -> None:
        log_name = parse_log_name(name)
        path = f"{self._directory}/{name}"
        if log_name is None or not self._disk.is_directory(path):
            return
        try:
            topic_id = self._read_topic_id(path)
        except OSError as error:
            # Continue, because the other logs must be served. Only opening this log will fail.
            log.warning("topic id cannot be read", log=path, reason=str(error))
            topic_id = None
        if topic_id is not None:
            self._topic_ids[log_name] = topic_id
        names = self._disk.list(path)
        if PARTITION_METADATA not in names and all(parse_offset(file, LOG_SUFFIX) is None for file in names):
            # The creation of this log was interrupted. It has no records, because the topic id is written before them.
            self._disk.remove(path)
        else:
            self._unopened.add(log_name)

    def _read_topic_id(self, path: str) -> UUID | None:
        """Returns the topic id in partition.metadata; None if the file is missing or damaged."""
        data = read_small_file(self._disk, f"{path}/{PARTITION_METADATA}")
        if data is None:
            return None
        try:
            return parse_topic_id(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            log.warning("topic id cannot be read", log=path, reason=str(error))
            return None

    @property
    def sync_durations(self) -> DurationHistogram:
        return self._disk.sync_durations

    def list_logs(self) -> Sequence[tuple[LogName, UUID]]:
        """Returns all logs whose topic id can be read."""
        return list(self._topic_ids.items())

    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> FileLog:
        opened = self._logs.get(name)
        if opened is not None and opened.topic_id == topic_id and not opened.is_closed:
            opened.configure(settings)
            return opened
        path = f"{self._directory}/{name}"
        try:
            is_new = not self._disk.exists(path)
            if not is_new:
                known = self._read_topic_id(path)
                if known is not None and known != topic_id:
                    await self.move_to_stray(name)
                    opened, is_new = None, True
            if not self._disk.exists(f"{path}/{PARTITION_METADATA}") or self._read_topic_id(path) is None:
                self._check_is_empty(path, topic_id)
                if name in self._stale_in_checkpoints:
                    # Flush the checkpoints before the log is created. Otherwise the new log would get the deleted log's
                    # offsets after a crash.
                    await self._flush_checkpoints(name)
                self._disk.make_directory(path)
                await self._disk.replace(f"{path}/{PARTITION_METADATA}", format_partition_metadata(topic_id).encode())
                await self._disk.sync_directory(self._directory)
                self._topic_ids[name] = topic_id
            was_reset = await finish_pending_reset(self._disk, path, name, self._checkpoints)
        except CorruptRecordError as error:
            raise StorageError(damage_message(path, str(error))) from error
        except OSError as error:
            raise StorageError(f"cannot create the log {name}: {error}") from error
        if name in self._unopened:
            clean = self.had_clean_shutdown
        else:
            clean = is_new or (opened is not None and opened.is_cleanly_closed)
        clean = clean and not was_reset
        loaded = await load_log(
            self._disk,
            path,
            index_interval_bytes=settings.index_interval_bytes,
            clean=clean,
            recovery_point=self._checkpoints.recovery_points.get(name),
            start_offset=self._checkpoints.start_offsets.get(name),
            cleaned_offset=self._checkpoints.cleaned_offsets.get(name),
            high_watermark=self._checkpoints.high_watermarks.get(name),
        )
        try:
            # Lower the checkpoints to the log end, because with write.caching a crash may have lost committed records.
            await self._checkpoints.truncate(name, loaded.end_offset)
        except OSError as error:
            raise StorageError(f"cannot open the log {name}: {error}") from error
        opened = FileLog(
            self._disk,
            path,
            name,
            topic_id,
            settings,
            self._checkpoints,
            loaded,
            producer_expiration_ms=self._producer_expiration_ms,
            is_cleanly_closed=clean,
        )
        self._logs[name] = opened
        self._topic_ids[name] = topic_id
        self._unopened.discard(name)
        return opened

    def _check_is_empty(self, path: str, topic_id: UUID) -> None:
        """Raises CorruptRecordError if a log has records but no topic id.

        The log may belong to an earlier topic of the same name, or have the only copy of this topic's records. So it is
        neither opened nor renamed to a stray log.
        """
        if topic_id.int <= _RESERVED_ID_MAX or not self._disk.exists(path):
            return
        segments = [each for each in self._disk.list(path) if parse_offset(each, LOG_SUFFIX) is not None]
        if any(read_small_file(self._disk, f"{path}/{each}", bytes_max=1) for each in segments):
            raise CorruptRecordError(f"{PARTITION_METADATA} has no topic id")

    async def remove(self, name: LogName) -> None:
        topic_id = await self._discard(name)
        path = f"{self._directory}/{name}"
        renamed = f"{self._directory}/{renamed_dir(name, topic_id, DELETE_DIR_SUFFIX)}"
        try:
            if not self._disk.exists(path):
                return
            self._disk.remove(renamed)
            self._disk.rename(path, renamed)
            await self._disk.sync_directory(self._directory)
            self._disk.remove(renamed)
        except OSError as error:
            raise StorageError(f"cannot delete the log {name}: {error}") from error
        await self._finish_discard(name)

    async def move_to_stray(self, name: LogName) -> None:
        topic_id = await self._discard(name)
        try:
            if not self._disk.exists(f"{self._directory}/{name}"):
                return
            stray = renamed_dir(name, topic_id, STRAY_DIR_SUFFIX)
            while self._disk.exists(f"{self._directory}/{stray}"):
                topic_id = UUID(int=(topic_id.int + 1) % 2**128)
                stray = renamed_dir(name, topic_id, STRAY_DIR_SUFFIX)
            self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{stray}")
            await self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageError(f"cannot rename the stray log {name}: {error}") from error
        message = "renamed a stray log, which no topic of the cluster has: delete it if no records are missing"
        log.warning(message, log=str(name), directory=stray)
        await self._finish_discard(name)

    async def _discard(self, name: LogName) -> UUID:
        """Closes a log without saving it, removes it from the checkpoints, and returns its topic id."""
        opened = self._logs.pop(name, None)
        if opened is not None:
            await opened.abandon()
        topic_id = self._topic_ids.pop(name, None) or UUID(int=0)
        self._unopened.discard(name)
        self._stale_in_checkpoints.add(name)
        for checkpoint in self._checkpoints:
            # Discard the offsets before the log is deleted. Otherwise a new log of the same name would get these
            # offsets.
            checkpoint.discard(name)
        return topic_id

    async def _finish_discard(self, name: LogName) -> None:
        try:
            await self._flush_checkpoints(name)
        except OSError as error:
            # Do not fail, because the checkpoints are flushed again before a log of the same name is created.
            log.warning("checkpoint was not written", log=str(name), reason=str(error))

    async def _flush_checkpoints(self, name: LogName) -> None:
        for checkpoint in self._checkpoints:
            await checkpoint.flush()
        self._stale_in_checkpoints.discard(name)

    async def checkpoint_high_watermarks(self) -> None:
        try:
            await self._checkpoints.high_watermarks.flush()
        except OSError as error:
            raise StorageError(f"cannot write the checkpoint of high watermarks: {error}") from error

    async def close(self, broker_epoch: int = -1) -> None:
        """Closes all logs. The shutdown is clean only if every log was closed cleanly."""
        clean = self.had_clean_shutdown or not self._unopened
        pending = iter(list(self._logs.values()))
        while batch := list(islice(pending, CONCURRENT_CLOSES_MAX)):
            for outcome in await asyncio.gather(*map(self._close, batch), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                clean = clean and outcome
        if clean:
            marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
            try:
                await self._disk.replace(f"{self._directory}/{CLEAN_SHUTDOWN_FILE}", marker.encode())
            except OSError as error:
                raise StorageError(f"cannot write {CLEAN_SHUTDOWN_FILE}: {error}") from error

    @staticmethod
    async def _close(opened: FileLog) -> bool:
        """Closes a log. Returns whether the next start needs no recovery of this log."""
        try:
            await opened.close()
        except StorageError as error:
            log.error("log cannot be closed", log=str(opened.name), reason=str(error))
        return opened.is_cleanly_closed

    def space(self) -> tuple[int, int]:
        return self._disk.space(self._directory)


def _broker_epoch(marker: bytes) -> int:
    """Returns the broker epoch in the clean shutdown file; -1 if there is none. Earlier releases wrote an empty
    file."""
    try:
        epoch = json.loads(marker).get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1
