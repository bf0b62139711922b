"""Keeps the committed image and tells the parts of the node of every change, one after the other.

What is committed is applied at once, for those who must not wait for anybody. All that was applied meanwhile is one
delta (at boot: the whole log, from its snapshot on), which every publisher takes before the next delta is made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moldau.metadata.apply import Change, LeaderChange, apply
from moldau.metadata.image import ClusterDelta, ClusterImage
from moldau.metadata.records import decode
from moldau.metadata.snapshot import delta_between, image_from
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId

Publisher = Callable[[ClusterDelta, ClusterImage], Awaitable[None] | None]
Foreseer = Callable[[ClusterDelta, ClusterImage], None]
Listener = Callable[[ClusterImage], None]


class MetadataLoader:
    def __init__(self, cluster_id: str) -> None:
        self._image = self._committed = ClusterImage(cluster_id=cluster_id)
        self._foreseers: list[Foreseer] = []
        self._publishers: list[Publisher] = []
        self._listeners: list[Listener] = []
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._deltas: list[ClusterDelta] = []
        """What no publication has begun with yet: the newest of them ends with the committed image."""
        self._bytes_waiting = 0
        self.bytes_applied = 0
        """Of the records in all batches that were published."""
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._is_closing = False

    @property
    def committed(self) -> ClusterImage:
        """The newest image, though publishers may not have taken it yet: opening logs can take them long."""
        return self._committed

    @property
    def image(self) -> ClusterImage:
        """The newest image that all publishers have taken: a topic in it has its logs open here."""
        return self._image

    def foresee(self, foreseer: Foreseer) -> None:
        """Calls `foreseer` with each change as soon as it is committed, before any publisher takes it."""
        self._check_nothing_missed()
        self._foreseers.append(foreseer)

    def subscribe(self, publisher: Publisher) -> None:
        """Publishers are told in the order they subscribe: logs, partitions, coordinators, connections.

        All subscribe before the first commit, so that none has missed a change.
        """
        self._check_nothing_missed()
        self._publishers.append(publisher)

    def _check_nothing_missed(self) -> None:
        if self._committed.offset >= 0:
            raise RuntimeError("a publisher must subscribe before anything is published")

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with each image once all publishers have taken it."""
        self._listeners.append(listener)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Calls `callback` when no more changes will come, because the metadata log failed or a change could
        not be applied or published: this node then knows less than the cluster agreed on, and must stop."""
        self._on_failure.append(callback)

    def commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Takes what the quorum has committed since the last call."""
        if batches and not self._takes_no_more:
            self._take(lambda: _apply_all(self._committed, batches))
            self._bytes_waiting += sum(len(value) for batch in batches for value in batch.values)

    def begin_with(self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int) -> None:
        """Takes a snapshot as the image's new beginning: what was committed up to its end is in it.

        Publishers are told of the difference to what they know. A snapshot of what the image has already changes
        nothing.
        """
        if snapshot.end_offset - 1 > self._committed.offset and not self._takes_no_more:
            self._take(lambda: self._begun_with(values, snapshot, leader_id))

    @property
    def _takes_no_more(self) -> bool:
        return self._is_closing or self._failure is not None

    def _take(self, step: Callable[[], tuple[ClusterImage, ClusterDelta]]) -> None:
        try:
            self._committed, delta = step()
            self._deltas.append(delta)
            for foreseer in self._foreseers:
                foreseer(delta, self._committed)
        except Exception as error:
            self.fail(error)
        else:
            if self._task is None:
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
        self._is_closing = True
        self._deltas.clear()
        if self._task is not None:
            await self._task
        self._end(RuntimeError("the metadata loader is closed"))

    async def _run(self) -> None:
        try:
            while self._deltas:
                image, delta, size = self._committed, self._whole_delta(), self._bytes_waiting
                self._deltas.clear()
                self._bytes_waiting = 0
                await self._publish(delta, image)
                self.bytes_applied += size
                self._tell(image)
        except Exception as error:
            self.fail(error)
        finally:
            self._task = None

    def _whole_delta(self) -> ClusterDelta:
        return self._deltas[0] if len(self._deltas) == 1 else delta_between(self._image, self._committed)

    def _begun_with(
        self, values: Sequence[bytes], snapshot: SnapshotId, leader_id: int
    ) -> tuple[ClusterImage, ClusterDelta]:
        image = image_from(
            map(decode, values),
            cluster_id=self._committed.cluster_id,
            end_offset=snapshot.end_offset,
            epoch=snapshot.epoch,
            leader_id=leader_id,
        )
        return image, delta_between(self._committed, image)

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
        self._deltas.clear()
        for _, arrived in self._waiting:
            if not arrived.done():
                arrived.set_exception(error)
        self._waiting.clear()


def _apply_all(image: ClusterImage, batches: Sequence[CommittedBatch]) -> tuple[ClusterImage, ClusterDelta]:
    return apply(image, _changes(batches), batches[-1].last_offset)


def _changes(batches: Sequence[CommittedBatch]) -> list[Change]:
    changes: list[Change] = []
    for batch in batches:
        if batch.leader_id is not None:
            changes.append(LeaderChange(batch.leader_id, batch.epoch))
        changes += map(decode, batch.values)
    return changes
