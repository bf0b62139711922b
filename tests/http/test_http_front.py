"""The front of the HTTP port: health without the API, and the handover of connections to the API."""

import threading
import time
from collections.abc import Iterator

import pytest

from moldau.http import app_connection, app_loader, front_connection, server
from moldau.http.request_head import HEAD_BYTES_MAX
from moldau.http.turn_queue import TurnQueue
from moldau.testing import Broker
from support.http_connection import HttpResponse, RawConnection, request_bytes

TOPIC = {"topic_name": "handover", "partition_count": 2}
BODY_BYTES_MAX = 100_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A node that has not loaded the API."""
    with Broker(settings={"http.port": "0", "http.request.max.bytes": str(BODY_BYTES_MAX)}) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(address(broker)) as connection:
        yield connection


def address(broker: Broker) -> str:
    assert broker.node.http_address is not None
    return broker.node.http_address


def is_loaded(broker: Broker) -> bool:
    http = broker.node._http
    assert http is not None
    return http._app is not None


# Health


def test_health_does_not_load_the_api(broker: Broker, connection: RawConnection) -> None:
    assert connection.request("GET", "/healthcheck").json() == {"status": "up", "broker_id": 1, "leader_broker_id": 1}
    assert connection.request("GET", "/livez").json() == {"status": "live"}
    for path in ("/readyz", "/healthz", "/readyz?verbose"):
        response = connection.request("GET", path)
        assert (response.status, response.json()) == (200, {"status": "ready"})
    assert not is_loaded(broker)


def test_health_is_the_same_after_the_api_is_loaded(broker: Broker, connection: RawConnection) -> None:
    before = {path: connection.request("GET", path) for path in ("/healthcheck", "/livez", "/readyz", "/healthz")}
    assert connection.request("GET", "/admin/v1/topics").status == 200
    assert is_loaded(broker)
    for path, response in before.items():
        assert connection.request("GET", path).json() == response.json()
    with RawConnection(address(broker)) as another:
        assert another.request("GET", "/healthcheck").json() == before["/healthcheck"].json()


def test_readiness_names_the_reasons(broker: Broker, connection: RawConnection) -> None:
    broker.node.broker.ready.clear()
    response = connection.request("GET", "/readyz")
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"status": "not ready", "reasons": ["the node is starting"]}
    assert connection.request("GET", "/livez").status == 200
    assert connection.request("GET", "/healthcheck").status == 200
    topics = connection.request("GET", "/admin/v1/topics")
    assert (topics.status, topics.headers["retry-after"]) == (503, "1")
    broker.node.broker.ready.set()
    assert connection.request("GET", "/readyz").status == 200


def test_a_node_without_a_lease_is_not_ready(broker: Broker, connection: RawConnection) -> None:
    lease = broker.node.broker.lifecycle.lease
    lease.is_valid = lambda: False  # type: ignore[method-assign]
    response = connection.request("GET", "/healthz")
    assert (response.status, response.json()["reasons"]) == (503, ["the broker has no valid lease"])


def test_head_has_no_body(connection: RawConnection) -> None:
    response = connection.request("HEAD", "/healthcheck")
    assert (response.status, response.headers["content-length"], response.body) == (200, "50", b"")
    assert connection.request("GET", "/livez").status == 200


def test_other_methods_on_health_are_not_allowed(connection: RawConnection) -> None:
    response = connection.request("DELETE", "/healthcheck")
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


def test_pipelined_health_requests_are_served_in_order(connection: RawConnection) -> None:
    connection.send(request_bytes("GET", "/livez") + request_bytes("GET", "/healthcheck") + b"GET /read")
    assert connection.receive().json() == {"status": "live"}
    assert connection.receive().json()["status"] == "up"
    connection.send(b"yz HTTP/1.1\r\n\r\n")
    assert connection.receive().json() == {"status": "ready"}


@pytest.mark.parametrize(
    ("request_line", "headers", "is_kept"),
    [
        ("GET /livez HTTP/1.1", "", True),
        ("GET /livez HTTP/1.1", "Connection: close\r\n", False),
        ("GET /livez HTTP/1.0", "", False),
        ("GET /livez HTTP/1.0", "Connection: Keep-Alive\r\n", True),
    ],
)
def test_the_client_decides_about_keep_alive(
    connection: RawConnection, request_line: str, headers: str, is_kept: bool
) -> None:
    connection.send(f"{request_line}\r\n{headers}\r\n".encode())
    response = connection.receive()
    assert (response.status, response.headers["connection"]) == (200, "keep-alive" if is_kept else "close")
    if is_kept:
        assert connection.request("GET", "/livez").status == 200
    else:
        assert connection.is_closed()


# Malformed requests and limits


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # The start of a TLS handshake.
        b"\x00\x00\x00\x1a\x00\x12\x00\x04\x00\x00\x00\x01",  # A Kafka request.
        b"get /livez HTTP/1.1\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/2.0\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n name: value\r\n\r\n",
    ],
)
def test_malformed_requests_are_rejected_without_the_api(
    broker: Broker, connection: RawConnection, data: bytes
) -> None:
    connection.send(data)
    assert connection.receive().status == 400
    assert connection.is_closed()
    assert not is_loaded(broker)


def test_a_malformed_request_after_the_handover_is_rejected(connection: RawConnection) -> None:
    assert connection.request("GET", "/admin/v1/topics").status == 200
    connection.send(b"NOT A REQUEST\r\n\r\n")
    response = connection.receive()
    assert (response.status, response.json()) == (400, {"detail": "the request is malformed"})
    assert connection.is_closed()


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_head_that_is_too_large_is_rejected(connection: RawConnection, is_handed_over: bool) -> None:
    if is_handed_over:
        assert connection.request("GET", "/admin/v1/topics").status == 200
    connection.send(b"GET /livez HTTP/1.1\r\nname: ")
    connection.send(b"x" * (HEAD_BYTES_MAX + 1))
    assert connection.receive().status == 431
    assert connection.is_closed()


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_slow_head_times_out(
    connection: RawConnection, is_handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_connection, "HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(app_connection, "HEAD_TIMEOUT_S", 0.2)
    if is_handed_over:
        assert connection.request("GET", "/admin/v1/topics").status == 200
    connection.send(b"GET /livez HTT")
    assert connection.receive().status == 408
    assert connection.is_closed()


def test_an_idle_connection_is_closed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_connection, "IDLE_TIMEOUT_S", 2)
    with RawConnection(address(broker)) as unused, RawConnection(address(broker)) as used:
        assert used.request("GET", "/livez").status == 200
        assert unused.is_closed()
        assert used.is_closed()


def test_a_connection_that_is_handed_over_is_not_idle(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawConnection(address(broker)) as loading:
        assert loading.request("GET", "/admin/v1/topics").status == 200
    monkeypatch.setattr(front_connection, "IDLE_TIMEOUT_S", 2)
    with RawConnection(address(broker)) as used, RawConnection(address(broker)) as idle:
        # The API is loaded, so the first request hands the connection over at once.
        assert used.request("GET", "/admin/v1/topics").status == 200
        assert idle.is_closed()
        assert used.request("GET", "/admin/v1/topics").status == 200


def test_a_connection_that_only_sends_empty_lines_is_closed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_loader, "IDLE_TIMEOUT_S", 1)
    with RawConnection(address(broker)) as connection:
        assert connection.request("GET", "/admin/v1/topics").status == 200
        connection.send(b"\r\n")
        assert connection.is_closed()


def test_bytes_that_wait_for_their_turn_are_not_lost_when_the_connection_was_idle(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_loader, "IDLE_TIMEOUT_S", 1)
    monkeypatch.setattr(TurnQueue, "_pause_s", lambda turns, now_s: 0.0)
    with RawConnection(address(broker)) as connection:
        assert connection.request("GET", "/admin/v1/topics").status == 200
        late_s = time.monotonic() + 1.5
        monkeypatch.setattr(TurnQueue, "_pause_s", lambda turns, now_s: late_s - now_s)
        assert connection.request("GET", "/admin/v1/topics").status == 200


def test_a_body_that_stalls_ends_its_connection(connection: RawConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_connection, "STALL_TIMEOUT_S", 0.2)
    connection.send(request_bytes("POST", "/admin/v1/topics", TOPIC)[:-5])
    assert connection.is_closed()


def test_a_body_that_is_sent_too_slowly_ends_its_connection(
    connection: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_connection, "STALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(app_connection, "BODY_TIMEOUT_S", 1.5)
    request = request_bytes("POST", "/admin/v1/topics", TOPIC | {"topic_name": "x" * 10_000})
    connection.send(request[:-10_000])

    def send_slowly() -> None:
        for position in range(len(request) - 10_000, len(request)):
            connection.send(request[position : position + 1])
            time.sleep(0.01)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_slowly()


def test_connections_over_the_limit_are_rejected(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    with RawConnection(address(broker)) as first, RawConnection(address(broker)) as second:
        assert first.request("GET", "/livez").status == 200
        assert second.request("GET", "/admin/v1/topics").status == 200
        with RawConnection(address(broker)) as third:
            response = third.receive()
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert third.is_closed()
        second.close()
        deadline_s = time.monotonic() + 30
        while True:
            with RawConnection(address(broker)) as next_connection:
                if next_connection.request("GET", "/livez").status == 200:
                    break
            assert time.monotonic() < deadline_s


def test_requests_over_the_limit_get_503_with_retry_after(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawConnection(address(broker)) as first, RawConnection(address(broker)) as second:
        assert first.request("GET", "/admin/v1/topics").status == 200
        monkeypatch.setattr(app_loader, "CONCURRENCY_MAX", 1)
        response = second.request("GET", "/admin/v1/topics")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert "too many" in response.json()["detail"]
        assert second.is_closed()


def test_requests_use_no_threads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise AssertionError("a dependency or an endpoint is a plain function, which FastAPI runs in a thread")

    monkeypatch.setattr("fastapi.dependencies.utils.run_in_threadpool", fail)
    monkeypatch.setattr("fastapi.routing.run_in_threadpool", fail)
    record = {"topic_partition": "handover-1", "payload": "x"}
    consume = {"topic_partition": "handover-1", "last_offset": -1, "max_batch_size": 10}
    with RawConnection(address(broker)) as connection:
        for method, path, body, status in (
            ("POST", "/admin/v1/topics", TOPIC, 201),
            ("GET", "/admin/v1/topics", None, 200),
            ("POST", "/data/v1/produce", record, 204),
            ("POST", "/data/v1/consume", consume, 200),
            ("POST", "/kraft/v1/voteRequest", {}, 403),
            ("POST", "/v1/topics/handover/records", {"records": [{}]}, 200),
            ("GET", "/v1/topics/handover/partitions/0/records", None, 200),
            ("GET", "/v1/topics/handover/configs", None, 200),
            ("GET", "/v1/groups", None, 200),
            ("GET", "/v1/cluster", None, 200),
            ("GET", "/v1/reassignments", None, 200),
            ("GET", "/metrics", None, 200),
            ("GET", "/readyz", None, 200),
        ):
            response = connection.request(method, path, body)
            assert response.status == status, (path, response.body)


# Web pages of other sites


def test_requests_of_other_sites_web_pages_are_rejected(connection: RawConnection) -> None:
    for headers in ({"sec_fetch_site": "cross-site"}, {"origin": "http://example.com"}, {"origin": "null"}):
        response = connection.request("POST", "/admin/v1/topics", TOPIC, content_type="text/plain", **headers)
        assert (response.status, "other sites" in response.json()["detail"]) == (403, True)
    assert connection.request("GET", "/admin/v1/topics").json() == {"topics": []}
    same_origin = {"sec_fetch_site": "same-origin", "origin": "http://test"}
    assert connection.request("POST", "/admin/v1/topics", TOPIC, **same_origin).status == 201


def test_a_host_name_that_points_here_is_rejected(broker: Broker, connection: RawConnection) -> None:
    connection.send(b"GET /admin/v1/topics HTTP/1.1\r\nhost: example.com:8001\r\n\r\n")
    response = connection.receive()
    assert (response.status, "example.com" in response.json()["detail"]) == (403, True)
    for host in (address(broker), "localhost:1", "[::1]:1", "broker-1", "localhost.", ""):
        connection.send(f"GET /admin/v1/topics HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        assert connection.receive().status == 200
    connection.send(b"GET /readyz HTTP/1.1\r\nhost: example.com\r\n\r\n")
    assert connection.receive().status == 200


def test_metrics_are_not_for_web_pages_of_other_sites(connection: RawConnection) -> None:
    def request(extra: bytes) -> HttpResponse:
        connection.send(b"GET /metrics HTTP/1.1\r\n" + extra + b"\r\n\r\n")
        return connection.receive()

    # Before and after the HTTP API has taken the connection over.
    for _ in range(2):
        assert request(b"host: example.com").status == 403
        assert "other sites" in request(b"host: localhost\r\nsec-fetch-site: cross-site").json()["detail"]
        assert request(b"host: localhost").status == 200
        assert connection.request("GET", "/admin/v1/topics").status == 200


# Handover


def test_a_body_in_many_packets_survives_the_handover(connection: RawConnection) -> None:
    data = request_bytes("POST", "/admin/v1/topics", TOPIC, content_type="application-json")
    for start in range(0, len(data), 7):
        connection.send(data[start : start + 7])
        time.sleep(0.002)
    response = connection.receive()
    assert (response.status, response.json()["topic_name"]) == (201, "handover")


def test_a_chunked_body_survives_the_handover(connection: RawConnection) -> None:
    connection.send(b"POST /admin/v1/topics HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
    body = b'{"topic_name": "chunked", "partition_count": 1}'
    for part in (body[:10], body[10:]):
        connection.send(b"%x\r\n%s\r\n" % (len(part), part))
    connection.send(b"0\r\n\r\n")
    assert connection.receive().status == 201


def test_pipelined_requests_survive_the_handover(connection: RawConnection) -> None:
    connection.send(
        request_bytes("GET", "/livez")
        + request_bytes("POST", "/admin/v1/topics", TOPIC)
        + request_bytes("POST", "/admin/v1/topics", TOPIC)
        + request_bytes("GET", "/healthcheck")
    )
    assert [connection.receive().status for _ in range(4)] == [200, 201, 409, 200]


@pytest.mark.parametrize("is_split", [False, True])
def test_an_offer_of_http_2_is_ignored(connection: RawConnection, is_split: bool) -> None:
    """Java's HTTP client offers HTTP/2 with every request."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    request = request_bytes("POST", "/admin/v1/topics", TOPIC, **offer)
    if is_split:
        # The head is a packet of its own, after a request that has loaded the API.
        assert connection.request("GET", "/admin/v1/topics", **offer).status == 200
        end = request.index(b"\r\n\r\n") + 4
        connection.send(request[:end])
        assert connection.is_silent()
        request = request[end:]
    connection.send(request + request_bytes("GET", "/admin/v1/topics", **offer))
    assert connection.receive().status == 201
    response = connection.receive()
    assert [each["topic_name"] for each in response.json()["topics"]] == ["handover"]
    assert connection.request("GET", "/livez").status == 200


