"""The checks of the simple HTTP API: curl commands and scripts against five nodes.

The tests are in the order of the guide that the API comes from, and named by its sections. In the commands, broker 1 is
the leader with port 8001. They run on the ports of the test, and 8001 stands for the leader.
"""

import json
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moldau.client.producer.partitioner import partition_of_key
from support.broker_process import BrokerProcess
from support.http_cluster import METADATA_LOG, TIMEOUT_S, HttpCluster, dump_lines, health, run_commands, wait_until
from support.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the checks run curl, which is not installed")

SECRET = "moldau-checks"
SEGMENT_BYTES = 4096
ALL_BROKERS = ["1", "2", "3", "4", "5"]

CREATE_TESTTOPIC = """
curl -X POST "http://localhost:8001/admin/v1/topics" -H 'Content-Type: application/json' -d '{
    "topic_name": "testtopic",
    "partition_count": 3
}' -s | jq
"""
PRODUCE_THREE_MESSAGES = """
curl -X POST "http://localhost:8001/data/v1/produce" -H 'Content-Type: application/json' -d '{
    "topic_partition": "testtopic-1",
    "key": "msg1",
    "payload": "this is my new message!",
    "acks": "all"
}' -s | jq
echo "Produced first message"
curl -X POST "http://localhost:8001/data/v1/produce" -H 'Content-Type: application/json' -d '{
    "topic_partition": "testtopic-1",
    "key": "msg2",
    "payload": "this is my second message!",
    "acks": "all"
}' -s | jq
echo "Produced second message"
curl -X POST "http://localhost:8001/data/v1/produce" -H 'Content-Type: application/json' -d '{
    "topic_partition": "testtopic-1",
    "key": "msg3",
    "payload": "this is my third message!",
    "acks": "all"
}' -s | jq
echo "Produced third message"
"""
PRODUCED = ["Produced first message", "Produced second message", "Produced third message"]


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCluster]:
    settings = {"cluster.secret": SECRET, "log.index.interval.bytes": "512"}
    # A stalled leader keeps its role, because the tests count elections. A dead one is replaced without this timeout.
    settings["controller.quorum.fetch.timeout.ms"] = "6000"
    directory = tmp_path_factory.mktemp("checks") / "cluster"
    with HttpCluster(directory, settings=settings, MAX_SEGMENT_SIZE_BYTES=str(SEGMENT_BYTES)) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: HttpCluster) -> HttpCluster:
    """The cluster without topics, as at the start of each check. All nodes run."""
    running_cluster.delete_all_topics()
    return running_cluster


def topic(name: str, partitions: int) -> dict[str, Any]:
    """Returns a topic as the API describes it."""
    ids = [f"{name}-{number}" for number in range(1, partitions + 1)]
    return {"topic_name": name, "partitions": [{"id": each, "replica_brokers": ALL_BROKERS} for each in ids]}


def printed(name: str, partitions: int) -> str:
    """Returns a topic as the scripts print it."""
    parts = [
        f'        {{\n            "id": "{name}-{number}",\n'
        f'            "replica_brokers": ["1", "2", "3", "4", "5"]\n        }}'
        for number in range(1, partitions + 1)
    ]
    return f'{{\n    "topic_name": "{name}",\n    "partitions": [\n' + ",\n".join(parts) + "\n    ]\n}\n"


def curl(port: int, path: str, body: Any = None, *options: str) -> tuple[int, Any]:
    """Returns status and JSON of a request. Status 0 is no response."""
    command = ["curl", "-s", "-w", "\n%{http_code}", f"http://localhost:{port}{path}", *options]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    content, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(content) if content else None


def produce(cluster: HttpCluster, topic_partition: str, payload: str, acks: str = "all", *options: str) -> int:
    body = {"topic_partition": topic_partition, "key": "key", "payload": payload, "acks": acks}
    return curl(cluster.ports[cluster.leader()], "/data/v1/produce", body, *options)[0]


def with_secret() -> tuple[str, str]:
    return "-H", f"X-Cluster-Secret: {SECRET}"


