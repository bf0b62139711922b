"""Which lives of the node its disk has seen, kept in `incarnations` of the data directory: by that the cluster tells
the disk that a node had when it ended from an empty one, and from an older state of it."""

import json
from uuid import UUID

from moldau.errors import StorageError
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk

FILE_NAME = "incarnations"
INCARNATIONS_MAX = 100
"""Only starts that found no cluster add up."""

log = get_logger(__name__)


class IncarnationStore:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"

    def previous_incarnations(self) -> tuple[UUID, ...]:
        """The last life that was registered, as far as the node heard of it, and those that may have been since."""
        if not self._disk.exists(self._path):
            return ()
        try:
            file = self._disk.open(self._path)
            try:
                found = json.loads(file.read(0, file.size))
            finally:
                file.close()
            return tuple(UUID(each) for each in found["incarnation_ids"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error(
                "the file of this disk's lives cannot be read: the cluster will take the disk for another one",
                path=self._path,
                why=str(error) or type(error).__name__,
            )
            return ()

    async def add(self, incarnation_id: UUID) -> tuple[UUID, ...]:
        """Durable before the cluster hears of this life. Gives the former ones."""
        previous_incarnations = self.previous_incarnations()
        # The first is the one that was surely registered.
        await self._save(
            (*previous_incarnations[:1], *previous_incarnations[1:][2 - INCARNATIONS_MAX :], incarnation_id)
        )
        return previous_incarnations

    async def mark_registered(self, incarnation_id: UUID) -> None:
        """This life is registered: no former one can be any more."""
        await self._save((incarnation_id,))

    async def _save(self, lives: tuple[UUID, ...]) -> None:
        content = {"version": 0, "incarnation_ids": [str(each) for each in lives]}
        try:
            await self._disk.replace(self._path, json.dumps(content).encode())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error}") from error
