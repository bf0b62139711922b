"""Where a voter keeps what it must remember of elections: the `quorum-state` file, JSON as Kafka's is.

A node without a disk remembers nothing, and needs to remember nothing: its log is gone with it.
"""

import json
from typing import Any, Protocol
from uuid import UUID

from moldau.errors import InconsistentClusterIdError, StorageError
from moldau.platform.disk import Disk
from moldau.raft.events import ElectionState
from moldau.raft.messages import NO_LEADER, NO_VOTE, EpochEndOffset

FILE_NAME = "quorum-state"
DATA_VERSION = 1
WHAT_TO_DO = (
    "without it this node could vote twice. Put back an undamaged copy that is as new as the metadata log; or, where "
    "other voters are whole, remove this node from the voters, empty its data directory, and add it anew"
)
INT_MAX = 2**31 - 1


class QuorumStateStore(Protocol):
    def load(self) -> ElectionState:
        """What was saved last; the beginning of all elections where nothing was."""

    async def save(self, election: ElectionState) -> None:
        """Durable when it returns."""


class FileQuorumStateStore:
    def __init__(self, disk: Disk, directory: str, cluster_id: str = "") -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._cluster_id = cluster_id

    def load(self) -> ElectionState:
        if not self._disk.exists(self._path):
            return ElectionState()
        try:
            file = self._disk.open(self._path)
            try:
                data = file.read(0, file.size)
            finally:
                file.close()
            found = _read(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Starting from a guess could mean voting twice in one epoch.
            raise StorageError(f"{self._path} cannot be read ({_why(error)}), and {WHAT_TO_DO}") from error
        if found.cluster_id and self._cluster_id and found.cluster_id != self._cluster_id:
            raise InconsistentClusterIdError(
                f"{self._path} is of cluster {found.cluster_id}, and this node of cluster {self._cluster_id}; "
                "check data.dir and cluster.id"
            )
        return found.election

    async def save(self, election: ElectionState) -> None:
        directory_id = election.voted_directory_id
        content = {
            "cluster_id": self._cluster_id,
            "leader_id": election.leader_id,
            "leader_epoch": election.epoch,
            "voted_id": election.voted_for,
            "voted_directory_id": "" if directory_id is None else str(directory_id),
            "data_version": DATA_VERSION,
        }
        try:
            await self._disk.replace(self._path, json.dumps(content, separators=(",", ":")).encode())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error}") from error


class MemoryQuorumStateStore:
    def __init__(self) -> None:
        self._election = ElectionState()

    def load(self) -> ElectionState:
        return self._election

    async def save(self, election: ElectionState) -> None:
        self._election = election


def check_not_older(election: ElectionState, log_end: EpochEndOffset) -> None:
    """A node notes an epoch before it takes any record of it: where the log knows a newer one, what was noted is gone.

    Raises StorageError."""
    if election.epoch < log_end.epoch:
        found = "is missing" if election == ElectionState() else f"ends with epoch {election.epoch}"
        raise StorageError(
            f"{FILE_NAME} {found}, and the metadata log beside it knows epoch {log_end.epoch}: {WHAT_TO_DO}"
        )


class _Found:
    def __init__(self, cluster_id: str, election: ElectionState) -> None:
        self.cluster_id = cluster_id
        self.election = election


def _read(data: bytes) -> _Found:
    found = json.loads(data)
    version = _number(found, "data_version")
    if version == 0:
        # Kafka's spelling, and that of our first files.
        names = ("clusterId", "leaderEpoch", "leaderId", "votedId", "votedDirectoryId")
    elif version == DATA_VERSION:
        names = ("cluster_id", "leader_epoch", "leader_id", "voted_id", "voted_directory_id")
    else:
        raise ValueError(f"data_version {version} is not supported")
    cluster_id, *numbers, voted_directory_id = names
    epoch, leader_id, voted_id = (_number(found, name) for name in numbers)
    directory_id = found.get(voted_directory_id) or None
    if (
        not 0 <= epoch <= INT_MAX
        or not NO_LEADER <= leader_id <= INT_MAX
        or not NO_VOTE <= voted_id <= INT_MAX
    ):
        raise ValueError(f"epoch {epoch}, leader {leader_id} and vote {voted_id} cannot be")
    if epoch == 0 and (leader_id != NO_LEADER or voted_id != NO_VOTE):
        raise ValueError(
            f"it names leader {leader_id} and vote {voted_id} in epoch 0, in which nobody stands"
        )
    if directory_id is not None and voted_id == NO_VOTE:
        raise ValueError(f"it names the directory {directory_id} of a vote, and no vote")
    election = ElectionState(epoch, leader_id, voted_id, None if directory_id is None else UUID(directory_id))
    return _Found(str(found.get(cluster_id, "")), election)


def _number(found: dict[str, Any], name: str) -> int:
    value = found[name]
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}")
    return value


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