# 3.1 Control plane: topics


def test_3_1_1_five_brokers_are_up_and_broker_1_leads(running_cluster: HttpCluster) -> None:
    script = """
curl "http://localhost:8001/healthcheck" -s | jq
curl "http://localhost:8002/healthcheck" -s | jq
curl "http://localhost:8003/healthcheck" -s | jq
curl "http://localhost:8004/healthcheck" -s | jq
curl "http://localhost:8005/healthcheck" -s | jq
"""
    ports = {8000 + number: port for number, port in running_cluster.ports.items()}
    assert run_commands(script, ports) == [
        {"status": "up", "broker_id": number, "leader_broker_id": 1} for number in range(1, 6)
    ]


def test_3_3_4_the_brokers_elect_broker_1_on_the_first_start(running_cluster: HttpCluster) -> None:
    """This is checked before anything else can change the leader."""
    for node_id in running_cluster.node_ids:
        state = running_cluster.quorum_state(node_id)
        assert (state["leader_id"], state["leader_epoch"]) == (1, running_cluster.epoch())


def test_3_1_2_topics_are_created_by_the_leader_only(cluster: HttpCluster) -> None:
    script = f"""{CREATE_TESTTOPIC}{CREATE_TESTTOPIC}
curl -X POST "http://localhost:8002/admin/v1/topics" -H 'Content-Type: application/json' -d '{{
    "topic_name": "testtopic",
    "partition_count": 3
}}' -s | jq
"""
    assert cluster.run_commands(script) == [
        topic("testtopic", 3),
        {"detail": "topic testtopic already exists"},
        {"detail": f"leader is {cluster.leader()}, can't accept"},
    ]
    created = '{"topic_name":"testtopic","partition_count":3}'
    assert cluster.metadata_lines(cluster.leader())[-1].endswith(f" create-topic {created}")


def test_3_1_2_statuses_of_the_commands(cluster: HttpCluster) -> None:
    ports = cluster.ports_with_leader_first()
    body = {"topic_name": "testtopic", "partition_count": 3}
    assert curl(ports[8001], "/admin/v1/topics", body)[0] == 201
    assert curl(ports[8001], "/admin/v1/topics", body)[0] == 409
    assert curl(ports[8002], "/admin/v1/topics", body)[0] == 421
    assert curl(ports[8001], "/admin/v1/topics", body | {"topic_name": "test-topic"})[0] == 400


def test_3_1_3_topics_are_listed(cluster: HttpCluster) -> None:
    script = f"""{CREATE_TESTTOPIC}
curl -X POST "http://localhost:8001/admin/v1/topics" -H 'Content-Type: application/json' -d '{{
    "topic_name": "othertopic",
    "partition_count": 3
}}' -s | jq
curl -X GET "http://localhost:8001/admin/v1/topics" -s | jq
"""
    topics = [topic("testtopic", 3), topic("othertopic", 3)]
    assert cluster.run_commands(script) == [*topics, {"topics": topics}]
    assert curl(cluster.ports_with_leader_first()[8002], "/admin/v1/topics")[0] == 421


def test_3_1_4_a_topic_is_deleted(cluster: HttpCluster) -> None:
    script = f"""{CREATE_TESTTOPIC}
curl -X DELETE "http://localhost:8002/admin/v1/topics/testtopic" -s | jq
curl -X DELETE "http://localhost:8001/admin/v1/topics/testtopic" -s -w '%{{http_code}}\\n'
curl -X GET "http://localhost:8001/admin/v1/topics" -s | jq
curl -X DELETE "http://localhost:8001/admin/v1/topics/testtopic" -s -w '%{{http_code}}\\n'
{CREATE_TESTTOPIC}"""
    assert cluster.run_commands(script) == [
        topic("testtopic", 3),
        {"detail": f"leader is {cluster.leader()}, can't accept"},
        "204",
        {"topics": []},
        {"detail": "topic testtopic does not exist"},
        "404",
        topic("testtopic", 3),
    ]
    actions = [line.split(" ", 2)[2] for line in cluster.metadata_lines(cluster.leader())]
    created = 'create-topic {"topic_name":"testtopic","partition_count":3}'
    assert actions[-3:] == [created, 'delete-topic {"topic_name":"testtopic"}', created]