def test_a_request_to_a_proxy_is_rejected(connection: RawConnection) -> None:
    assert connection.request("GET", "/admin/v1/topics").status == 200
    connection.send(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n")
    response = connection.receive()
    assert (response.status, response.json()) == (400, {"detail": "this server is not a proxy"})
    assert connection.is_closed()


def test_several_requests_use_one_connection(connection: RawConnection) -> None:
    for number in range(3):
        name = f"topic{number}"
        body = {"topic_name": name, "partition_count": 1}
        assert connection.request("POST", "/admin/v1/topics", body).status == 201
    listed = connection.request("GET", "/admin/v1/topics").json()["topics"]
    assert [topic["topic_name"] for topic in listed] == ["topic0", "topic1", "topic2"]


def test_connections_that_arrive_during_loading_are_all_served(broker: Broker) -> None:
    statuses: list[int] = []

    def get_topics() -> None:
        with RawConnection(address(broker)) as connection:
            statuses.append(connection.request("GET", "/admin/v1/topics").status)

    threads = [threading.Thread(target=get_topics) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20


def test_a_client_that_disconnects_during_loading_leaves_nothing_behind(broker: Broker) -> None:
    gone = RawConnection(address(broker))
    gone.send(request_bytes("POST", "/admin/v1/topics", TOPIC)[:-1])
    gone.close()
    with RawConnection(address(broker)) as connection:
        assert connection.request("GET", "/admin/v1/topics").json() == {"topics": []}
        http = broker.node._http
        assert http is not None
        deadline_s = time.monotonic() + 30
        while http._connection_count != 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


# Bodies


def test_a_body_over_the_limit_gets_413(connection: RawConnection) -> None:
    body = {"topic_name": "x" * BODY_BYTES_MAX, "partition_count": 1}
    response = connection.request("POST", "/admin/v1/topics", body)
    assert (response.status, "http.request.max.bytes" in response.json()["detail"]) == (413, True)
    # The rest of the body was discarded, so the connection can be used.
    assert connection.request("POST", "/admin/v1/topics", TOPIC).status == 201


def test_a_chunked_body_over_the_limit_gets_413(connection: RawConnection) -> None:
    connection.send(b"POST /admin/v1/topics HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        connection.send(b"%x\r\n%s\r\n" % (BODY_BYTES_MAX // 2, b" " * (BODY_BYTES_MAX // 2)))
    connection.send(b"0\r\n\r\n")
    assert connection.receive().status == 413
    assert connection.request("GET", "/admin/v1/topics").status == 200


def test_a_body_without_an_end_is_not_read_forever(connection: RawConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_connection, "DISCARDED_BYTES_MAX", 1_000_000)
    connection.send(b"POST /admin/v1/topics HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
    with pytest.raises(ConnectionError):  # noqa: PT012
        for _ in range(1_000):
            connection.send(b"%x\r\n%s\r\n" % (BODY_BYTES_MAX, b" " * BODY_BYTES_MAX))
            time.sleep(0.001)


def test_an_expected_100_continue_is_sent(connection: RawConnection) -> None:
    data = request_bytes("POST", "/admin/v1/topics", TOPIC, expect="100-continue")
    head, _, body = data.partition(b"\r\n\r\n")
    connection.send(head + b"\r\n\r\n")
    assert connection.receive(has_body=False).status == 100
    connection.send(body)
    assert connection.receive().status == 201
