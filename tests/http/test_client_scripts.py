"""The scripts in `client/` against scripted brokers: arguments, output, exit codes and the search for the leader."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from moldau.client.producer.partitioner import partition_of_key
from support.ports import free_port

CLIENT = Path(__file__).parents[2] / "client"
TOPIC = {"topic_name": "orders", "partitions": [{"id": "orders-1", "replica_brokers": ["1", "2"]}]}
PRINTED_TOPIC = """\
{
    "topic_name": "orders",
    "partitions": [
        {
            "id": "orders-1",
            "replica_brokers": ["1", "2"]
        }
    ]
}
"""

Answer = tuple[int, Any]


class ScriptedHttpBroker:
    """A broker that answers each request by a function of method, path and body."""

    def __init__(self, answer: Callable[[str, str, Any], Answer]) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        broker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _respond(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = (self.command, self.path, json.loads(data) if data else None)
                broker.requests.append(request)
                status, body = broker.answer(*request)
                content = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if status == 503:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _respond

            def log_message(self, *_: Any) -> None:
                pass

        self.answer = answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


StartBroker = Callable[[Callable[[str, str, Any], Answer]], ScriptedHttpBroker]


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    started: list[ScriptedHttpBroker] = []

    def start(answer: Callable[[str, str, Any], Answer]) -> ScriptedHttpBroker:
        started.append(ScriptedHttpBroker(answer))
        return started[-1]

    yield start
    for broker in started:
        broker.close()


def broker_list(*ports: int) -> str:
    return ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))


def run_script(name: str, *arguments: str, brokers: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT / name), *arguments, "-b", brokers]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


def not_leader(leader: int) -> Callable[[str, str, Any], Answer]:
    return lambda method, path, body: (421, {"detail": f"leader is {leader}, can't accept"})


def test_create_topic_prints_the_topic(start_broker: StartBroker) -> None:
    broker = start_broker(lambda *_: (201, TOPIC))
    done = run_script("create_topic.py", "orders", "-p", "1", "-r", "2", brokers=broker_list(broker.port))
    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED_TOPIC, "")
    body = {"topic_name": "orders", "partition_count": 1, "replication_factor": 2}
    assert broker.requests == [("POST", "/admin/v1/topics", body)]


def test_create_topic_prints_the_error_of_the_api(start_broker: StartBroker) -> None:
    broker = start_broker(lambda *_: (409, {"detail": "topic orders already exists"}))
    done = run_script("create_topic.py", "orders", brokers=broker_list(broker.port))
    assert (done.returncode, done.stdout) == (1, '{\n    "detail": "topic orders already exists"\n}\n')
    assert broker.requests[0][2]["partition_count"] == 3


def test_a_request_goes_to_the_leader_that_the_first_broker_names(start_broker: StartBroker) -> None:
    leader = start_broker(lambda *_: (200, {"topics": [TOPIC]}))
    first, second = start_broker(not_leader(3)), start_broker(not_leader(3))
    done = run_script("list_topics.py", brokers=broker_list(first.port, second.port, leader.port))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"topics": [TOPIC]})
    assert (len(first.requests), len(second.requests), len(leader.requests)) == (1, 0, 1)


def test_a_closed_pipe_ends_a_script_without_a_traceback(start_broker: StartBroker) -> None:
    leader = start_broker(lambda *_: (200, {"topics": [TOPIC] * 1000}))
    command = [sys.executable, str(CLIENT / "list_topics.py"), "-b", broker_list(leader.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_the_next_broker_is_used_if_the_first_is_dead(start_broker: StartBroker) -> None:
    leader = start_broker(lambda *_: (204, None))
    done = run_script("delete_topic.py", "orders", brokers=broker_list(free_port(), leader.port))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert leader.requests == [("DELETE", "/admin/v1/topics/orders", None)]


def test_a_request_waits_for_the_election_of_a_leader(start_broker: StartBroker) -> None:
    refusal: Answer = (421, {"detail": "leader is 1, can't accept"})
    answers = iter([refusal, refusal, refusal, (200, {"topics": []})])
    second = start_broker(lambda *_: next(answers))
    done = run_script("list_topics.py", brokers=broker_list(free_port(), second.port))
    assert (done.returncode, json.loads(done.stdout)) == (0, {"topics": []})
    assert len(second.requests) == 4


def test_a_broker_that_is_not_ready_is_asked_again(start_broker: StartBroker) -> None:
    answers = iter([(503, {"detail": "starting"}), (201, TOPIC)])
    broker = start_broker(lambda *_: next(answers))
    assert run_script("create_topic.py", "orders", brokers=broker_list(broker.port)).stdout == PRINTED_TOPIC


@pytest.mark.parametrize("script", ["create_topic.py", "list_topics.py", "delete_topic.py"])
def test_an_admin_script_fails_with_json_if_no_broker_responds(script: str) -> None:
    ports = free_port(), free_port()
    done = run_script(script, *([] if script == "list_topics.py" else ["orders"]), brokers=broker_list(*ports))
    assert done.returncode == 1
    assert json.loads(done.stdout)["detail"].startswith(f"no broker responded: broker 1 (127.0.0.1:{ports[0]}): ")


@pytest.mark.parametrize("script", ["produce.py", "consume.py"])
def test_a_data_script_fails_with_a_message_if_no_broker_responds(script: str) -> None:
    done = run_script(script, "orders-1", brokers=broker_list(free_port()), stdin="key\npayload\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no broker responded" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_is_not_created_again_after_a_lost_connection(start_broker: StartBroker) -> None:
    def lose_connection(*_: Any) -> Answer:
        raise ConnectionAbortedError

    broker, other = start_broker(lose_connection), start_broker(lambda *_: (201, TOPIC))
    done = run_script("create_topic.py", "orders", brokers=broker_list(broker.port, other.port))
    assert done.returncode == 1
    assert "may have processed the request" in json.loads(done.stdout)["detail"]
    assert other.requests == []


def test_a_leader_outside_the_list_of_brokers_is_an_error(start_broker: StartBroker) -> None:
    done = run_script("list_topics.py", brokers=broker_list(start_broker(not_leader(7)).port))
    assert done.returncode == 1
    assert "leader is broker 7, which is not in the list of brokers" in done.stdout


@pytest.mark.parametrize(
    ("brokers", "message"),
    [("localhost:8001", "is not a broker"), ("1@localhost:99999", "is not a broker"), ("1@a:1,1@b:1", "listed twice")],
)
def test_a_wrong_list_of_brokers_is_an_error(brokers: str, message: str) -> None:
    done = run_script("list_topics.py", brokers=brokers)
    assert done.returncode == 1
    assert message in done.stderr


def data_broker(start_broker: StartBroker, partitions: int, produced: list[Any]) -> ScriptedHttpBroker:
    topic = {"topic_name": "orders", "partitions": [{"id": f"orders-{n + 1}"} for n in range(partitions)]}

    def answer(method: str, path: str, body: Any) -> Answer:
        if method == "GET":
            return 200, {"topics": [topic]}
        produced.append(body)
        return 204, None

    return start_broker(answer)


def test_produce_sends_records_to_the_partitions_of_kafkas_producers(start_broker: StartBroker) -> None:
    produced: list[Any] = []
    broker = data_broker(start_broker, 5, produced)
    keys = ["a", "ab", "abc", "abcd", "abcde", "żółw", "a key with spaces"]
    stdin = "".join(f"{key}\npayload of {key}\n" for key in keys) + "\nignored\n"
    done = run_script("produce.py", "orders", "-a", "1", brokers=broker_list(broker.port), stdin=stdin)
    assert (done.returncode, done.stdout) == (0, "Key: Payload: > OK\n\n" * len(keys) + "Key: ")
    assert produced == [
        {
            "topic_partition": f"orders-{partition_of_key(key.encode(), 5) + 1}",
            "key": key,
            "payload": f"payload of {key}",
            "acks": "1",
        }
        for key in keys
    ]


@pytest.mark.parametrize("stdin", ["", "\n", "key", "key\n", "key\n\nnext\n"])
def test_produce_ends_at_an_empty_line_and_at_the_end_of_the_input(start_broker: StartBroker, stdin: str) -> None:
    produced: list[Any] = []
    broker = data_broker(start_broker, 1, produced)
    assert run_script("produce.py", "orders", brokers=broker_list(broker.port), stdin=stdin).returncode == 0
    assert produced == []


def test_produce_fails_if_the_topic_does_not_exist(start_broker: StartBroker) -> None:
    broker = data_broker(start_broker, 1, [])
    done = run_script("produce.py", "payments", brokers=broker_list(broker.port), stdin="key\npayload\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "> ERROR: topic payments does not exist\n")


def test_produce_fails_at_the_first_record_that_is_refused(start_broker: StartBroker) -> None:
    topic = {"topic_name": "orders", "partitions": [{"id": "orders-1"}]}
    answers = iter([(200, {"topics": [topic]}), (204, None), (413, {"detail": "the record is too large"})])
    broker = start_broker(lambda *_: next(answers))
    done = run_script("produce.py", "orders", brokers=broker_list(broker.port), stdin="a\n1\nb\n2\nc\n3\n")
    assert (done.returncode, done.stdout) == (1, "Key: Payload: > OK\n\nKey: Payload: ")
    assert done.stderr == "> ERROR: the record is too large\n"


def test_consume_prints_each_record_once_and_fails_when_the_topic_is_deleted(start_broker: StartBroker) -> None:
    records = [{"offset": n, "key": f"key{n}" if n else None, "payload": f"payload {n}"} for n in range(5)]

    def answer(method: str, path: str, body: Any) -> Answer:
        if body["last_offset"] == 4:
            return 404, {"detail": "topic orders does not exist"}
        found = records[body["last_offset"] + 1 :][: body["max_batch_size"]]
        return 200, {"last_offset": found[-1]["offset"], "records": found}

    broker = start_broker(answer)
    done = run_script("consume.py", "orders-1", "-s", "2", brokers=broker_list(broker.port))
    assert (done.returncode, done.stderr) == (1, "error: topic orders does not exist\n")
    assert done.stdout.splitlines() == ["[0] [] payload 0", *(f"[{n}] [key{n}] payload {n}" for n in range(1, 5))]
    assert [each[2]["last_offset"] for each in broker.requests] == [-1, 1, 3, 4]
