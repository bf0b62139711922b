"""Retention of a log in files: which segments expire, and their deletion."""

import asyncio
from typing import TYPE_CHECKING

from moldau.errors import StorageError
from moldau.logs.files.recovery import delete_old_snapshots, delete_segment_files
from moldau.observe.logging import get_logger

if TYPE_CHECKING:
    from moldau.logs.files.log import FileLog

log = get_logger(__name__)


async def apply_retention(log_: "FileLog", now_ms: int, below: int) -> None:
    """Expires producers and segments, rolls the active segment by segment.ms, and finalizes closed segments.

    Only records with offsets less than `below` are deleted.
    """
    log_.producers.expire(now_ms, log_.producer_expiration_ms)
    segments = log_.segments
    if segments.active.size and log_.roll_policy.is_expired(segments.active, now_ms):
        _try_to_roll(log_)
    if "delete" in log_.settings.cleanup_policy:
        start = await _retention_start_offset(log_, now_ms, below)
        if start > log_.start_offset:
            if start == log_.end_offset and segments.active.size and not _try_to_roll(log_):
                start = max(log_.start_offset, segments.active.base_offset)
            await delete_segments_below(log_, start)
    if len(segments) > 1 and segments[1].base_offset <= log_.start_offset:
        # A crash or a full disk has prevented the deletion of segments below the start offset.
        await delete_segments_below(log_, log_.start_offset)
    # Flush here, because appends do not flush a log with write.caching.
    await log_.flush_and_finalize()
    async with log_.maintenance():
        for segment in segments.closed:
            if segment.has_unwritten_indexes and segment not in segments.unfinalized:
                await segment.write_indexes()
        await log_.checkpoint_recovery_point(if_due=True)


async def delete_segments_below(log_: "FileLog", offset: int) -> None:
    """Sets the start offset of the log and deletes the segments below it."""
    segments = log_.segments
    log_.start_offset = offset
    log_.epochs.truncate_from_start(offset)
    if segments.unfinalized:
        await log_.flush_and_finalize()
    async with log_.maintenance():
        try:
            while len(segments) > 1 and segments[1].base_offset <= offset:
                if segments[0] in segments.unfinalized:
                    # Keep this segment, because its producer snapshot is not written yet. The last batches of its
                    # producers are stored nowhere else.
                    break
                segment = segments.remove_first()
                delete_segment_files(log_.disk, log_.directory, segment.base_offset)
                delete_old_snapshots(log_.disk, log_.directory, segments.base_offsets)
                # Sync after each segment. Otherwise a crash could bring back an older segment while a newer segment
                # stays deleted.
                await log_.disk.sync_directory(log_.directory)
        except OSError as error:
            raise log_.health.on_disk_error("deleting from", error) from error


async def _retention_start_offset(log_: "FileLog", now_ms: int, below: int) -> int:
    """Returns the end of the last segment that retention.ms or retention.bytes deletes; the current start offset if no
    segment is deleted."""
    settings, start_offset, size = log_.settings, log_.start_offset, log_.size
    for segment in list(log_.segments):
        if segment.next_offset > below:
            break
        if not segment.size:
            # Compaction has removed all batches. The segment is deleted together with the next segment.
            continue
        segment.load_timestamps()
        # A segment without timestamps has no age and never expires.
        age_ms = now_ms - segment.max_timestamp if segment.max_timestamp >= 0 else -1
        is_too_old = 0 <= settings.retention_ms < age_ms
        is_too_much = 0 <= settings.retention_bytes <= size - segment.size
        if not (is_too_old or is_too_much):
            break
        start_offset = segment.next_offset
        size -= segment.size
        await asyncio.sleep(0)
    return start_offset


def _try_to_roll(log_: "FileLog") -> bool:
    """Rolls the active segment. Returns False if the disk is full; retention may free space."""
    try:
        log_.roll(log_.end_offset, log_.end_offset)
    except StorageError as error:
        log_.health.check()
        log.warning("segment was not rolled yet", log=str(log_.name), reason=str(error))
        return False
    return True
