"""Generation of metadata snapshots.

Every node generates its own snapshots. The Raft client stores them and deletes the start of the log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moldau.errors import MoldauError
from moldau.metadata.image import MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import encode
from moldau.metadata.snapshot import image_to_records
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.raft.messages import SnapshotId

log = get_logger("metadata.snapshots")

_RECORDS_PER_STEP = 100
"""The number of records encoded before other tasks of the event loop run."""


SnapshotWriter = Callable[[Sequence[bytes], SnapshotId, int], Awaitable[None]]


class SnapshotGenerator:
    def __init__(
        self, loader: MetadataLoader, write_snapshot: SnapshotWriter, clock: Clock, *, bytes_max: int, interval_ms: int
    ) -> None:
        """A snapshot is due after `bytes_max` bytes of new records.

        If there is any new record, a snapshot is also due `interval_ms` after the start of the previous one (0: never).
        """
        self._loader = loader
        self._write_snapshot = write_snapshot
        self._clock = clock
        self._bytes_max = bytes_max
        self._interval_ms = interval_ms
        self._last_start_ms = clock.monotonic_ms()
        self._last_published_bytes = 0
        """The size of all records that were published when the last snapshot was started."""
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        loader.add_image_listener(self._on_image)

    async def close(self) -> None:
        """Cancels the current snapshot and generates no more."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_image(self, image: MetadataImage) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._task is None and not self._is_closing and self._is_due(now_ms):
            self._last_start_ms = now_ms
            self._last_published_bytes = self._loader.published_bytes
            self._task = asyncio.get_running_loop().create_task(self._generate(image))

    def _is_due(self, now_ms: int) -> bool:
        new_bytes = self._loader.published_bytes - self._last_published_bytes
        if new_bytes >= self._bytes_max:
            return True
        return new_bytes > 0 and 0 < self._interval_ms <= now_ms - self._last_start_ms

    async def _generate(self, image: MetadataImage) -> None:
        # Every epoch starts with a leader change record, so the last record in the image has the controller's epoch.
        snapshot = SnapshotId(image.offset + 1, image.controller_epoch)
        try:
            values: list[bytes] = []
            for record in image_to_records(image):
                values.append(encode(record))
                if len(values) % _RECORDS_PER_STEP == 0:
                    await asyncio.sleep(0)
            await self._write_snapshot(values, snapshot, image.controller_id)
            log.info(
                "metadata snapshot written", end_offset=snapshot.end_offset, epoch=snapshot.epoch, records=len(values)
            )
        except MoldauError as error:
            log.warning("cannot write a metadata snapshot; the next one will be tried", reason=str(error))
        except Exception:
            log.exception("cannot write a metadata snapshot; the next one will be tried")
        finally:
            self._task = None
