"""All logs of a node, in one directory: finding, opening and removing them, and the checkpoints they share."""

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
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    TEMPORARY_SUFFIX,
    delete_dir_name,
    format_partition_metadata,
    is_delete_dir,
    parse_log_name,
    parse_offset,
    parse_topic_id,
    stray_dir_name,
)
from moldau.logs.files.log import FileLog
from moldau.logs.files.log_reset import finish_pending_reset
from moldau.logs.files.recovery import damage_message, load_log
from moldau.logs.files.segment import read_small_file
from moldau.logs.store import LogName, LogStore
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.platform.disk import Disk
from moldau.settings.topic import TopicSettings

PRODUCER_EXPIRATION_MS = 86_400_000
CONCURRENT_CLOSES_MAX = 64
"""How many logs are closed at a time: each waits for many syncs, and those of all can run together."""

_RESERVED_ID_MAX = 1

log = get_logger(__name__)


class FileLogStore(LogStore):
    def __init__(
        self,
        disk: Disk,
        directory: str,
        clock: Clock,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._producer_expiration_ms = producer_expiration_ms
        self._checkpoints = Checkpoints(
            *(
                OffsetCheckpoint(disk, f"{directory}/{name}", clock)
                for name in (
                    RECOVERY_POINT_CHECKPOINT,
                    LOG_START_OFFSET_CHECKPOINT,
                    CLEANER_OFFSET_CHECKPOINT,
                    HIGH_WATERMARK_CHECKPOINT,
                )
            )
        )
        self._topic_ids: dict[LogName, UUID] = {}
        self._logs: dict[LogName, FileLog] = {}
        self._unopened: set[LogName] = set()
        """Logs that start() found and nobody has opened since: as clean, or as torn, as they were left."""
        self._stale_in_checkpoints: set[LogName] = set()
        """Logs that are gone, and that the files of checkpoints may still know."""

    async def start(self) -> None:
        disk, directory = self._disk, self._directory
        try:
            await self._create_data_directory()
            for name in disk.list(directory):
                if is_delete_dir(name) or name.endswith(TEMPORARY_SUFFIX):
                    disk.remove(f"{directory}/{name}")
                else:
                    self._load_directory(name)
            marker = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
            closed = read_small_file(disk, marker)
            self.had_clean_shutdown = closed is not None or not self._unopened
            self.previous_broker_epoch = -1 if closed is None else _broker_epoch(closed)
            disk.remove(marker)
            # From here on a crash must find no marker.
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
        """Durably, with its parents: a directory that a power cut forgets takes everything in it along."""
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
            # Who opens this log is told so; the others must not be kept from being served.
            log.warning("topic id cannot be read", log=path, why=str(error))
            topic_id = None
        if topic_id is not None:
            self._topic_ids[log_name] = topic_id
        names = self._disk.list(path)
        if PARTITION_METADATA not in names and all(parse_offset(file, LOG_SUFFIX) is None for file in names):
            # A creation that a crash interrupted: the topic's id is written before anything else.
            self._disk.remove(path)
        else:
            self._unopened.add(log_name)

    def _read_topic_id(self, path: str) -> UUID | None:
        """None where the file is missing or damaged."""
        data = read_small_file(self._disk, f"{path}/{PARTITION_METADATA}")
        if data is None:
            return None
        try:
            return parse_topic_id(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            log.warning("topic id cannot be read", log=path, why=str(error))
            return None

    def found(self) -> Sequence[tuple[LogName, UUID]]:
        """Without logs whose topic id cannot be read: they wait for an `open` by name."""
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
                    # After a crash the new log would be taken for its predecessor.
                    await self._flush_checkpoints(name)
                await self._create(path, topic_id)
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
        )
        try:
            # A crash may have taken records that were committed: with write.caching none of them need be on disk.
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
        """A log that does not say whose it is may be of another topic of this name, so it is not taken for this one's;
        nor is it put out of the way, as this one's replica, which others count on, would then be empty. Ids that are
        reserved are never given to anything else."""
        if topic_id.int <= _RESERVED_ID_MAX or not self._disk.exists(path):
            return
        for each in self._disk.list(path):
            if parse_offset(each, LOG_SUFFIX) is not None and read_small_file(
                self._disk, f"{path}/{each}", bytes_max=1
            ):
                raise CorruptRecordError(f"{PARTITION_METADATA} does not tell which topic it is of")

    async def _create(self, path: str, topic_id: UUID) -> None:
        self._disk.make_directory(path)
        await self._disk.replace(f"{path}/{PARTITION_METADATA}", format_partition_metadata(topic_id).encode())
        await self._disk.sync_directory(self._directory)

    async def remove(self, name: LogName) -> None:
        topic_id = await self._discard(name)
        path, gone = f"{self._directory}/{name}", f"{self._directory}/{delete_dir_name(name, topic_id)}"
        try:
            if not self._disk.exists(path):
                return
            self._disk.remove(gone)
            self._disk.rename(path, gone)
            await self._disk.sync_directory(self._directory)
            self._disk.remove(gone)
        except OSError as error:
            raise StorageError(f"cannot delete the log {name}: {error}") from error
        await self._finish_discard(name)

    async def move_to_stray(self, name: LogName) -> None:
        topic_id = await self._discard(name)
        try:
            if not self._disk.exists(f"{self._directory}/{name}"):
                return
            aside = stray_dir_name(name, topic_id)
            while self._disk.exists(f"{self._directory}/{aside}"):
                topic_id = UUID(int=(topic_id.int + 1) % 2**128)
                aside = stray_dir_name(name, topic_id)
            self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{aside}")
            await self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageError(f"cannot set the log {name} aside: {error}") from error
        log.warning(
            "a log that the cluster does not know is set aside: look at it, and delete it if nothing is missing",
            log=str(name),
            directory=aside,
        )
        await self._finish_discard(name)

    async def _discard(self, name: LogName) -> UUID:
        """Lets go of a log, if it is open; gives the topic id it had."""
        opened = self._logs.pop(name, None)
        if opened is not None:
            await opened.abandon()
        topic_id = self._topic_ids.pop(name, None) or UUID(int=0)
        self._unopened.discard(name)
        self._stale_in_checkpoints.add(name)
        for checkpoint in self._checkpoints:
            # First of all, or a new log of this name would be taken for this one.
            checkpoint.discard(name)
        return topic_id

    async def _finish_discard(self, name: LogName) -> None:
        try:
            await self._flush_checkpoints(name)
        except OSError as error:
            # The log is gone all the same, and what it was known for is forgotten before there is another of its name.
            log.warning("checkpoint is not written", log=str(name), why=str(error))

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
        """A log that failed keeps the shutdown from counting as clean; the others are closed nevertheless."""
        clean = self.had_clean_shutdown or not self._unopened
        waiting = iter(list(self._logs.values()))
        while some := list(islice(waiting, CONCURRENT_CLOSES_MAX)):
            for outcome in await asyncio.gather(*map(self._close, some), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                clean = clean and outcome
        if clean:
            marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
            try:
                await self._disk.replace(f"{self._directory}/{CLEAN_SHUTDOWN_FILE}", marker.encode())
            except OSError as error:
                raise StorageError(f"cannot mark the shutdown as clean: {error}") from error

    @staticmethod
    async def _close(opened: FileLog) -> bool:
        """Whether the next start finds it as it should be."""
        try:
            await opened.close()
        except StorageError as error:
            log.error("log cannot be closed", log=str(opened.name), why=str(error))
        return opened.is_cleanly_closed

    def space(self) -> tuple[int, int]:
        return self._disk.space(self._directory)


def _broker_epoch(marker: bytes) -> int:
    """The epoch in the marker of a clean shutdown. Older ones are empty, and then it is not known."""
    try:
        epoch = json.loads(marker).get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1
