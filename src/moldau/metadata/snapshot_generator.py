"""Generation of metadata snapshots.

Every node generates its own snapshots. The Raft client stores them and deletes the start of the log.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class SnapshotWriter(Protocol):
    """The part of the Raft client that the snapshot generator needs."""

    async def write_snapshot(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int = -1) -> None: ...


@dataclass(slots=True)
class SnapshotPolicy:
    """Decides when a snapshot is due: after `bytes_max` bytes of new records, or after `interval_ms`. Pure."""

    bytes_max: int
    interval_ms: int
    """The maximum time between snapshots if there are new records; 0 means no limit."""
    since_ms: int
    """The time when the last snapshot was started; before the first snapshot, the time when the node started."""
    bytes_since: int = 0
    """The size of the records since `since_ms`, in bytes."""

    def add_bytes(self, count: int) -> None:
        self.bytes_since += count

    def is_due(self, now_ms: int) -> bool:
        if self.bytes_since >= self.bytes_max:
            return True
        return self.bytes_since > 0 and 0 < self.interval_ms <= now_ms - self.since_ms

    def restart(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.bytes_since = 0


class SnapshotGenerator:
    def __init__(
        self, loader: MetadataLoader, writer: SnapshotWriter, clock: Clock, *, bytes_max: int, interval_ms: int
    ) -> None:
        self._loader = loader
        self._writer = writer
        self._clock = clock
        self._policy = SnapshotPolicy(bytes_max, interval_ms, clock.monotonic_ms())
        self._seen_bytes = 0
        self._task: asyncio.Task[None] | None = None
        loader.add_image_listener(self._on_image)

    async def close(self) -> None:
        """Cancels the current snapshot and generates no more."""
        self._policy.bytes_max, self._policy.interval_ms = 2**63, 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_image(self, image: MetadataImage) -> None:
        self._policy.add_bytes(self._loader.published_bytes - self._seen_bytes)
        self._seen_bytes = self._loader.published_bytes
        if self._task is None and self._policy.is_due(self._clock.monotonic_ms()):
            self._policy.restart(self._clock.monotonic_ms())
            self._task = asyncio.get_running_loop().create_task(self._generate(image))

    async def _generate(self, image: MetadataImage) -> None:
        # Every epoch starts with a leader change record, so the last record in the image has the controller's epoch.
        snapshot = SnapshotId(image.offset + 1, image.controller_epoch)
        try:
            values: list[bytes] = []
            for record in image_to_records(image):
                values.append(encode(record))
                if len(values) % _RECORDS_PER_STEP == 0:
                    await asyncio.sleep(0)
            await self._writer.write_snapshot(values, snapshot, image.controller_id)
            log.info(
                "metadata snapshot written", end_offset=snapshot.end_offset, epoch=snapshot.epoch, records=len(values)
            )
        except MoldauError as error:
            log.warning("cannot write a metadata snapshot; the next one will be tried", reason=str(error))
        except Exception:
            log.exception("cannot write a metadata snapshot; the next one will be tried")
        finally:
            self._task = None
