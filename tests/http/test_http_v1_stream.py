"""Records as server-sent events: events arrive as records are written, a client resumes where it stopped, and streams
end with the client or the node."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from moldau.client.consumer.fetcher import Fetcher
from moldau.node import node
from moldau.testing.broker import Broker
from support.http_v1 import HttpBroker, error_code, http_broker, produce


class Event(NamedTuple):
    event_id: str
    type: str
    data: dict[str, Any]


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Parses events as browsers do: fields up to an empty line, and comments that start with a colon."""
    event_id, event_type, data = "", "message", []
    for line in lines:
        if not line:
            if data:
                yield Event(event_id, event_type, json.loads("\n".join(data)))
            event_type, data = "message", []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                event_id = value
            elif name == "event":
                event_type = value
            elif name == "data":
                data.append(value)


def read_events(
    api: httpx.Client, topic: str, count: int, last_event_id: str | None = None, **parameters: Any
) -> list[Event]:
    """Reads `count` events and disconnects."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with api.stream("GET", f"/topics/{topic}/stream", params=parameters, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        found: list[Event] = []
        events = parse_events(response.iter_lines())
        while len(found) < count:
            found.append(next(events))
        return found


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpBroker]:
    with http_broker({"one": 1, "three": 3, "live": 1, "lines": 1, "wide": 65}) as running:
        yield running


def test_a_stream_resumes_after_the_last_event(broker: HttpBroker) -> None:
    produce(broker.api, "one", *({"value": {"json": number}} for number in range(10)))
    first = read_events(broker.api, "one", 4, offset="earliest")
    assert [each.event_id for each in first] == ["0:0", "0:1", "0:2", "0:3"]
    rest = read_events(broker.api, "one", 6, last_event_id=first[-1].event_id, offset="earliest")
    assert [each.data["value"] for each in first + rest] == [{"json": number} for number in range(10)]


def test_a_stream_of_several_partitions_resumes_in_each_of_them(broker: HttpBroker) -> None:
    records = [{"value": {"json": number}, "partition": number % 3} for number in range(30)]
    produce(broker.api, "three", *records)
    found: list[Event] = []
    while len(found) < 30:
        last = found[-1].event_id if found else None
        found += read_events(broker.api, "three", min(7, 30 - len(found)), last_event_id=last, offset="earliest")
    assert sorted(each.data["value"]["json"] for each in found) == list(range(30))
    # A client that read nothing of a partition so far resumes where its stream started, not at the new end.
    started = read_latest_then_produce(broker, "three", {"value": {"text": "a"}, "partition": 0})
    produce(broker.api, "three", {"value": {"text": "b"}, "partition": 1})
    [resumed] = read_events(broker.api, "three", 1, last_event_id=started.event_id, format="text")
    assert resumed.data["value"] == {"text": "b"}


def read_latest_then_produce(broker: HttpBroker, topic: str, record: dict[str, Any]) -> Event:
    """Starts a stream at the end, then produces a record. Returns its event."""
    with broker.api.stream("GET", f"/topics/{topic}/stream") as response:
        lines = response.iter_lines()
        assert next(lines) == ": connected"
        with httpx.Client(base_url=broker.api.base_url, timeout=60) as other:
            produce(other, topic, record)
        return next(parse_events(lines))


def test_records_arrive_while_the_stream_is_open(broker: HttpBroker) -> None:
    produce(broker.api, "live", {"value": {"text": "before"}})
    started = time.monotonic()
    event = read_latest_then_produce(broker, "live", {"key": {"text": "k"}, "value": {"json": "after"}})
    assert (event.data["key"], event.data["value"]) == ({"text": "k"}, {"json": "after"})
    assert time.monotonic() - started < 15


def test_json_with_line_ends_is_one_event(broker: HttpBroker) -> None:
    produce(broker.api, "lines", {"value": {"text": '{\n  "a": 1,\r\n  "b": "x"\r}'}})
    [event] = read_events(broker.api, "lines", 1, offset="earliest")
    assert event.data["value"] == {"json": {"a": 1, "b": "x"}}


def test_limit_and_timeout_end_a_stream(broker: HttpBroker) -> None:
    limited = broker.api.get("/topics/one/stream", params={"offset": "earliest", "limit": 3})
    assert len(list(parse_events(iter(limited.text.splitlines())))) == 3
    started = time.monotonic()
    empty = broker.api.get("/topics/one/stream", params={"timeout_ms": 300})
    assert 0.3 <= time.monotonic() - started < 10
    assert ": keep-alive" in empty.text


def test_streams_reject_bad_input(broker: HttpBroker) -> None:
    api = broker.api
    assert error_code(api.get("/topics/missing/stream"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_code(api.get("/topics/one/stream", params={"partition": 3}), 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    parameters = {"partition": 0, "offset": 99}
    assert error_code(api.get("/topics/one/stream", params=parameters), 400) == "OFFSET_OUT_OF_RANGE"
    for path, headers in (
        ("/topics/one/stream?offset=5", {}),
        ("/topics/one/stream", {"Last-Event-ID": "zero"}),
        ("/topics/one/stream?limit=0", {}),
        ("/topics/wide/stream", {}),
    ):
        assert error_code(api.get(path, headers=headers), 422) == "INVALID_FIELD"


def test_a_deleted_topic_ends_the_stream_with_an_error(broker: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.http.v1.stream.KEEP_ALIVE_MS", 200)
    broker.api.post("/topics", json={"name": "short", "partitions": 1}).raise_for_status()
    with broker.api.stream("GET", "/topics/short/stream") as response:
        lines = response.iter_lines()
        assert next(lines) == ": connected"
        with httpx.Client(base_url=broker.api.base_url, timeout=60) as other:
            other.delete("/topics/short").raise_for_status()
        event = next(parse_events(lines))
    assert (event.type, event.data["error"]["code"]) == ("error", "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_stream_ends_when_its_client_disconnects(broker: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.http.v1.stream.STREAMS_MAX", 1)
    with broker.api.stream("GET", "/topics/one/stream") as response:
        lines = response.iter_lines()
        assert next(lines) == ": connected"
        other = httpx.get(f"{broker.api.base_url}topics/one/stream", timeout=60)
        assert error_code(other, 503) == "NOT_AVAILABLE"
    wait_until(lambda: broker.api.get("/topics/one/stream", params={"timeout_ms": 0}).status_code == 200)


def test_the_fetcher_of_a_disconnected_client_is_closed(broker: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    class RecordedFetcher(Fetcher):
        async def close(self) -> None:
            await super().close()
            closed.set()

    monkeypatch.setattr("moldau.http.v1.stream.Fetcher", RecordedFetcher)
    with broker.api.stream("GET", "/topics/one/stream") as response:
        assert next(response.iter_lines()) == ": connected"
    assert closed.wait(60)


def test_a_connection_stays_open_longer_than_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.http.front_connection.IDLE_TIMEOUT_S", 1)
    with http_broker({"one": 1}) as broker:
        url = f"{broker.api.base_url}topics/one/stream"
        # The first request loads the API, and the next connection is handed over at once.
        for _ in range(2):
            response = httpx.get(url, params={"timeout_ms": 2_500}, timeout=60)
            assert response.text.endswith(": keep-alive\n\n")


def test_a_stream_ends_when_the_node_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CLOSE_GRACE_S", 120)
    ended = threading.Event()
    with Broker({"one": 1}, {"http.port": "0"}) as broker:
        url = f"http://{broker.node.http_address}/v1/topics/one/stream"
        connected = threading.Event()

        def read() -> None:
            with httpx.stream("GET", url, timeout=60) as response:
                for line in response.iter_lines():
                    if line == ": connected":
                        connected.set()
            # The response was complete, so the node has not cut the connection.
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert connected.wait(30)
        started = time.monotonic()
    thread.join(30)
    assert ended.is_set()
    assert time.monotonic() - started < 60


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ids_of_events_have_the_offsets_of_all_partitions(broker: HttpBroker) -> None:
    event = read_events(broker.api, "three", 1, offset="earliest")[0]
    assert re.fullmatch(r"\d+:\d+(,\d+:-?\d+){2}", event.event_id)
