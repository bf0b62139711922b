"""Makes snapshots of the published image when they are due, and hands them to the quorum, which keeps them and lets go
of the log before them. Every node does so for itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from moldau.errors import MoldauError
from moldau.metadata.image import MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import encode
from moldau.metadata.snapshot import image_to_records
from moldau.metadata.snapshot_policy import SnapshotPolicy
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.raft.messages import SnapshotId

log = get_logger("metadata.snapshots")

_RECORDS_PER_STEP = 100
"""How many are encoded before others get their turn."""


class SnapshotWriter(Protocol):
    """The quorum, as far as it is needed here."""

    async def write_snapshot(
        self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int = -1
    ) -> None: ...


class SnapshotGenerator:
    def __init__(
        self,
        loader: MetadataLoader,
        quorum: SnapshotWriter,
        clock: Clock,
        *,
        bytes_max: int,
        interval_ms: int,
    ) -> None:
        self._loader = loader
        self._quorum = quorum
        self._clock = clock
        self._policy = SnapshotPolicy(bytes_max, interval_ms, clock.monotonic_ms())
        self._seen_bytes = 0
        self._task: asyncio.Task[None] | None = None
        loader.add_image_listener(self._on_published)

    async def close(self) -> None:
        """A snapshot under way is given up; none is made any more."""
        self._policy.bytes_max, self._policy.interval_ms = 2**63, 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_published(self, image: MetadataImage) -> None:
        self._policy.add_bytes(self._loader.published_bytes - self._seen_bytes)
        self._seen_bytes = self._loader.published_bytes
        if self._task is None and self._policy.is_due(self._clock.monotonic_ms()):
            self._policy.restart(self._clock.monotonic_ms())
            self._task = asyncio.get_running_loop().create_task(self._generate(image))

    async def _generate(self, image: MetadataImage) -> None:
        # Every epoch begins with a record of its leader, so the last record is of the controller's epoch.
        end = SnapshotId(image.offset + 1, image.controller_epoch)
        try:
            values: list[bytes] = []
            for record in image_to_records(image):
                values.append(encode(record))
                if len(values) % _RECORDS_PER_STEP == 0:
                    await asyncio.sleep(0)
            await self._quorum.write_snapshot(values, end, image.controller_id)
            log.info("metadata snapshot", end_offset=end.end_offset, epoch=end.epoch, records=len(values))
        except MoldauError as error:
            log.warning(
                "no metadata snapshot could be made; tried again when the next is due", why=str(error)
            )
        except Exception:
            log.exception("making a metadata snapshot failed; tried again when the next is due")
        finally:
            self._task = None