def test_3_1_5_a_script_creates_topics(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "mynewtopic", "-p", "3", "-r", "2") == (0, printed("mynewtopic", 3))
    code, output = cluster.run_script("create_topic.py", "mynewtopic", "-p", "3", "-r", "2")
    assert (code, json.loads(output)) == (1, {"detail": "topic mynewtopic already exists"})


def test_3_1_6_a_script_lists_topics(cluster: HttpCluster) -> None:
    first, second = printed("mynewtopic", 4), printed("myothernewtopic", 2)
    assert cluster.run_script("create_topic.py", "mynewtopic", "-p", "4", "-r", "1") == (0, first)
    assert cluster.run_script("create_topic.py", "myothernewtopic", "-p", "2", "-r", "3") == (0, second)
    lines = ",\n".join(each.rstrip("\n") for each in (first, second)).splitlines()
    topics = "".join(f"        {line}\n" for line in lines)
    assert cluster.run_script("list_topics.py") == (0, f'{{\n    "topics": [\n{topics}    ]\n}}\n')


def test_3_1_7_a_script_deletes_topics(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "mynewtopic") == (0, printed("mynewtopic", 3))
    assert cluster.run_script("delete_topic.py", "mynewtopic") == (0, "")
    code, output = cluster.run_script("delete_topic.py", "mynewtopic")
    assert (code, json.loads(output)) == (1, {"detail": "topic mynewtopic does not exist"})
    code, output = cluster.run_script("list_topics.py")
    assert (code, json.loads(output)) == (0, {"topics": []})


# 3.2 Data plane: records


def test_3_2_1_records_are_produced(cluster: HttpCluster) -> None:
    assert cluster.run_commands(CREATE_TESTTOPIC + PRODUCE_THREE_MESSAGES) == [topic("testtopic", 3), *PRODUCED]
    directory = cluster.data_dir(cluster.leader()) / "testtopic-0"
    command = [sys.executable, "-m", "moldau", "log", "dump", "--lines", str(directory / f"{0:020d}.log")]
    assert subprocess.run(command, capture_output=True, text=True).stdout.splitlines() == [
        "0 msg1 this is my new message!",
        "1 msg2 this is my second message!",
        "2 msg3 this is my third message!",
    ]


def test_3_2_1_statuses_of_produce(cluster: HttpCluster) -> None:
    cluster.run_commands(CREATE_TESTTOPIC)
    ports = cluster.ports_with_leader_first()
    body = {"topic_partition": "testtopic-1", "key": "msg1", "payload": "text", "acks": "all"}
    assert curl(ports[8001], "/data/v1/produce", body) == (204, None)
    assert curl(ports[8002], "/data/v1/produce", body) == (
        421,
        {"detail": f"leader is {cluster.leader()}, can't accept"},
    )
    for missing in ("othertopic-1", "testtopic-0", "testtopic-4"):
        assert curl(ports[8001], "/data/v1/produce", body | {"topic_partition": missing})[0] == 404


def test_3_2_2_records_are_consumed(cluster: HttpCluster) -> None:
    script = f"""{CREATE_TESTTOPIC}{PRODUCE_THREE_MESSAGES.replace(" | jq", "")}
curl -X POST "http://localhost:8001/data/v1/consume" -H 'Content-Type: application/json' -d '{{
    "topic_partition": "testtopic-1",
    "last_offset": -1,
    "max_batch_size": 2
}}' -s | jq
"""
    first = [
        {"offset": 0, "key": "msg1", "payload": "this is my new message!"},
        {"offset": 1, "key": "msg2", "payload": "this is my second message!"},
    ]
    polled = {"last_offset": 1, "records": first}
    assert cluster.run_commands(script) == [topic("testtopic", 3), *PRODUCED, polled]
    ports = cluster.ports_with_leader_first()
    body = {"topic_partition": "testtopic-1", "last_offset": 1, "max_batch_size": 2}
    third = {"offset": 2, "key": "msg3", "payload": "this is my third message!"}
    assert curl(ports[8001], "/data/v1/consume", body) == (200, {"last_offset": 2, "records": [third]})
    assert curl(ports[8002], "/data/v1/consume", body)[0] == 421
    empty = body | {"topic_partition": "testtopic-2", "last_offset": -1}
    assert curl(ports[8001], "/data/v1/consume", empty) == (200, {"last_offset": -1, "records": []})
    for missing in ("othertopic-1", "testtopic-0", "testtopic-4"):
        assert curl(ports[8001], "/data/v1/consume", body | {"topic_partition": missing})[0] == 404


