"""What the quorum asks of others: the way to its peers, and how long it waits for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
)


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    fetch_timeout_ms: int = 1_500
    """How long a voter hears nothing of its leader before it looks for another one."""
    election_timeout_ms: int = 500
    """How long an election may take before it is tried again, after a random time of as much at most."""
    request_timeout_ms: int = 1_000

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader goes on that no majority fetches from."""
        return self.fetch_timeout_ms * 3 // 2


class NetworkChannel(Protocol):
    """Calls to other nodes. Each raises PeerUnreachableError where no answer came; the caller may cancel it."""

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        """Where a node is from now on: of every voter, and of a leader that said so itself."""

    async def vote(self, node_id: int, request: VoteRequest) -> VoteResponse: ...

    async def begin_quorum_epoch(
        self, node_id: int, request: BeginQuorumEpochRequest
    ) -> QuorumEpochResponse: ...

    async def end_quorum_epoch(self, node_id: int, request: EndQuorumEpochRequest) -> QuorumEpochResponse: ...

    async def fetch(self, node_id: int, request: QuorumFetchRequest) -> QuorumFetchResponse: ...

    async def fetch_snapshot(self, node_id: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse: ...
