"""The interface through which a Raft node sends requests to other nodes."""

from collections.abc import Sequence
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


class NetworkChannel(Protocol):
    """Each call raises PeerUnreachableError if no usable response arrives; callers may cancel it."""

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        """Sets the endpoints of a voter, or those that a leader sent with its BeginQuorumEpoch."""

    async def vote(self, node_id: int, request: VoteRequest) -> VoteResponse: ...

    async def begin_quorum_epoch(
        self, node_id: int, request: BeginQuorumEpochRequest
    ) -> QuorumEpochResponse: ...

    async def end_quorum_epoch(self, node_id: int, request: EndQuorumEpochRequest) -> QuorumEpochResponse: ...

    async def fetch(self, node_id: int, request: QuorumFetchRequest) -> QuorumFetchResponse: ...

    async def fetch_snapshot(self, node_id: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse: ...