def test_3_2_3_records_are_replicated_to_all_followers(cluster: HttpCluster) -> None:
    script = f"""{CREATE_TESTTOPIC}
curl -X POST "http://localhost:8001/data/v1/produce" -H 'Content-Type: application/json' -d '{{
    "topic_partition": "testtopic-1",
    "payload": "this is my new message!",
    "acks": "all"
}}' -s
echo "Produced first message"
curl -X POST "http://localhost:8001/data/v1/produce" -H 'Content-Type: application/json' -d '{{
    "topic_partition": "testtopic-1",
    "payload": "this is my second message!",
    "acks": "all"
}}' -s
echo "Produced second message"
"""
    assert cluster.run_commands(script) == [topic("testtopic", 3), *PRODUCED[:2]]
    for node_id in cluster.node_ids:
        lines = cluster.partition_lines(node_id, "testtopic-1")
        assert lines == [r"0 \N this is my new message!", r"1 \N this is my second message!"], node_id


def partition_of(key: str, partitions: int = 3) -> int:
    return partition_of_key(key.encode(), partitions) + 1


def lines_by_partition(keys_and_payloads: dict[str, str], partitions: int = 3) -> dict[int, list[str]]:
    """Returns the lines of each partition, by number from 1 on."""
    lines: dict[int, list[str]] = {number: [] for number in range(1, partitions + 1)}
    for key, payload in keys_and_payloads.items():
        partition = lines[partition_of(key, partitions)]
        partition.append(f"{len(partition)} {key} {payload}")
    return lines


def test_3_2_4_a_script_produces_records(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "testtopic")[0] == 0
    assert cluster.run_script("produce.py", "testtopic", stdin="key1\nmsg1\nkey2\nmsg2\n\n") == (
        0,
        "Key: Payload: > OK\n\nKey: Payload: > OK\n\nKey: ",
    )
    for number, lines in lines_by_partition({"key1": "msg1", "key2": "msg2"}).items():
        assert cluster.partition_lines(cluster.leader(), f"testtopic-{number}") == lines


