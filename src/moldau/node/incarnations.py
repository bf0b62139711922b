"""The store of the incarnations that used this node's disk: the file `incarnations` in the data directory.

With this list, the controller distinguishes the disk of the registered incarnation from an empty disk or an old copy.
"""

import json
from uuid import UUID

from moldau.errors import StorageError
from moldau.observe.logging import get_logger
from moldau.platform.disk import SmallFiles, read_small_file

FILE_NAME = "incarnations"
INCARNATIONS_MAX = 100
"""The maximum number of saved incarnations. The list grows only while the node fails before it is registered."""

log = get_logger(__name__)


class IncarnationStore:
    def __init__(self, disk: SmallFiles, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"

    def previous_incarnations(self) -> tuple[UUID, ...]:
        """Returns the last incarnation known to be registered, and later incarnations, which may be registered."""
        try:
            data = read_small_file(self._disk, self._path)
            return () if data is None else tuple(UUID(each) for each in json.loads(data)["incarnation_ids"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error(
                "cannot read the incarnations file: the controller will treat this disk as a new one",
                path=self._path,
                reason=str(error) or type(error).__name__,
            )
            return ()

    async def add(self, incarnation_id: UUID) -> tuple[UUID, ...]:
        """Saves a new incarnation and returns the earlier ones. Must be called before the registration."""
        earlier = self.previous_incarnations()
        # Always keep the first saved incarnation: only this one can be known to be registered.
        await self._save((*earlier[:1], *earlier[1:][2 - INCARNATIONS_MAX :], incarnation_id))
        return earlier

    async def mark_registered(self, incarnation_id: UUID) -> None:
        """Records this incarnation as registered and forgets earlier ones."""
        await self._save((incarnation_id,))

    async def _save(self, incarnation_ids: tuple[UUID, ...]) -> None:
        content = {"version": 0, "incarnation_ids": [str(each) for each in incarnation_ids]}
        try:
            await self._disk.replace(self._path, json.dumps(content).encode())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error}") from error
