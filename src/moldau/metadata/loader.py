"""Keeps the committed image and tells the parts of the node of every change, one after the other.

Committed batches queue up here; all that wait are applied as one delta (at boot: the whole log, from its snapshot
on), which every publisher takes before the next delta is made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from moldau.metadata.apply import Change, LeaderChange, apply
from moldau.metadata.image import ClusterDelta, ClusterImage
from moldau.metadata.records import decode
from moldau.metadata.snapshot import delta_between, image_from
from moldau.quorum.batches import CommittedBatch
from moldau.quorum.messages import SnapshotId

Publisher = Callable[[ClusterDelta, ClusterImage], Awaitable[None] | None]
Listener = Callable[[ClusterImage], None]


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A snapshot that the image begins anew with."""

    values: Sequence[bytes]
    id: SnapshotId
    leader_id: int


class MetadataLoader:
    def __init__(self, cluster_id: str) -> None:
        self._image = ClusterImage(cluster_id=cluster_id)
        self._publishers: list[Publisher] = []
        self._listeners: list[Listener] = []
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._beginning: _Beginning | None = None
        """A snapshot that comes before all that is in the queue."""
        self._queue: list[CommittedBatch] = []
        self.bytes_applied = 0
        """Of the records in all batches that were published."""
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def image(self) -> ClusterImage:
        """The newest image that all publishers have taken: a topic in it has its logs open here."""
        return self._image

    def subscribe(self, publisher: Publisher) -> None:
        """Publishers are told in the order they subscribe: logs, partitions, coordinators, connections.

        All subscribe before the first commit, so that none has missed a change.
        """
        if self._task is not None or self._image.offset >= 0:
            raise RuntimeError("a publisher must subscribe before anything is published")
        self._publishers.append(publisher)

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with each image once all publishers have taken it."""
        self._listeners.append(listener)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Calls `callback` when no more changes will come, because the metadata log failed or a change could
        not be applied or published: this node then knows less than the cluster agreed on, and must stop."""
        self._on_failure.append(callback)

    def commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Takes what the quorum has committed since the last call."""
        if self._failure is not None:
            return
        self._queue += batches
        self._run_soon()

    def begin_with(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int) -> None:
        """Takes a snapshot as the image's new beginning: what was committed up to its end is in it.

        Publishers are told of the difference to what they know. A snapshot of what the image has already changes
        nothing.
        """
        newest = self._queue[-1].last_offset if self._queue else self._image.offset
        if self._failure is None and snapshot.end_offset - 1 > newest:
            self._queue.clear()
            self._beginning = _Beginning(values, snapshot, leader_id)
            self._run_soon()

    def _run_soon(self) -> None:
        if self._task is None and (self._queue or self._beginning is not None):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for(self, offset: int) -> None:
        """Returns when the image holds `offset` and all publishers have taken it."""
        if self._image.offset >= offset:
            return
        if self._failure is not None:
            raise self._failure
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, arrived))
        await arrived

    async def close(self) -> None:
        """Lets the publication under way come to its end; takes no more."""
        self._queue.clear()
        self._beginning = None
        if self._task is not None:
            await self._task
        self._end(RuntimeError("the metadata loader is closed"))

    async def _run(self) -> None:
        try:
            while self._queue or self._beginning is not None:
                batches, self._queue = self._queue, []
                beginning, self._beginning = self._beginning, None
                if beginning is None:
                    image, delta = _apply_all(self._image, batches)
                else:
                    image = _apply_all(self._image_of(beginning), batches)[0]
                    delta = delta_between(self._image, image)
                await self._publish(delta, image)
                self.bytes_applied += sum(len(value) for batch in batches for value in batch.values)
                self._tell(image)
        except Exception as error:
            self.fail(error)
        finally:
            self._task = None

    def _image_of(self, beginning: _Beginning) -> ClusterImage:
        return image_from(
            map(decode, beginning.values),
            cluster_id=self._image.cluster_id,
            end_offset=beginning.id.end_offset,
            epoch=beginning.id.epoch,
            leader_id=beginning.leader_id,
        )

    async def _publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        for publisher in self._publishers:
            taken = publisher(delta, image)
            if taken is not None:
                await taken
        self._image = image

    def _tell(self, image: ClusterImage) -> None:
        for listener in self._listeners:
            listener(image)
        still_waiting = []
        for offset, arrived in self._waiting:
            if offset > image.offset:
                still_waiting.append((offset, arrived))
            elif not arrived.done():
                arrived.set_result(None)
        self._waiting = still_waiting

    def fail(self, error: BaseException) -> None:
        """Ends it: whoever waits for a change gets the error, and later changes are not taken."""
        if self._failure is None:
            self._end(error)
            for callback in self._on_failure:
                callback(error)

    def _end(self, error: BaseException) -> None:
        self._failure = error
        self._queue.clear()
        self._beginning = None
        for _, arrived in self._waiting:
            if not arrived.done():
                arrived.set_exception(error)
        self._waiting.clear()


def _apply_all(image: ClusterImage, batches: Sequence[CommittedBatch]) -> tuple[ClusterImage, ClusterDelta]:
    if not batches:
        return image, ClusterDelta()
    return apply(image, _changes(batches), batches[-1].last_offset)


def _changes(batches: Sequence[CommittedBatch]) -> list[Change]:
    changes: list[Change] = []
    for batch in batches:
        if batch.leader_id is not None:
            changes.append(LeaderChange(batch.leader_id, batch.epoch))
        changes += map(decode, batch.values)
    return changes
