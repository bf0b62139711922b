"""What the quorum asks of others: the way to its peers, and how long it waits for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moldau.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochReply,
    QuorumFetch,
    QuorumFetched,
    SnapshotFetch,
    SnapshotFetched,
    VoterEndpoint,
    VoteReply,
    VoteRequest,
)


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    fetch_timeout_ms: int = 1_500
    """How long a voter hears nothing of its leader before it looks for another one."""
    election_timeout_ms: int = 500
    """How long an election may take before it is tried again, after a random time of as much at most."""
    request_timeout_ms: int = 1_000

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader goes on that no majority fetches from."""
        return self.fetch_timeout_ms * 3 // 2


class QuorumPeers(Protocol):
    """Calls to other nodes. Each raises PeerUnreachableError where no answer came; the caller may cancel it."""

    def know(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        """Where a node is from now on: of every voter, and of a leader that said so itself."""

    async def vote(self, node_id: int, request: VoteRequest) -> VoteReply: ...

    async def begin_epoch(self, node_id: int, request: BeginEpochRequest) -> EpochReply: ...

    async def end_epoch(self, node_id: int, request: EndEpochRequest) -> EpochReply: ...

    async def fetch(self, node_id: int, request: QuorumFetch) -> QuorumFetched: ...

    async def fetch_snapshot(self, node_id: int, request: SnapshotFetch) -> SnapshotFetched: ...
