"""Where a voter keeps what it must remember of elections: the `quorum-state` file, in Kafka's JSON.

A node without a disk remembers nothing, and needs to remember nothing: its log is gone with it.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from moldau.errors import StorageError
from moldau.quorum.state import Election
from moldau.world.disk import Disk

FILE_NAME = "quorum-state"
DATA_VERSION = 0


class Elections(Protocol):
    def load(self) -> Election:
        """What was saved last; the beginning of all elections where nothing was."""

    async def save(self, election: Election) -> None:
        """Durable when it returns."""


class ElectionFile:
    def __init__(self, disk: Disk, directory: str, voters: Sequence[int]) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._voters = voters

    def load(self) -> Election:
        if not self._disk.exists(self._path):
            return Election()
        file = self._disk.open(self._path)
        try:
            data = file.read(0, file.size)
        finally:
            file.close()
        try:
            found = json.loads(data)
            if found["data_version"] != DATA_VERSION:
                raise ValueError(f"data_version {found['data_version']} is not supported")
            return Election(int(found["leaderEpoch"]), int(found["leaderId"]), int(found["votedId"]))
        except (ValueError, KeyError, TypeError) as error:
            # Starting from a guess could mean voting twice in one epoch.
            raise StorageError(f"{self._path} cannot be read: {error!r}") from error

    async def save(self, election: Election) -> None:
        content = {
            "clusterId": "",
            "leaderId": election.leader_id,
            "leaderEpoch": election.epoch,
            "votedId": election.voted_for,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in self._voters],
            "data_version": DATA_VERSION,
        }
        try:
            await self._disk.replace(self._path, json.dumps(content, separators=(",", ":")).encode())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error}") from error


class ElectionMemory:
    def __init__(self) -> None:
        self._election = Election()

    def load(self) -> Election:
        return self._election

    async def save(self, election: Election) -> None:
        self._election = election
