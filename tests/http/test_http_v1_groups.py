"""Groups over `/v1`: consumers with commits, lag, and resets of offsets."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.http.v1 import consumers
from support.http_connection import RawConnection, request_bytes
from support.http_v1 import HttpBroker, error_code, http_broker, produce

TOPICS = ("work", "shared", "rewind", "members", "expire", "busy")


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpBroker]:
    with http_broker(dict.fromkeys(TOPICS, 2) | {"lost": 1}) as running:
        produce(running.api, "lost", *({"value": {"json": n}} for n in range(2)))
        for topic in TOPICS:
            for partition in range(2):
                produce(running.api, topic, *({"value": {"json": n}, "partition": partition} for n in range(5)))
        yield running


def create(broker: HttpBroker, group: str, topic: str, **fields: Any) -> str:
    response = broker.api.post(f"/groups/{group}/consumers", json={"topics": [topic], **fields})
    assert response.status_code == 201, response.text
    return f"/groups/{group}/consumers/{response.json()['consumer_id']}"


def poll(broker: HttpBroker, consumer: str, count: int) -> list[tuple[int, int]]:
    """Polls until there are `count` records. Returns their partitions and offsets."""
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        response = broker.api.post(f"{consumer}/poll", params={"max_records": count - len(found)})
        assert response.status_code == 200, response.text
        found += [(each["partition"], each["offset"]) for each in response.json()["records"]]
    return found


def test_a_group_consumes_and_commits_and_its_lag_falls(broker: HttpBroker) -> None:
    api = broker.api
    consumer = create(broker, "billing", "work")
    first = poll(broker, consumer, 4)
    assert len(first) == 4
    committed = api.post(f"{consumer}/commit", json={}).json()["offsets"]
    assert sum(each["offset"] for each in committed) == 4
    described = api.get("/groups/billing").json()
    assert (described["state"], described["total_lag"], len(described["members"])) == ("Stable", 6, 1)
    assert {each["member_id"] for each in described["partitions"]} == {described["members"][0]["member_id"]}
    assert "billing" in [each["group"] for each in api.get("/groups").json()["groups"]]
    assert len(api.get(consumer).json()["assignment"]) == 2
    assert api.delete(consumer).status_code == 204
    assert error_code(api.get(consumer), 404) == "UNKNOWN_MEMBER_ID"
    lag = api.get("/groups/billing/lag").json()
    assert sum(each["lag_records"] for each in lag["partitions"]) == sum(5 - each["offset"] for each in committed)
    assert all(each["lag_ms"] > 0 for each in lag["partitions"] if each["lag_records"])
    assert error_code(api.get("/groups/missing/lag"), 404) == "GROUP_ID_NOT_FOUND"
    again = create(broker, "billing", "work")
    rest = poll(broker, again, 6)
    assert sorted(first + rest) == [(partition, offset) for partition in range(2) for offset in range(5)]
    explicit = {"offsets": [{"topic": "work", "partition": each, "offset": 5} for each in range(2)]}
    assert api.post(f"{again}/commit", json=explicit).status_code == 200
    assert api.get("/groups/billing").json()["total_lag"] == 0
    assert error_code(api.delete("/groups/billing"), 409) == "NON_EMPTY_GROUP"
    assert api.delete(again).status_code == 204
    assert api.delete("/groups/billing").status_code == 204
    assert error_code(api.get("/groups/billing"), 404) == "GROUP_ID_NOT_FOUND"


def test_records_of_a_poll_whose_client_disconnects_are_returned_again(broker: HttpBroker) -> None:
    """So a commit without offsets does not skip them."""
    consumer = create(broker, "impatient", "lost")
    poll(broker, consumer, 2)
    with pytest.raises(httpx.ReadTimeout):
        broker.api.post(f"{consumer}/poll", params={"wait_ms": 30_000}, timeout=0.2)
    produce(broker.api, "lost", {"value": {"json": 2}})
    assert poll_when_idle(broker, consumer) == [(0, 2)]


def test_a_response_that_the_client_did_not_wait_for_is_returned_again(
    broker: HttpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = create(broker, "leaving", "lost")
    assert poll(broker, consumer, 2) == [(0, 0), (0, 1)]
    broker.api.post(f"{consumer}/commit", json={}).raise_for_status()
    produce(broker.api, "lost", {"value": {"json": 2}})
    write_records = consumers.write_records
    written: list[int] = []
    writing, left = threading.Event(), threading.Event()

    async def write_slowly(budget: Any, records: Any, form: Any) -> str:
        if records:
            writing.set()
            await asyncio.to_thread(left.wait, 60)
            # The node reads the end of the connection.
            await asyncio.sleep(0.2)
            written.extend(each.offset for each in records)
        return await write_records(budget, records, form)

    monkeypatch.setattr(consumers, "write_records", write_slowly)
    with RawConnection(f"{broker.api.base_url.host}:{broker.api.base_url.port}") as connection:
        connection.send(request_bytes("POST", f"/v1{consumer}/poll?max_records=1&wait_ms=30000", b""))
        assert writing.wait(60)
    left.set()
    monkeypatch.undo()
    assert poll_when_idle(broker, consumer)[0] == (0, 2)
    assert written == [2]


def poll_when_idle(broker: HttpBroker, consumer: str) -> list[tuple[int, int]]:
    """Polls as soon as the previous poll has noticed that its client is gone."""
    deadline = time.monotonic() + 30
    while broker.api.post(f"{consumer}/commit", json={}).status_code == 200 and time.monotonic() < deadline:
        response = broker.api.post(f"{consumer}/poll", params={"wait_ms": 5_000})
        if response.status_code == 200:
            return [(each["partition"], each["offset"]) for each in response.json()["records"]]
        assert error_code(response, 409) == "CONFLICT"
        time.sleep(0.05)
    pytest.fail("the previous poll did not end")


def test_http_and_kafka_consumers_share_a_group(broker: HttpBroker) -> None:
    consumer = create(broker, "mixed", "shared")
    assert len(poll(broker, consumer, 10)) == 10
    broker.api.post(f"{consumer}/commit", json={}).raise_for_status()
    broker.api.delete(consumer).raise_for_status()
    kafka = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "mixed"})
    committed = kafka.committed([TopicPartition("shared", 0), TopicPartition("shared", 1)], timeout=30)
    kafka.close()
    assert [each.offset for each in committed] == [5, 5]


def test_a_dry_run_changes_nothing(broker: HttpBroker) -> None:
    api = broker.api
    consumer = create(broker, "rewound", "rewind")
    poll(broker, consumer, 10)
    api.post(f"{consumer}/commit", json={}).raise_for_status()
    url = "/groups/rewound/offsets/reset"
    applied = {"topics": ["rewind"], "to": "earliest", "dry_run": False}
    assert error_code(api.post(url, json=applied), 409) == "NON_EMPTY_GROUP"
    api.delete(consumer).raise_for_status()

    def committed() -> list[int]:
        return [each["committed_offset"] for each in api.get("/groups/rewound").json()["partitions"]]

    dry = api.post(url, json={"topics": ["rewind"], "to": "earliest"}).json()
    assert dry["dry_run"] is True
    assert [(each["current_offset"], each["new_offset"]) for each in dry["changes"]] == [(5, 0)] * 2
    assert committed() == [5, 5]
    assert api.post(url, json=applied).status_code == 200
    assert committed() == [0, 0]
    assert api.get("/groups/rewound").json()["total_lag"] == 10
    for to, value, expected in (
        ("offset", 3, 3),
        ("shift", -2, 1),
        ("shift", 99, 5),
        ("time", 0, 0),
        ("latest", None, 5),
    ):
        body = {"topics": ["rewind"], "to": to, "value": value, "dry_run": False}
        assert api.post(url, json=body).status_code == 200
        assert committed() == [expected] * 2, to


def test_a_reset_rejects_bad_input(broker: HttpBroker) -> None:
    url = "/groups/anything/offsets/reset"
    for body in (
        {"topics": ["rewind"], "to": "offset"},
        {"topics": ["rewind"], "to": "earliest", "value": 1},
        {"topics": ["rewind"], "to": "offset", "value": -1},
        {"topics": [], "to": "earliest"},
        {"topics": ["rewind"], "to": "middle"},
    ):
        assert error_code(broker.api.post(url, json=body), 422) == "INVALID_FIELD"
    missing = broker.api.post(url, json={"topics": ["missing"], "to": "earliest"})
    assert error_code(missing, 404) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_consumer_belongs_to_its_group(broker: HttpBroker) -> None:
    api = broker.api
    consumer = create(broker, "owner", "members")
    other = consumer.replace("/owner/", "/other/")
    for response in (
        api.get(other),
        api.post(f"{other}/poll"),
        api.post(f"{other}/commit", json={}),
        api.delete(other),
    ):
        assert error_code(response, 404) == "UNKNOWN_MEMBER_ID"
    not_assigned = {"offsets": [{"topic": "members", "partition": 9, "offset": 0}]}
    assert error_code(api.post(f"{consumer}/commit", json=not_assigned), 409) == "CONFLICT"
    missing = api.post("/groups/owner/consumers", json={"topics": ["missing"]})
    assert error_code(missing, 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    api.delete(consumer).raise_for_status()


def test_an_idle_consumer_expires(broker: HttpBroker) -> None:
    consumer = create(broker, "idle", "expire", idle_timeout_ms=1_000)
    poll(broker, consumer, 1)
    deadline = time.monotonic() + 30
    # A description is not a use of the consumer.
    while broker.api.get(consumer).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert error_code(broker.api.post(f"{consumer}/poll"), 404) == "UNKNOWN_MEMBER_ID"
    while broker.api.get("/groups/idle").json()["members"]:
        assert time.monotonic() < deadline, "the expired consumer leaves its group"
        time.sleep(0.1)


def test_the_number_of_consumers_is_limited() -> None:
    with http_broker({"work": 1}) as broker:
        for _ in range(100):
            create(broker, "many", "work")
        response = broker.api.post("/groups/many/consumers", json={"topics": ["work"]})
        assert error_code(response, 503) == "NOT_AVAILABLE"
        assert response.headers["retry-after"]