class ConsumeScript:
    """`consume.py` in a process of its own, which runs until it is interrupted."""

    def __init__(self, cluster: HttpCluster, topic_partition: str) -> None:
        self.lines: list[str] = []
        self._process = cluster.start_script("consume.py", topic_partition)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, lines: list[str]) -> None:
        wait_until(lambda: self.lines == lines, f"consume.py has printed {lines}, not {self.lines}")

    def interrupt(self) -> int:
        """Presses Ctrl+C and returns the exit code."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def __enter__(self) -> "ConsumeScript":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def test_3_2_5_a_script_consumes_records_while_they_are_produced(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "testtopic")[0] == 0
    keys = [key for key in (f"key{number}" for number in range(1, 50)) if partition_of(key) == 1][:2]
    other_key = next(key for key in ("a", "b", "c", "d") if partition_of(key) != 1)
    stdin = f"{keys[0]}\nmsg1\n{other_key}\nin another partition\n{keys[1]}\nmsg2\n\n"
    with ConsumeScript(cluster, "testtopic-1") as consumer:
        assert cluster.run_script("produce.py", "testtopic", stdin=stdin)[0] == 0
        consumer.wait_for([f"[0] [{keys[0]}] msg1", f"[1] [{keys[1]}] msg2"])
        assert cluster.run_script("produce.py", "testtopic", "-a", "1", stdin=f"{keys[0]}\nmsg3\n")[0] == 0
        consumer.wait_for([f"[0] [{keys[0]}] msg1", f"[1] [{keys[1]}] msg2", f"[2] [{keys[0]}] msg3"])
        assert consumer.interrupt() == 0


def test_3_2_5_consume_fails_without_the_topic(cluster: HttpCluster) -> None:
    assert cluster.run_script("consume.py", "missing-1") == (1, "")


def test_3_2_6_acks_all_waits_for_the_followers(cluster: HttpCluster) -> None:
    cluster.run_commands(CREATE_TESTTOPIC)
    for number in range(5):
        assert produce(cluster, "testtopic-1", f"message {number}") == 204
        # Every follower has the record when the response arrives.
        for node_id in cluster.node_ids:
            assert cluster.partition_lines(node_id, "testtopic-1")[-1] == f"{number} key message {number}"
    follower = next(node_id for node_id in cluster.node_ids if node_id != cluster.leader())
    port = cluster.ports[cluster.leader()]
    body = {"topic_partition": "testtopic-2", "key": "key", "payload": "text"}
    cluster.pause(follower)
    try:
        for acks in ("1", 1, "0", 0):
            assert curl(port, "/data/v1/produce", body | {"acks": acks})[0] == 204
        assert curl(port, "/data/v1/produce", body | {"acks": "all"}, "--max-time", "1")[0] == 0
    finally:
        cluster.resume(follower)
    wait_until(lambda: len(cluster.partition_lines(follower, "testtopic-2")) == 5, "the follower has all records")


@pytest.fixture
def filled_cluster(cluster: HttpCluster) -> HttpCluster:
    """The cluster with a partition of several segments; the payloads have different lengths."""
    cluster.run_commands(CREATE_TESTTOPIC)
    url = f"http://127.0.0.1:{cluster.ports[cluster.leader()]}/data/v1/produce"
    with httpx.Client(trust_env=False, timeout=30) as client:
        for number in range(60):
            body = {"topic_partition": "testtopic-1", "key": f"key{number}", "payload": payload(number), "acks": "all"}
            assert client.post(url, json=body).status_code == 204
    return cluster


def payload(number: int) -> str:
    return f"payload {number} " + "ż" * (number * 37 % 250)


def segments(cluster: HttpCluster, node_id: int) -> list[Path]:
    return sorted((cluster.data_dir(node_id) / "testtopic-0").glob("*.log"))


def test_3_2_7_the_partition_log_has_segments(filled_cluster: HttpCluster) -> None:
    cluster = filled_cluster
    expected = [f"{number} key{number} {payload(number)}" for number in range(60)]
    for node_id in cluster.node_ids:
        files = segments(cluster, node_id)
        assert len(files) > 3
        assert all(path.stat().st_size <= SEGMENT_BYTES for path in files)
        first_lines = [dump_lines(path)[0] for path in files]
        # The name of a segment is the offset of its first record.
        assert [int(path.stem) for path in files] == [int(line.split()[0]) for line in first_lines]
        assert cluster.partition_lines(node_id, "testtopic-1") == expected


def test_3_2_8_the_partition_log_is_binary(filled_cluster: HttpCluster) -> None:
    data = segments(filled_cluster, filled_cluster.leader())[0].read_bytes()
    position, offset = 0, 0
    while position < len(data):
        # Each batch starts with its offset and size, so that a reader can seek to the next one.
        base_offset, size = struct.unpack_from(">qi", data, position)
        assert base_offset == offset
        assert payload(offset).encode() in data[position : position + 12 + size]
        position += 12 + size
        offset += 1
    assert position == len(data)


def test_3_2_9_the_index_maps_offsets_to_positions(filled_cluster: HttpCluster) -> None:
    cluster = filled_cluster
    for node_id in cluster.node_ids:
        for log in segments(cluster, node_id)[:-1]:
            index = wait_until(log.with_suffix(".index").read_bytes, f"the index of {log} is written")
            data = log.read_bytes()
            for relative_offset, position in struct.iter_unpack(">ii", index):
                assert struct.unpack_from(">q", data, position)[0] == int(log.stem) + relative_offset
    url = f"http://127.0.0.1:{cluster.ports[cluster.leader()]}/data/v1/consume"
    with httpx.Client(trust_env=False, timeout=30) as client:
        for number in range(60):
            body = {"topic_partition": "testtopic-1", "last_offset": number - 1, "max_batch_size": 3}
            polled = client.post(url, json=body).json()
            assert (
                polled["records"]
                == [
                    {"offset": each, "key": f"key{each}", "payload": payload(each)}
                    for each in range(number, number + 3)
                ][: 60 - number]
            )
            assert polled["last_offset"] == min(number + 2, 59)


# 3.3 Control plane: the quorum


class FreshVoter:
    """One new voter of five. The others accept connections and do not respond, so that it cannot win an election."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.http_port = free_port()
        port = free_port()
        self._others = {node_id: socket.create_server(("127.0.0.1", 0)) for node_id in range(2, 6)}
        others = ",".join(f"{node_id}@127.0.0.1:{each.getsockname()[1]}" for node_id, each in self._others.items())
        self._process = BrokerProcess(
            directory,
            *("--controller-quorum-voters", f"1@127.0.0.1:{port},{others}", "--http-port", str(self.http_port)),
            # The voter keeps a leader that does not respond to its fetches for this time.
            *("--controller-quorum-fetch-timeout-ms", "600000", "--cluster-id", "bW9sZGF1LWNoZWNrcy0xMg"),
            *options,
            port=port,
        )

    def start(self) -> None:
        self._process.spawn()
        wait_until(lambda: health(self.http_port), "the voter responds")

    def kill(self) -> None:
        self._process.kill()

    def quorum_state(self) -> dict[str, Any]:
        path = self._process.data_dir / METADATA_LOG / "quorum-state"
        state: dict[str, Any] = json.loads(path.read_text())
        return {name: state[name] for name in ("leader_id", "leader_epoch", "voted_id")}

    def run_commands(self, script: str) -> list[Any]:
        return run_commands(script, {8001: self.http_port})

    def __enter__(self) -> "FreshVoter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.process is not None:
            self.kill()
        for each in self._others.values():
            each.close()


