"""The cluster over `/v1`, on three nodes: brokers, quorum, partitions, reassignments, and a leader that is dead."""

import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.http.v1.errors import status_of
from moldau.node.meta_properties import new_cluster_id
from moldau.platform.system import system_platform
from moldau.testing.cluster import Cluster
from support.broker_process import BrokerProcess
from support.http_v1 import consume, error_code, produce
from support.ports import free_port


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, settings={"http.port": "0"}) as running:
        yield running


def api_of(cluster: Cluster, node_id: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://{cluster.nodes[node_id].http_address}/v1", timeout=60)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_node_describes_the_cluster_and_the_quorum(cluster: Cluster) -> None:
    views = []
    for node_id in (1, 2, 3):
        with api_of(cluster, node_id) as api:
            view = api.get("/cluster").json()
            assert view.pop("node_id") == node_id
            views.append(view)
            quorum = api.get("/quorum").json()
            assert quorum["leader_id"] == cluster.controller_id
            assert sorted(each["node_id"] for each in quorum["voters"]) == [1, 2, 3]
            [leader] = [each for each in quorum["voters"] if each["node_id"] == cluster.controller_id]
            assert leader["lag"] == 0
            assert leader["last_caught_up_timestamp"] == leader["last_fetch_timestamp"] is not None
            assert api.get("/brokers").json()["brokers"] == view["brokers"]
    assert views[0] == views[1] == views[2]
    assert [each["broker_id"] for each in views[0]["brokers"]] == [1, 2, 3]
    assert [each["broker_id"] for each in views[0]["brokers"] if each["is_controller"]] == [cluster.controller_id]


def test_any_node_serves_every_partition(cluster: Cluster) -> None:
    with api_of(cluster, 1) as first, api_of(cluster, 2) as second, api_of(cluster, 3) as third:
        created = first.post("/topics", json={"name": "spread", "partitions": 3, "replication_factor": 1})
        assert created.status_code == 201, created.text
        for partition in range(3):
            produce(second, "spread", {"value": {"json": partition}, "partition": partition})
            [record] = consume(third, "spread", partition)["records"]
            assert record["value"] == {"json": partition}


def test_partitions_show_the_offsets_of_the_leader_and_of_each_replica(cluster: Cluster) -> None:
    with api_of(cluster, 1) as api:
        api.post("/topics", json={"name": "state", "partitions": 2, "replication_factor": 3}).raise_for_status()
        produce(api, "state", *({"partition": 1} for _ in range(7)))

        def is_replicated() -> bool:
            states = api.get("/topics/state/partitions").json()["partitions"]
            return [each["log_end_offset"] for each in states[1]["replicas"]] == [7, 7, 7]

        wait_until(is_replicated)
        empty, written = api.get("/topics/state/partitions").json()["partitions"]
        assert (written["log_start_offset"], written["high_watermark"], empty["high_watermark"]) == (0, 7, 0)
        assert sorted(written["isr"]) == [1, 2, 3]
        assert [each["broker_id"] for each in written["replicas"] if each["is_leader"]] == [written["leader"]]
        assert error_code(api.get("/topics/missing/partitions"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_reassignment_moves_a_partition(cluster: Cluster) -> None:
    with api_of(cluster, 2) as api:
        api.post("/topics", json={"name": "moved", "partitions": 1, "replication_factor": 1}).raise_for_status()
        produce(api, "moved", {"value": {"text": "stays"}})
        old = api.get("/topics/moved").json()["partitions"][0]["leader"]
        new = old % 3 + 1
        wanted = [{"topic": "moved", "partition": 0, "replicas": [new]}]
        partial = [*wanted, {"topic": "moved", "partition": 9, "replicas": [new]}]
        response = api.post("/reassignments", json={"partitions": partial})
        assert response.status_code == 207
        assert ["error" in each for each in response.json()["partitions"]] == [False, True]
        assert api.post("/reassignments", json={"partitions": wanted}).status_code == 202
        wait_until(lambda: api.get("/topics/moved").json()["partitions"][0]["replicas"] == [new])
        wait_until(lambda: api.get("/reassignments").json() == {"reassignments": []})
        [record] = consume(api, "moved", format="text", wait_ms=5_000)["records"]
        assert record["value"] == {"text": "stays"}
        unknown = [{"topic": "moved", "partition": 0, "replicas": [9]}]
        response = api.post("/reassignments", json={"partitions": unknown})
        assert error_code(response, 400) == "INVALID_REPLICA_ASSIGNMENT"
        cancel = [{"topic": "moved", "partition": 0, "replicas": None}]
        response = api.post("/reassignments", json={"partitions": cancel})
        assert error_code(response, 404) == "NO_REASSIGNMENT_IN_PROGRESS"


def test_a_dead_leader_is_503_with_retry_after() -> None:
    with Cluster(3, settings={"http.port": "0"}) as cluster:
        survivor = next(each for each in (1, 2, 3) if each != cluster.controller_id)
        with api_of(cluster, survivor) as api:
            body = {"name": "single", "partitions": 3, "replication_factor": 1}
            api.post("/topics", json=body).raise_for_status()
            leaders = [each["leader"] for each in api.get("/topics/single").json()["partitions"]]
            dead = next(each for each in leaders if each not in (survivor, cluster.controller_id))
            partition = leaders.index(dead)
            cluster.kill(dead)
            wait_until(lambda: api.get("/topics/single").json()["partitions"][partition]["leader"] is None)
            responses = (
                api.post("/topics/single/records", json={"records": [{"partition": partition}]}),
                api.get(f"/topics/single/partitions/{partition}/records"),
                api.get("/topics/single/stream", params={"partition": partition}),
            )
            for response in responses:
                assert error_code(response, 503) == "LEADER_NOT_AVAILABLE"
                assert response.headers["retry-after"]
            others = [each for each in range(3) if leaders[each] != dead]
            produce(api, "single", *({"partition": each} for each in others))
            state = api.get("/topics/single/partitions").json()["partitions"][partition]
            assert (state["leader"], state["high_watermark"]) == (None, None)
            assert [each["log_end_offset"] for each in state["replicas"]] == [None]


def test_the_leader_knows_the_log_end_of_a_dead_replica() -> None:
    with Cluster(3, settings={"http.port": "0"}) as cluster:
        survivor = next(each for each in (1, 2, 3) if each != cluster.controller_id)
        with api_of(cluster, survivor) as api:
            body = {"name": "copied", "partitions": 1, "replication_factor": 3}
            api.post("/topics", json=body | {"configs": {"min.insync.replicas": "2"}}).raise_for_status()

            def log_ends() -> dict[int, int | None]:
                [state] = api.get("/topics/copied/partitions").json()["partitions"]
                return {each["broker_id"]: each["log_end_offset"] for each in state["replicas"]}

            produce(api, "copied", *({} for _ in range(5)))
            wait_until(lambda: log_ends() == {1: 5, 2: 5, 3: 5})
            leader = api.get("/topics/copied").json()["partitions"][0]["leader"]
            dead = next(each for each in (1, 2, 3) if each not in (survivor, leader))
            cluster.kill(dead)
            produce(api, "copied", *({} for _ in range(3)))
            wait_until(lambda: sorted(log_ends().items()) == sorted({1: 8, 2: 8, 3: 8, dead: 5}.items()))


def test_a_node_that_is_not_ready_is_503_with_retry_after(tmp_path_factory: pytest.TempPathFactory) -> None:
    http_port, port, missing_port = free_port(), free_port(), free_port()
    voters = f"1@127.0.0.1:{port},2@127.0.0.1:{missing_port}"
    cluster_id = new_cluster_id(system_platform().random)
    arguments = (
        "--node-id",
        "1",
        "--cluster-id",
        cluster_id,
        "--controller-quorum-voters",
        voters,
        "--http-port",
        str(http_port),
    )
    process = BrokerProcess(tmp_path_factory.mktemp("unready") / "data", *arguments, port=port)
    process.spawn()
    try:
        api = httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=60)

        def is_live() -> bool:
            try:
                return api.get("/livez").status_code == 200
            except httpx.ConnectError:
                return False

        wait_until(is_live)
        for response in (api.get("/v1/topics"), api.post("/v1/topics/x/records", json={"records": [{}]})):
            assert error_code(response, 503) == "NOT_AVAILABLE"
            assert response.headers["retry-after"]
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestTimedOutError("too slow"), 504),
        (KafkaError(ErrorCode.leader_not_available), 503),
        (KafkaError(ErrorCode.not_leader_or_follower), 503),
        (KafkaError(ErrorCode.network_exception), 503),
        (KafkaError(ErrorCode.not_enough_replicas), 503),
        (KafkaError(ErrorCode.unknown_topic_or_partition), 404),
        (KafkaError(ErrorCode.topic_already_exists), 409),
        (KafkaError(ErrorCode.message_too_large), 413),
        (KafkaError(ErrorCode.offset_out_of_range), 400),
        (KafkaError(ErrorCode.topic_authorization_failed), 403),
    ],
)
def test_errors_of_the_cluster_have_one_status_each(error: KafkaError, status: int) -> None:
    assert status_of(error) == status
