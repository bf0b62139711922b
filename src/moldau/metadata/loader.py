"""Keeps the committed image and tells the parts of the node of every change, one after the other.

What is committed is applied at once, for those who must not wait for anybody. All that was applied meanwhile is one
delta (at boot: the whole log, from its snapshot on), which every publisher takes before the next delta is made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.image_builder import ControllerChange, MetadataChange, apply
from moldau.metadata.records import decode
from moldau.metadata.snapshot import delta_between, image_from_records
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId

MetadataPublisher = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]
CommittedImageListener = Callable[[MetadataDelta, MetadataImage], None]
PublishedImageListener = Callable[[MetadataImage], None]


class MetadataLoader:
    def __init__(self, cluster_id: str) -> None:
        self._image = self._committed = MetadataImage(cluster_id=cluster_id)
        self._commit_listeners: list[CommittedImageListener] = []
        self._publishers: list[MetadataPublisher] = []
        self._listeners: list[PublishedImageListener] = []
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._offset_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._pending_deltas: list[MetadataDelta] = []
        """What no publication has begun with yet: the newest of them ends with the committed image."""
        self._pending_bytes = 0
        self.published_bytes = 0
        """Of the records in all batches that were published."""
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._is_closing = False

    @property
    def committed(self) -> MetadataImage:
        """The newest image, though publishers may not have taken it yet: opening logs can take them long."""
        return self._committed

    @property
    def image(self) -> MetadataImage:
        """The newest image that all publishers have taken: a topic in it has its logs open here."""
        return self._image

    def add_commit_listener(self, foreseer: CommittedImageListener) -> None:
        """Calls `foreseer` with each change as soon as it is committed, before any publisher takes it."""
        self._check_before_first_commit()
        self._commit_listeners.append(foreseer)

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Publishers are told in the order they subscribe: logs, partitions, coordinators, connections.

        All subscribe before the first commit, so that none has missed a change.
        """
        self._check_before_first_commit()
        self._publishers.append(publisher)

    def _check_before_first_commit(self) -> None:
        if self._committed.offset >= 0:
            raise RuntimeError("a publisher must subscribe before anything is published")

    def add_image_listener(self, listener: PublishedImageListener) -> None:
        """Calls `listener` with each image once all publishers have taken it."""
        self._listeners.append(listener)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Calls `callback` when no more changes will come, because the metadata log failed or a change could
        not be applied or published: this node then knows less than the cluster agreed on, and must stop."""
        self._on_failure.append(callback)

    def commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Takes what the quorum has committed since the last call."""
        if batches and not self._is_stopped:
            self._update(lambda: _apply_all(self._committed, batches))
            self._pending_bytes += sum(len(value) for batch in batches for value in batch.values)

    def load_snapshot(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int) -> None:
        """Takes a snapshot as the image's new beginning: what was committed up to its end is in it.

        Publishers are told of the difference to what they know. A snapshot of what the image has already changes
        nothing.
        """
        if snapshot.end_offset - 1 > self._committed.offset and not self._is_stopped:
            self._update(lambda: self._image_from_snapshot(values, snapshot, leader_id))

    @property
    def _is_stopped(self) -> bool:
        return self._is_closing or self._failure is not None

    def _update(self, step: Callable[[], tuple[MetadataImage, MetadataDelta]]) -> None:
        try:
            self._committed, delta = step()
            self._pending_deltas.append(delta)
            for foreseer in self._commit_listeners:
                foreseer(delta, self._committed)
        except Exception as error:
            self.fail(error)
        else:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for_offset(self, offset: int) -> None:
        """Returns when the image holds `offset` and all publishers have taken it."""
        if self._image.offset >= offset:
            return
        if self._failure is not None:
            raise self._failure
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offset_waiters.append((offset, arrived))
        await arrived

    async def close(self) -> None:
        """Lets the publication under way come to its end; takes no more."""
        self._is_closing = True
        self._pending_deltas.clear()
        if self._task is not None:
            await self._task
        self._stop(RuntimeError("the metadata loader is closed"))

    async def _run(self) -> None:
        try:
            while self._pending_deltas:
                image, delta, size = self._committed, self._merged_delta(), self._pending_bytes
                self._pending_deltas.clear()
                self._pending_bytes = 0
                await self._publish(delta, image)
                self.published_bytes += size
                self._notify(image)
        except Exception as error:
            self.fail(error)
        finally:
            self._task = None

    def _merged_delta(self) -> MetadataDelta:
        return (
            self._pending_deltas[0]
            if len(self._pending_deltas) == 1
            else delta_between(self._image, self._committed)
        )

    def _image_from_snapshot(
        self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int
    ) -> tuple[MetadataImage, MetadataDelta]:
        image = image_from_records(
            map(decode, values),
            cluster_id=self._committed.cluster_id,
            end_offset=snapshot.end_offset,
            epoch=snapshot.epoch,
            leader_id=leader_id,
        )
        return image, delta_between(self._committed, image)

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for publisher in self._publishers:
            taken = publisher(delta, image)
            if taken is not None:
                await taken
        self._image = image

    def _notify(self, image: MetadataImage) -> None:
        for listener in self._listeners:
            listener(image)
        still_waiting = []
        for offset, arrived in self._offset_waiters:
            if offset > image.offset:
                still_waiting.append((offset, arrived))
            elif not arrived.done():
                arrived.set_result(None)
        self._offset_waiters = still_waiting

    def fail(self, error: BaseException) -> None:
        """Ends it: whoever waits for a change gets the error, and later changes are not taken."""
        if self._failure is None:
            self._stop(error)
            for callback in self._on_failure:
                callback(error)

    def _stop(self, error: BaseException) -> None:
        self._failure = error
        self._pending_deltas.clear()
        for _, arrived in self._offset_waiters:
            if not arrived.done():
                arrived.set_exception(error)
        self._offset_waiters.clear()


def _apply_all(
    image: MetadataImage, batches: Sequence[CommittedBatch]
) -> tuple[MetadataImage, MetadataDelta]:
    return apply(image, _changes(batches), batches[-1].last_offset)


def _changes(batches: Sequence[CommittedBatch]) -> list[MetadataChange]:
    changes: list[MetadataChange] = []
    for batch in batches:
        if batch.leader_id is not None:
            changes.append(ControllerChange(batch.leader_id, batch.epoch))
        changes += map(decode, batch.values)
    return changes
