"""A voter whose disk was replaced: people see the directory that is there, and are told once what to do."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.admin.quorum import QuorumInfo, QuorumReplica
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


def test_of_a_node_with_a_new_directory_only_that_one_is_an_observer() -> None:
    fetches = {ReplicaKey(1, OLD): 100, ReplicaKey(1, CURRENT): 200, ReplicaKey(2, OLD): 50}
    replicas = {key: ReplicaState(key, last_fetch_ms=time_ms) for key, time_ms in fetches.items()}
    leader = leader_state()
    leader.replicas |= replicas
    assert [each.key for each in leader.observers(now_ms=300)] == [ReplicaKey(1, CURRENT), ReplicaKey(2, OLD)]
    leader = leader_state((VoterNode(1, CURRENT, ()),))
    leader.replicas |= replicas
    assert [each.key for each in leader.observers(now_ms=300)] == [ReplicaKey(2, OLD)]


def test_a_node_that_is_no_voter_is_known_by_the_directory_that_fetched_last() -> None:
    def replica(directory: UUID, last_fetch_ms: int) -> QuorumReplica:
        return QuorumReplica(1, directory, 0, last_fetch_ms, -1)

    observers = (replica(OLD, 100), replica(CURRENT, 200), replica(OLD, 150))
    info = QuorumInfo(9, 1, 0, (), observers, {})
    assert info.replica(1) == observers[1]
    with_vote = QuorumInfo(9, 1, 0, (replica(OLD, -1),), observers, {})
    assert with_vote.replica(1) == with_vote.voters[0]
    assert info.replica(2) is None


class Told:
    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, text: str, **more: Any) -> None:
        self.errors.append(more)


class Tree(SimpleNamespace):
    def get(self, name: str) -> Any:
        return getattr(self, name, None)


class Answering:
    """Stands where Peers does and gives the answers it was told to."""

    node_id = 9

    def __init__(self) -> None:
        self.code = ErrorCode.none

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        raise AssertionError("nobody told of an address")

    async def call(self, node_id: int, api: ApiKey, tree: Any, **more: Any) -> Any:
        partition = Tree(error_code=self.code, leader_epoch=3, leader_id=-1)
        return Tree(error_code=ErrorCode.none, topics=[Tree(partitions=[partition])], node_endpoints=[])


def test_a_refusal_is_told_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(wire, "log", told)
    answering: Any = Answering()
    peers = KafkaNetworkChannel(answering, "cluster", listener="NODES", request_timeout_ms=100)
    request = EndQuorumEpochRequest(LEADER.node_id, 3, ())

    async def ask() -> None:
        await peers.end_quorum_epoch(1, request)

    def refused(code: ErrorCode) -> None:
        answering.code = code
        with pytest.raises(PeerUnreachableError):
            asyncio.run(ask())

    for _ in range(5):
        refused(ErrorCode.invalid_voter_key)
    assert len(told.errors) == 1
    assert "remove-voter" in told.errors[0]["reason"]
    refused(ErrorCode.kafka_storage_error)
    assert len(told.errors) == 2
    answering.code = ErrorCode.none
    asyncio.run(ask())
    refused(ErrorCode.kafka_storage_error)
    assert len(told.errors) == 3