@pytest.fixture
def voter(tmp_path: Path) -> Iterator[FreshVoter]:
    with FreshVoter(tmp_path / "voter", "--http-kraft-open") as started:
        yield started


def test_3_3_1_the_quorum_state_exists_from_the_first_start(voter: FreshVoter) -> None:
    initial = {"leader_id": -1, "leader_epoch": 0, "voted_id": -1}
    assert voter.quorum_state() == initial
    voter.kill()
    voter.start()
    assert voter.quorum_state() == initial


FIRST_VOTE = """
curl "http://localhost:8001/kraft/v1/voteRequest" -s -H "Content-Type: application-json" -d '{
    "candidate_epoch": 1,
    "last_offset": 0,
    "last_offset_epoch": -1,
    "candidate_id": "3"
}' | jq
"""
VOTES_AFTER_RESTART = """
curl "http://localhost:8001/kraft/v1/voteRequest" -s -H "Content-Type: application-json" -d '{
    "candidate_epoch": 1,
    "last_offset": 0,
    "last_offset_epoch": -1,
    "candidate_id": "4"
}' | jq
curl "http://localhost:8001/kraft/v1/voteRequest" -s -H "Content-Type: application-json" -d '{
    "candidate_epoch": 2,
    "last_offset": 0,
    "last_offset_epoch": -1,
    "candidate_id": "4"
}' | jq
"""


