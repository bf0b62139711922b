"""The metadata loader, which applies committed records to the image and publishes the changes inside the node.

Committed records are applied at once. All changes since the last publication are published as one delta. At startup,
this delta contains the whole log. Every publisher handles a delta before the next publication starts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.metadata.image_builder import ControllerChange, MetadataChange, apply_changes, delta_between
from moldau.metadata.records import decode
from moldau.metadata.snapshot import image_from_records
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId

MetadataPublisher = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]
CommitListener = Callable[[MetadataDelta, MetadataImage], None]
ImageListener = Callable[[MetadataImage], None]


class MetadataLoader:
    def __init__(self, cluster_id: str) -> None:
        self.image = MetadataImage(cluster_id=cluster_id)
        """The latest image that all publishers have handled. For example, the logs of its partitions are open."""
        self.committed_image = self.image
        """The image with all committed records. Publishers may not have handled it yet."""
        self._commit_listeners: list[CommitListener] = []
        self._publishers: list[MetadataPublisher] = []
        self._image_listeners: list[ImageListener] = []
        self._failure_callbacks: list[Callable[[BaseException], None]] = []
        self._offset_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._pending_deltas: list[MetadataDelta] = []
        """Deltas that are not published yet. The last delta leads to the committed image."""
        self._pending_bytes = 0
        self.published_bytes = 0
        """The size of all published records in bytes."""
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._is_closing = False

    def add_commit_listener(self, listener: CommitListener) -> None:
        """Adds a listener that is called with each change when it is committed, before any publisher is called."""
        self._check_before_first_commit()
        self._commit_listeners.append(listener)

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Adds a publisher. Publishers are called in the order in which they were added."""
        self._check_before_first_commit()
        self._publishers.append(publisher)

    def _check_before_first_commit(self) -> None:
        if self.committed_image.offset >= 0:
            raise RuntimeError("publishers must be added before anything is published")

    def add_image_listener(self, listener: ImageListener) -> None:
        """Adds a listener that is called with each image that all publishers have handled."""
        self._image_listeners.append(listener)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Adds a callback for a failure of the loader. The node must stop, because its image becomes outdated."""
        self._failure_callbacks.append(callback)

    def commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Applies batches that the quorum has committed."""
        if batches and not self._is_stopped:
            self._update(lambda: apply_changes(self.committed_image, _changes_in(batches), batches[-1].last_offset))
            self._pending_bytes += sum(len(value) for batch in batches for value in batch.values)

    def load_snapshot(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int) -> None:
        """Replaces the image with a snapshot, unless the image is newer."""
        if snapshot.end_offset - 1 > self.committed_image.offset and not self._is_stopped:
            self._update(lambda: self._snapshot_update(values, snapshot, leader_id))

    @property
    def _is_stopped(self) -> bool:
        return self._is_closing or self._failure is not None

    def _update(self, update: Callable[[], tuple[MetadataImage, MetadataDelta]]) -> None:
        try:
            self.committed_image, delta = update()
            self._pending_deltas.append(delta)
            for listener in self._commit_listeners:
                listener(delta, self.committed_image)
        except Exception as error:
            self.fail(error)
        else:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    def _snapshot_update(
        self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int
    ) -> tuple[MetadataImage, MetadataDelta]:
        image = image_from_records(
            map(decode, values),
            cluster_id=self.committed_image.cluster_id,
            end_offset=snapshot.end_offset,
            epoch=snapshot.epoch,
            leader_id=leader_id,
        )
        return image, delta_between(self.committed_image, image)

    async def wait_for_offset(self, offset: int) -> None:
        """Waits until all publishers have handled an image that includes the record at `offset`."""
        if self.image.offset >= offset:
            return
        if self._failure is not None:
            raise self._failure
        published: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offset_waiters.append((offset, published))
        await published

    async def close(self) -> None:
        """Waits until the current publication has ended. Later changes are ignored."""
        self._is_closing = True
        self._pending_deltas.clear()
        if self._task is not None:
            await self._task
        self._stop(RuntimeError("the metadata loader is closed"))

    async def _run(self) -> None:
        try:
            while self._pending_deltas:
                image, size = self.committed_image, self._pending_bytes
                is_single = len(self._pending_deltas) == 1
                delta = self._pending_deltas[0] if is_single else delta_between(self.image, image)
                self._pending_deltas.clear()
                self._pending_bytes = 0
                for publisher in self._publishers:
                    publication = publisher(delta, image)
                    if publication is not None:
                        await publication
                self.image = image
                self.published_bytes += size
                self._notify(image)
        except Exception as error:
            self.fail(error)
        finally:
            self._task = None

    def _notify(self, image: MetadataImage) -> None:
        for listener in self._image_listeners:
            listener(image)
        remaining = []
        for offset, published in self._offset_waiters:
            if offset > image.offset:
                remaining.append((offset, published))
            elif not published.done():
                published.set_result(None)
        self._offset_waiters = remaining

    def fail(self, error: BaseException) -> None:
        """Stops the loader. Calls of `wait_for_offset` raise the error, and later changes are ignored."""
        if self._failure is None:
            self._stop(error)
            for callback in self._failure_callbacks:
                callback(error)

    def _stop(self, error: BaseException) -> None:
        self._failure = error
        self._pending_deltas.clear()
        for _, published in self._offset_waiters:
            if not published.done():
                published.set_exception(error)
        self._offset_waiters.clear()


def _changes_in(batches: Sequence[CommittedBatch]) -> list[MetadataChange]:
    changes: list[MetadataChange] = []
    for batch in batches:
        if batch.leader_id is not None:
            changes.append(ControllerChange(batch.leader_id, batch.epoch))
        changes += map(decode, batch.values)
    return changes
