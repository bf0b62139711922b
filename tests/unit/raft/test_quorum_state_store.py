"""The quorum-state file: its format, older versions, and rejected contents."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from moldau.errors import InconsistentClusterIdError, StorageError
from moldau.platform.os_disk import OsDisk
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import VoterEndpoint, VoterNode
from moldau.raft.quorum_state_store import FileQuorumStateStore
from moldau.raft.raft_client import RaftClient
from moldau.raft.snapshot_store import MemorySnapshotStore
from support.control_plane import FixedClock, NoPeers, TestLog

DIRECTORY = UUID(int=7)


class UnreachablePeers(NoPeers):
    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        pass


def test_the_state_round_trips_as_json(tmp_path: Path) -> None:
    saved = ElectionState(epoch=2, leader_id=1, voted_for=1, voted_directory_id=DIRECTORY)

    async def scenario() -> None:
        elections = FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-a")
        assert elections.load() == ElectionState()
        await elections.save(saved)
        assert elections.load() == saved

    asyncio.run(scenario())
    assert json.loads((tmp_path / "quorum-state").read_text()) == {
        "cluster_id": "cluster-a",
        "leader_id": 1,
        "leader_epoch": 2,
        "voted_id": 1,
        "voted_directory_id": str(DIRECTORY),
        "data_version": 1,
    }


def test_the_file_exists_after_the_first_start_before_any_election(tmp_path: Path) -> None:
    async def scenario() -> None:
        quorum = RaftClient(
            2,
            DIRECTORY,
            TestLog(),
            FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-a"),
            FixedClock(),
            random.Random(1),
            initial_voters=[VoterNode(1), VoterNode(2), VoterNode(3)],
            channel=UnreachablePeers(),
            snapshots=MemorySnapshotStore(),
            on_commit=lambda batches: None,
            on_fatal=lambda error: None,
        )
        await quorum.start()
        await quorum.close()

    asyncio.run(scenario())
    assert json.loads((tmp_path / "quorum-state").read_text()) == {
        "cluster_id": "cluster-a",
        "leader_id": -1,
        "leader_epoch": 0,
        "voted_id": -1,
        "voted_directory_id": "",
        "data_version": 1,
    }
    assert FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-a").load() == ElectionState()


def test_files_of_data_version_0_are_still_read(tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_text(
        '{"clusterId":"","leaderId":1,"leaderEpoch":4,"votedId":1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-a").load() == ElectionState(4, 1, 1)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "{}",
        "[]",
        "7",
        '{"data_version":5}',
        '{"leader_id":1,"leader_epoch":2,"voted_id":1',
        '{"leader_id":1,"leader_epoch":2,"data_version":1}',
        '{"leader_id":1,"leader_epoch":"2","voted_id":1,"data_version":1}',
        '{"leader_id":1,"leader_epoch":true,"voted_id":1,"data_version":1}',
        '{"leader_id":1,"leader_epoch":-2,"voted_id":1,"data_version":1}',
        '{"leader_id":-2,"leader_epoch":2,"voted_id":1,"data_version":1}',
        '{"leader_id":1,"leader_epoch":0,"voted_id":-1,"data_version":1}',
        '{"leader_id":-1,"leader_epoch":2,"voted_id":-1,"voted_directory_id":"x","data_version":1}',
        '{"leader_id":-1,"leader_epoch":2,"voted_id":1,"voted_directory_id":"x","data_version":1}',
        '{"leader_id":-1,"leader_epoch":2,"voted_id":1,"voted_directory_id":7,"data_version":1}',
    ],
)
def test_a_torn_or_contradictory_file_is_rejected_with_a_repair_hint(tmp_path: Path, content: str) -> None:
    (tmp_path / "quorum-state").write_text(content)
    with pytest.raises(StorageError, match=r"quorum-state cannot be read .* Restore an intact copy"):
        FileQuorumStateStore(OsDisk(), str(tmp_path)).load()


def test_invalid_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StorageError, match="quorum-state"):
        FileQuorumStateStore(OsDisk(), str(tmp_path)).load()


def test_the_file_of_another_cluster_is_rejected(tmp_path: Path) -> None:
    asyncio.run(FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-a").save(ElectionState(1, 1, 1)))
    with pytest.raises(InconsistentClusterIdError, match=r"cluster-a.*cluster-b"):
        FileQuorumStateStore(OsDisk(), str(tmp_path), "cluster-b").load()