def test_3_3_2_only_the_first_vote_of_an_epoch_is_granted_even_after_a_restart(voter: FreshVoter) -> None:
    [granted] = voter.run_commands(FIRST_VOTE)
    assert granted == {"granted": True}
    assert voter.quorum_state() == {"leader_id": -1, "leader_epoch": 1, "voted_id": 3}
    voter.kill()
    voter.start()
    refused, granted = voter.run_commands(VOTES_AFTER_RESTART)
    assert refused == {"granted": False, "leader_epoch": 0, "leader_id": -1}
    assert granted == {"granted": True}
    assert voter.quorum_state() == {"leader_id": -1, "leader_epoch": 2, "voted_id": 4}


def test_3_3_2_votes_need_the_cluster_secret(tmp_path: Path) -> None:
    with FreshVoter(tmp_path / "voter", "--cluster-secret", SECRET) as voter:
        body = {"candidate_epoch": 1, "last_offset": 0, "last_offset_epoch": -1, "candidate_id": "3"}
        assert curl(voter.http_port, "/kraft/v1/voteRequest", body)[0] == 403
        wrong = ("-H", "X-Cluster-Secret: guessed")
        assert curl(voter.http_port, "/kraft/v1/voteRequest", body, *wrong)[0] == 403
        assert voter.quorum_state() == {"leader_id": -1, "leader_epoch": 0, "voted_id": -1}
        assert curl(voter.http_port, "/kraft/v1/voteRequest", body, *with_secret()) == (200, {"granted": True})


def test_3_3_3_begin_quorum_epoch_stores_the_new_leader(voter: FreshVoter) -> None:
    script = """
curl "http://localhost:8001/kraft/v1/beginQuorumEpoch" -s -H "Content-Type: application-json" -d '{
    "leader_epoch": 1,
    "leader_id": "3"
}' | jq
curl "http://localhost:8001/healthcheck" -s | jq
"""
    _, healthcheck = voter.run_commands(script)
    assert healthcheck == {"status": "up", "broker_id": 1, "leader_broker_id": 3}
    assert voter.quorum_state() == {"leader_id": 3, "leader_epoch": 1, "voted_id": -1}


def test_3_3_5_the_metadata_log_is_replicated(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "first", "-p", "1")[0] == 0
    assert cluster.run_script("create_topic.py", "second", "-p", "2")[0] == 0
    assert cluster.run_script("delete_topic.py", "first")[0] == 0
    leader = cluster.leader()
    expected = cluster.metadata_lines(leader)
    assert [line.split(" ", 2)[2] for line in expected[-3:]] == [
        'create-topic {"topic_name":"first","partition_count":1}',
        'create-topic {"topic_name":"second","partition_count":2}',
        'delete-topic {"topic_name":"first"}',
    ]
    for node_id in cluster.node_ids:
        wait_until(lambda id_=node_id: cluster.metadata_lines(id_) == expected, f"node {node_id} has the same log")
    body = {"last_offset": -1, "last_offset_epoch": -1, "max_batch_size": 10_000, "follower_broker_id": "2"}
    status, fetched = curl(cluster.ports[leader], "/kraft/v1/fetchMetadata", body, *with_secret())
    assert status == 200
    last = [(each["action"], each["payload"]) for each in fetched["records"][-3:]]
    assert last == [
        ("create-topic", topic("first", 1)),
        ("create-topic", topic("second", 2)),
        ("delete-topic", {"topic_name": "first"}),
    ]
    assert [f"{each['offset']} {each['epoch']} {each['action']}" for each in fetched["records"]] == [
        line.rsplit(" ", 1)[0] for line in expected
    ]
    follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
    assert curl(cluster.ports[follower], "/kraft/v1/fetchMetadata", body, *with_secret())[0] == 421
    assert curl(cluster.ports[leader], "/kraft/v1/fetchMetadata", body)[0] == 403


def test_3_3_6_the_leader_names_the_point_where_logs_diverge(cluster: HttpCluster) -> None:
    port = cluster.ports[cluster.leader()]
    body = {"last_offset": 1_000_000, "last_offset_epoch": 0, "max_batch_size": 10, "follower_broker_id": "2"}
    status, fetched = curl(port, "/kraft/v1/fetchMetadata", body, *with_secret())
    assert status == 200
    assert fetched["records"] == []
    assert fetched["diverging_epoch"] <= cluster.epoch()
    assert fetched["diverging_offset"] < 1_000_000


