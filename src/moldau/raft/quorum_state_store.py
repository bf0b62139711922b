"""Storage of the election state: the `quorum-state` file, in Kafka's JSON format.

A node with store=memory keeps the election state in memory, like its log.
"""

import json
from typing import Any, Protocol
from uuid import UUID

from moldau.errors import CorruptRecordError, InconsistentClusterIdError, StorageError
from moldau.platform.disk import SmallFiles, read_small_file
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import NO_LEADER, NO_VOTE, EpochEndOffset

FILE_NAME = "quorum-state"
DATA_VERSION = 1
REPAIR_HINT = (
    "without it this node could vote twice. Restore an intact copy that is as new as the metadata log; or, if the "
    "other voters are intact, remove this node from the voters, empty its data directory, and add it again"
)
INT_MAX = 2**31 - 1


class QuorumStateStore(Protocol):
    def load(self) -> ElectionState:
        """Returns the last saved state; epoch 0 if none was saved."""

    async def save(self, election: ElectionState) -> None:
        """Saves the state durably."""


class FileQuorumStateStore:
    def __init__(self, disk: SmallFiles, directory: str, cluster_id: str = "") -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._cluster_id = cluster_id

    def load(self) -> ElectionState:
        try:
            data = read_small_file(self._disk, self._path)
            if data is None:
                return ElectionState()
            cluster_id, election = parse_quorum_state(data)
        except (OSError, CorruptRecordError) as error:
            # Fail, because with a default state the node could vote twice in one epoch.
            raise StorageError(f"{self._path} cannot be read ({error}), and {REPAIR_HINT}") from error
        if cluster_id and self._cluster_id and cluster_id != self._cluster_id:
            raise InconsistentClusterIdError(
                f"{self._path} belongs to cluster {cluster_id}, this node to cluster {self._cluster_id}; "
                "check data.dir and cluster.id"
            )
        return election

    async def create_if_missing(self) -> None:
        """Creates the file with epoch 0 at the first start of a node. Raises StorageError if this fails."""
        if read_small_file(self._disk, self._path) is None:
            await self.save(ElectionState())

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
    """Raises StorageError if the log has a later epoch than the saved election state. Such a state is outdated, because
    a node saves an epoch before it appends records of that epoch."""
    if election.epoch < log_end.epoch:
        problem = "is missing" if election == ElectionState() else f"has epoch {election.epoch}"
        raise StorageError(f"{FILE_NAME} {problem}, but the metadata log has epoch {log_end.epoch}: {REPAIR_HINT}")


def parse_quorum_state(data: bytes) -> tuple[str, ElectionState]:
    """Returns the cluster id and the election state. Raises CorruptRecordError."""
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(_describe(error)) from error


def _parse(data: bytes) -> tuple[str, ElectionState]:
    fields = json.loads(data)
    version = _integer(fields, "data_version")
    if version == 0:
        # These are Kafka's field names, which early versions of Moldau used too.
        names = ("clusterId", "leaderEpoch", "leaderId", "votedId", "votedDirectoryId")
    elif version == DATA_VERSION:
        names = ("cluster_id", "leader_epoch", "leader_id", "voted_id", "voted_directory_id")
    else:
        raise ValueError(f"data_version {version} is not supported")
    cluster_id, *integers, voted_directory_id = names
    epoch, leader_id, voted_id = (_integer(fields, name) for name in integers)
    directory_id = fields.get(voted_directory_id) or None
    if not 0 <= epoch <= INT_MAX or not NO_LEADER <= leader_id <= INT_MAX or not NO_VOTE <= voted_id <= INT_MAX:
        raise ValueError(f"epoch {epoch}, leader {leader_id} or vote {voted_id} is out of range")
    if epoch == 0 and (leader_id != NO_LEADER or voted_id != NO_VOTE):
        raise ValueError(f"leader {leader_id} and vote {voted_id} in epoch 0, which has no election")
    if directory_id is not None and voted_id == NO_VOTE:
        raise ValueError(f"directory {directory_id} of a vote, but no vote")
    election = ElectionState(epoch, leader_id, voted_id, None if directory_id is None else UUID(directory_id))
    return str(fields.get(cluster_id, "")), election


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r}")
    return value


def _describe(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
