"""Voters with a replaced disk: the current directory is shown, and a repair hint is logged once."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.admin.types import QuorumInfo, QuorumReplica
from moldau.errors import PeerUnreachableError
from moldau.raft import kafka_network_channel as wire
from moldau.raft.kafka_network_channel import KafkaNetworkChannel
from moldau.raft.leader_state import LeaderState, ReplicaState
from moldau.raft.messages import EndQuorumEpochRequest, ReplicaKey, VoterNode
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.voter_set import VoterSetHistory
from moldau.wire.api_keys import ApiKey
from moldau.wire.kio import ErrorCode

OLD, CURRENT = UUID(int=1), UUID(int=2)
LEADER = ReplicaKey(9, UUID(int=9))


def leader_state(voters: tuple[VoterNode, ...] = ()) -> LeaderState:
    return LeaderState(
        LEADER,
        1,
        RaftLogState(VoterSetHistory(voters)),
        QuorumConfig(),
        (),
        elected_since_ms=0,
        epoch_start_offset=0,
        next_announcement_ms=0,
    )


def test_only_the_latest_directory_of_a_node_is_an_observer() -> None:
    fetches = {ReplicaKey(1, OLD): 100, ReplicaKey(1, CURRENT): 200, ReplicaKey(2, OLD): 50}
    replicas = {key: ReplicaState(key, last_fetch_ms=time_ms) for key, time_ms in fetches.items()}
    leader = leader_state()
    leader.replicas |= replicas
    assert [each.key for each in leader.observers(now_ms=300)] == [ReplicaKey(1, CURRENT), ReplicaKey(2, OLD)]
    leader = leader_state((VoterNode(1, CURRENT, ()),))
    leader.replicas |= replicas
    assert [each.key for each in leader.observers(now_ms=300)] == [ReplicaKey(2, OLD)]


def test_an_observer_is_described_with_the_directory_that_fetched_last() -> None:
    def replica(directory: UUID, last_fetch_ms: int) -> QuorumReplica:
        return QuorumReplica(1, directory, 0, last_fetch_ms, -1)

    observers = (replica(OLD, 100), replica(CURRENT, 200), replica(OLD, 150))
    info = QuorumInfo(9, 1, 0, (), observers, {})
    assert info.replica(1) == observers[1]
    with_vote = QuorumInfo(9, 1, 0, (replica(OLD, -1),), observers, {})
    assert with_vote.replica(1) == with_vote.voters[0]
    assert info.replica(2) is None


class RecordingLogger:
    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, text: str, **more: Any) -> None:
        self.errors.append(more)


class FakeMessage(SimpleNamespace):
    def get(self, name: str) -> Any:
        return getattr(self, name, None)


class ScriptedPeerClient:
    """A peer client that responds with a given error code."""

    node_id = 9

    def __init__(self) -> None:
        self.code = ErrorCode.none

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        raise AssertionError("unexpected endpoint")

    async def call(self, node_id: int, api: ApiKey, tree: Any, **more: Any) -> Any:
        partition = FakeMessage(error_code=self.code, leader_epoch=3, leader_id=-1)
        return FakeMessage(error_code=ErrorCode.none, topics=[FakeMessage(partitions=[partition])], node_endpoints=[])


def test_a_rejection_is_logged_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = RecordingLogger()
    monkeypatch.setattr(wire, "log", logger)
    peer_client: Any = ScriptedPeerClient()
    peers = KafkaNetworkChannel(peer_client, "cluster", listener="NODES", request_timeout_ms=100)
    request = EndQuorumEpochRequest(LEADER.node_id, 3, ())

    async def call() -> None:
        await peers.send(1, request)

    def check_rejected(code: ErrorCode) -> None:
        peer_client.code = code
        with pytest.raises(PeerUnreachableError):
            asyncio.run(call())

    for _ in range(5):
        check_rejected(ErrorCode.invalid_voter_key)
    assert len(logger.errors) == 1
    assert "remove-voter" in logger.errors[0]["reason"]
    check_rejected(ErrorCode.kafka_storage_error)
    assert len(logger.errors) == 2
    peer_client.code = ErrorCode.none
    asyncio.run(call())
    check_rejected(ErrorCode.kafka_storage_error)
    assert len(logger.errors) == 3
