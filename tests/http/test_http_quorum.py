"""`/kraft`: the secret, votes on a lone voter of five, and the metadata log as actions on topics."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moldau.raft.raft_client import RaftClient
from moldau.raft.snapshot_format import SnapshotContents
from moldau.testing import Broker
from support.broker_process import BrokerProcess
from support.broker_process_cluster import as_environment
from support.http_node import HttpNode
from support.ports import free_port

VOTE = {"candidate_epoch": 1, "last_offset": 0, "last_offset_epoch": -1, "candidate_id": "3"}
BEGIN = {"leader_epoch": 1, "leader_id": "3"}
FETCH = {"last_offset": -1, "last_offset_epoch": -1, "max_batch_size": 100, "follower_broker_id": "2"}
PATHS = {"voteRequest": VOTE, "beginQuorumEpoch": BEGIN, "fetchMetadata": FETCH}
SECRET = {"X-Cluster-Secret": "s3cret"}
TIMEOUT_S = 60
"""Long, because the first request loads the HTTP API, which takes seconds on a busy machine."""


class LoneVoter:
    """Node 1 of five voters. The others do not run, so it cannot win an election."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.http_port = free_port()
        ports = [free_port() for _ in range(5)]
        self.process = BrokerProcess(
            directory / "node-1",
            port=ports[0],
            environment=as_environment(
                {
                    "cluster.id": "bG9uZS12b3Rlci1vZi01LS0"[:22],
                    "controller.quorum.voters": ",".join(
                        f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(ports, start=1)
                    ),
                    "http.port": str(self.http_port),
                    **{name.replace("_", "."): value for name, value in settings.items()},
                }
            ),
        )

    def start(self) -> None:
        self.process.spawn()
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                assert self.health()["leader_broker_id"] == -1
                return
            except httpx.TransportError:
                assert time.monotonic() < deadline_s, self.process.output()
                time.sleep(0.05)

    def health(self) -> dict[str, Any]:
        return dict(httpx.get(f"http://127.0.0.1:{self.http_port}/healthcheck", timeout=TIMEOUT_S).json())

    def post(self, name: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        url = f"http://127.0.0.1:{self.http_port}/kraft/v1/{name}"
        content_type = {"Content-Type": "application-json"}
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            response = httpx.post(url, content=json.dumps(body), headers={**content_type, **headers}, timeout=TIMEOUT_S)
            # HTTP opens before the quorum has loaded its log.
            if "NOT_CONTROLLER" not in response.text or time.monotonic() > deadline_s:
                return response
            time.sleep(0.05)

    def quorum_state(self) -> dict[str, Any]:
        return dict(json.loads((self.process.data_dir / "__cluster_metadata-0" / "quorum-state").read_bytes()))


@pytest.fixture
def voter(only_moldau: None, tmp_path: Path) -> Iterator[LoneVoter]:
    voter = LoneVoter(tmp_path, http_kraft_open="true")
    voter.start()
    yield voter
    if voter.process.process is not None:
        voter.process.kill()
    assert "Traceback" not in voter.process.output()


# The secret


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("headers", [{}, {"X-Cluster-Secret": ""}, {"X-Cluster-Secret": "wrong"}])
def test_requests_without_the_secret_get_403(node: HttpNode, name: str, headers: dict[str, str]) -> None:
    response = node.client.post(f"/kraft/v1/{name}", json=PATHS[name], headers=headers)
    assert response.status_code == 403
    assert "cluster.secret" in response.json()["detail"]


def test_a_secret_that_is_not_ascii_gets_403(node: HttpNode) -> None:
    headers = {b"X-Cluster-Secret": "š3cret".encode()}
    response = node.client.post("/kraft/v1/voteRequest", json=VOTE, headers=headers)  # type: ignore[arg-type]
    assert response.status_code == 403


def test_a_secret_beyond_ascii_is_sent_as_utf_8(only_moldau: None) -> None:
    with Broker(settings={"http.port": "0", "cluster.secret": "žluť"}) as broker:
        url = f"http://{broker.node.http_address}/kraft/v1/fetchMetadata"
        for secret, status in (("žluť", 200), ("zlut", 403)):
            headers = {b"X-Cluster-Secret": secret.encode()}
            response = httpx.post(url, json=PATHS["fetchMetadata"], headers=headers, timeout=60)  # type: ignore[arg-type]
            assert response.status_code == status


def test_without_a_configured_secret_every_request_gets_403(only_moldau: None, tmp_path: Path) -> None:
    voter = LoneVoter(tmp_path)
    voter.start()
    try:
        before = voter.quorum_state()
        for name, body in PATHS.items():
            for headers in ({}, {"X-Cluster-Secret": ""}):
                assert voter.post(name, body, **headers).status_code == 403
        assert voter.quorum_state() == before == {**before, "leader_epoch": 0, "voted_id": -1, "leader_id": -1}
    finally:
        voter.process.kill()


def test_a_rejected_request_changes_nothing(node: HttpNode) -> None:
    before = node.client.get("/healthcheck").json()
    for name, body in PATHS.items():
        node.client.post(f"/kraft/v1/{name}", json={**body, "x": 1})
    for name, body in (("voteRequest", {**VOTE, "candidate_epoch": 9}), ("beginQuorumEpoch", {**BEGIN})):
        assert node.client.post(f"/kraft/v1/{name}", json=body).status_code == 403
        # Node 3 is not a voter of this cluster, which has a leader.
        assert node.client.post(f"/kraft/v1/{name}", json=body, headers=SECRET).status_code == 400
    assert node.client.get("/healthcheck").json() == before


# Votes


def test_quorum_state_exists_from_the_first_start(voter: LoneVoter) -> None:
    state = voter.quorum_state()
    assert (state["leader_id"], state["leader_epoch"], state["voted_id"]) == (-1, 0, -1)


def test_a_node_that_is_not_ready_has_health_and_refuses_data(voter: LoneVoter) -> None:
    base = f"http://127.0.0.1:{voter.http_port}"
    ready = httpx.get(f"{base}/readyz", timeout=TIMEOUT_S)
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
    assert "the node is starting" in ready.json()["reasons"]
    assert httpx.get(f"{base}/livez", timeout=TIMEOUT_S).status_code == 200
    for response in (
        httpx.get(f"{base}/admin/v1/topics", timeout=TIMEOUT_S),
        httpx.post(f"{base}/data/v1/produce", json={"topic_partition": "t-1", "payload": "x"}, timeout=TIMEOUT_S),
        voter.post("fetchMetadata", FETCH),
    ):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_only_the_first_vote_of_an_epoch_is_granted_even_after_a_restart(voter: LoneVoter) -> None:
    """`test_simple_api_checks.py` kills the node instead of stopping it."""
    assert voter.post("voteRequest", VOTE).json() == {"granted": True}
    assert voter.quorum_state()["voted_id"] == 3
    voter.process.stop()
    voter.start()
    refused = voter.post("voteRequest", {**VOTE, "candidate_id": "4"})
    assert (refused.status_code, refused.json()) == (200, {"granted": False, "leader_epoch": 0, "leader_id": -1})
    # The candidate that has the vote gets it again, because its first response may be lost.
    assert voter.post("voteRequest", VOTE).json() == {"granted": True}
    granted = voter.post("voteRequest", {**VOTE, "candidate_epoch": 2, "candidate_id": "4"})
    assert granted.json() == {"granted": True}
    assert voter.post("voteRequest", VOTE).json()["granted"] is False
    assert voter.quorum_state()["leader_epoch"] == 2


def test_a_leader_that_announces_itself_is_stored(voter: LoneVoter) -> None:
    assert voter.post("beginQuorumEpoch", BEGIN).json() == {"granted": True}
    state = voter.quorum_state()
    assert (state["leader_id"], state["leader_epoch"]) == (3, 1)
    other = voter.post("beginQuorumEpoch", {"leader_epoch": 1, "leader_id": 4}).json()
    assert (other["granted"], other["leader_epoch"]) == (False, 1 if other["leader_id"] == 3 else 0)
    assert voter.quorum_state()["leader_id"] == 3
    refused = voter.post("voteRequest", {**VOTE, "candidate_id": "4"}).json()
    assert refused["granted"] is False
    assert voter.post("beginQuorumEpoch", {"leader_epoch": 0, "leader_id": "4"}).json()["granted"] is False


def test_an_epoch_far_ahead_gets_400(voter: LoneVoter) -> None:
    for name, body in (("voteRequest", {**VOTE, "candidate_epoch": 2**31 - 1}), ("beginQuorumEpoch", BEGIN)):
        changed = {**body, "leader_epoch": 2**31 - 1} if name == "beginQuorumEpoch" else body
        assert voter.post(name, changed).status_code == 400
    assert voter.quorum_state()["leader_epoch"] == 0


def test_a_vote_depends_on_the_log_of_the_candidate(node: HttpNode) -> None:
    """The node's own log has records, so a candidate without records is not up to date. Node 1 is its only voter."""
    response = node.client.post(
        "/kraft/v1/voteRequest", json={**VOTE, "candidate_epoch": 0, "candidate_id": 1}, headers=SECRET
    )
    assert (response.status_code, response.json()) == (200, {"granted": False, "leader_epoch": 1, "leader_id": 1})


# The metadata log


def actions(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = client.post("/kraft/v1/fetchMetadata", json={**FETCH, **fields}, headers=SECRET)
    assert response.status_code == 200, response.text
    return list(response.json()["records"])


def test_creations_and_deletions_are_actions(node: HttpNode) -> None:
    node.create_topic("first", 2)
    node.create_topic("second", 1)
    assert node.client.delete("/admin/v1/topics/first").status_code == 204
    found = actions(node.client)
    assert [(each["action"], each["payload"]) for each in found] == [
        (
            "create-topic",
            {
                "topic_name": "first",
                "partitions": [
                    {"id": "first-1", "replica_brokers": ["1"]},
                    {"id": "first-2", "replica_brokers": ["1"]},
                ],
            },
        ),
        ("create-topic", {"topic_name": "second", "partitions": [{"id": "second-1", "replica_brokers": ["1"]}]}),
        ("delete-topic", {"topic_name": "first"}),
    ]
    assert [each["epoch"] for each in found] == [1, 1, 1]
    assert sorted(each["offset"] for each in found) == [each["offset"] for each in found]
    assert read_one_by_one(node.client) == found


def read_one_by_one(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        last = found[-1] if found else {"offset": -1, "epoch": -1}
        more = actions(client, last_offset=last["offset"], last_offset_epoch=last["epoch"], max_batch_size=1)
        if not more:
            return found
        assert len(more) == 1
        found += more


@pytest.mark.parametrize(("offset", "epoch"), [(0, 7), (10_000, 1), (10_000, 7), (5, 0)])
def test_a_log_that_diverges_gets_epoch_and_offset(node: HttpNode, offset: int, epoch: int) -> None:
    body = {**FETCH, "last_offset": offset, "last_offset_epoch": epoch}
    found = node.client.post("/kraft/v1/fetchMetadata", json=body, headers=SECRET).json()
    assert found["records"] == []
    if epoch == 0:
        assert (found["diverging_epoch"], found["diverging_offset"]) == (-1, -1)
    else:
        assert (found["diverging_epoch"], found["diverging_offset"] > 0) == (1, True)


def test_the_start_of_a_compacted_log_comes_from_its_snapshot(only_moldau: None, tmp_path: Path) -> None:
    settings = ("--http-port", "0", "--http-kraft-open")
    snapshots = ("--metadata-log-max-record-bytes-between-snapshots", "1000")
    with BrokerProcess(tmp_path / "data", *settings, *snapshots) as process:
        node = HttpNode(process)
        node.create_topic("kept", 2)
        node.create_topic("removed", 1)
        for number in range(12):
            node.create_topic(f"filler{number}", 3)
        assert node.client.delete("/admin/v1/topics/removed").status_code == 204
        log_start = wait_for_log_start(tmp_path / "data")
        found = actions(node.client)
        created = [each["payload"]["topic_name"] for each in found if each["action"] == "create-topic"]
        assert created[0] == "kept"
        assert created[-12:] == [f"filler{number}" for number in range(12)]
        assert found[0]["offset"] < log_start
        assert len(found[0]["payload"]["partitions"]) == 2
        offsets = [each["offset"] for each in found]
        assert sorted(set(offsets)) == offsets
        removed = [each["action"] for each in found if each["payload"]["topic_name"] == "removed"]
        assert removed in ([], ["create-topic", "delete-topic"])
        assert read_one_by_one(node.client) == found
        assert "Traceback" not in process.output()


def test_a_snapshot_that_is_replaced_during_the_read_is_no_gap(
    only_moldau: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(settings={"http.port": "0", "http.kraft.open": "true"}) as broker:
        read_base_snapshot = RaftClient.read_base_snapshot

        async def read_and_replace(quorum: RaftClient) -> SnapshotContents | None:
            found = await read_base_snapshot(quorum)
            patch.setattr(RaftClient, "log_start_offset", property(lambda _: 1))
            return found

        with httpx.Client(base_url=f"http://{broker.node.http_address}", timeout=60) as client:
            with monkeypatch.context() as patch:
                patch.setattr(RaftClient, "read_base_snapshot", read_and_replace)
                response = client.post("/kraft/v1/fetchMetadata", json=FETCH)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert client.post("/kraft/v1/fetchMetadata", json=FETCH).status_code == 200


def wait_for_log_start(data_dir: Path) -> int:
    """Waits until two snapshots are retained, of which the older one is the start of the log. Returns its end."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        ends = sorted(int(path.name[:20]) for path in (data_dir / "__cluster_metadata-0").glob("*.checkpoint"))
        if len(ends) >= 2:
            return ends[0]
        assert time.monotonic() < deadline_s, ends
        time.sleep(0.05)