def test_3_3_7_a_topic_is_created_when_a_majority_has_it(cluster: HttpCluster) -> None:
    for number in range(5):
        name = f"topic{number}"
        body = {"topic_name": name, "partition_count": 1}
        assert curl(cluster.ports[cluster.leader()], "/admin/v1/topics", body)[0] == 201
        stored = [node_id for node_id in cluster.node_ids if f'"{name}"' in cluster.metadata_lines(node_id)[-1]]
        assert len(stored) >= 3


def test_3_3_7_a_topic_is_not_created_without_a_majority(cluster: HttpCluster) -> None:
    leader = cluster.leader()
    followers = [node_id for node_id in cluster.node_ids if node_id != leader][:3]
    body = {"topic_name": "lonely", "partition_count": 1}
    for node_id in followers:
        cluster.pause(node_id)
    try:
        status, _ = curl(cluster.ports[leader], "/admin/v1/topics", body, "--max-time", "1")
    finally:
        for node_id in followers:
            cluster.resume(node_id)
    assert status != 201
    wait_until(lambda: cluster.run_script("create_topic.py", "available")[0] == 0, "topics are created again")


def test_3_3_8_another_broker_leads_after_the_leader_has_failed(cluster: HttpCluster) -> None:
    """The first broker in the list of the scripts is dead afterwards, if it was the leader. Also checks 3.3.9."""
    assert cluster.run_script("create_topic.py", "testtopic", "-p", "1")[0] == 0
    expected: list[str] = []

    def produce_records(*payloads: str) -> None:
        stdin = "".join(f"key\n{each}\n" for each in payloads)
        assert cluster.run_script("produce.py", "testtopic", stdin=stdin) == (
            0,
            "Key: Payload: > OK\n\n" * len(payloads) + "Key: ",
        )
        for each in payloads:
            expected.append(f"[{len(expected)}] [key] {each}")

    with ConsumeScript(cluster, "testtopic-1") as consumer:
        produce_records("before 1", "before 2")
        consumer.wait_for(expected)
        failed, epoch = cluster.leader(), cluster.epoch()
        cluster.kill(failed)
        produce_records("after 1", "after 2")
        consumer.wait_for(expected)
        leader = cluster.leader()
        assert leader != failed
        assert cluster.epoch() > epoch
        assert cluster.run_script("create_topic.py", "othertopic")[0] == 0

        # 3.3.9: the former leader comes back as a follower, without an election.
        epoch = cluster.epoch()
        cluster.start(failed)
        assert cluster.leader() == leader
        produce_records("back 1")
        consumer.wait_for(expected)
        lines = [f"{number} key {each.partition('] [key] ')[2]}" for number, each in enumerate(expected)]
        for node_id in cluster.node_ids:
            wait_until(
                lambda id_=node_id: cluster.partition_lines(id_, "testtopic-1") == lines,
                f"node {node_id} has caught up",
            )
        assert (cluster.leader(), cluster.epoch()) == (leader, epoch)
        assert consumer.interrupt() == 0


def test_3_3_9_a_returning_follower_causes_no_election(cluster: HttpCluster) -> None:
    assert cluster.run_script("create_topic.py", "testtopic", "-p", "1")[0] == 0
    leader, epoch = cluster.leader(), cluster.epoch()
    follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
    cluster.kill(follower)
    assert produce(cluster, "testtopic-1", "while it was away") == 204
    assert cluster.run_script("create_topic.py", "othertopic")[0] == 0
    cluster.start(follower)
    wait_until(
        lambda: cluster.partition_lines(follower, "testtopic-1") == ["0 key while it was away"],
        "the follower has caught up",
    )
    wait_until(
        lambda: cluster.metadata_lines(follower) == cluster.metadata_lines(leader), "the follower has the metadata log"
    )
    assert (cluster.leader(), cluster.epoch()) == (leader, epoch)
    assert cluster.health(follower) == {"status": "up", "broker_id": follower, "leader_broker_id": leader}
