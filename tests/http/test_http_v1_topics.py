"""Topics, configs and the OpenAPI document over `/v1`."""

from collections.abc import Iterator

import pytest

from support.http_v1 import HttpBroker, error_code, http_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpBroker]:
    with http_broker() as running:
        yield running


def test_a_topic_is_created_listed_described_and_deleted(broker: HttpBroker) -> None:
    api = broker.api
    created = api.post("/topics", json={"name": "orders", "partitions": 3, "configs": {"retention.ms": "60000"}})
    assert created.status_code == 201, created.text
    assert (created.json()["partitions"], created.json()["replication_factor"]) == (3, 1)
    assert "orders" in [each["name"] for each in api.get("/topics").json()["topics"]]
    described = api.get("/topics/orders").json()
    assert described["topic_id"] == created.json()["topic_id"]
    assert [(each["leader"], each["isr"]) for each in described["partitions"]] == [(1, [1])] * 3
    assert error_code(api.post("/topics", json={"name": "orders"}), 409) == "TOPIC_ALREADY_EXISTS"
    grown = api.post("/topics/orders/partitions", json={"count": 5})
    assert grown.status_code == 200, grown.text
    assert len(api.get("/topics/orders").json()["partitions"]) == 5
    assert error_code(api.post("/topics/orders/partitions", json={"count": 2}), 400) == "INVALID_PARTITIONS"
    assert api.delete("/topics/orders").status_code == 204
    assert error_code(api.get("/topics/orders"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_code(api.delete("/topics/orders"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_validate_only_creates_nothing(broker: HttpBroker) -> None:
    response = broker.api.post("/topics", json={"name": "draft", "partitions": 2, "validate_only": True})
    assert (response.status_code, response.json()["validate_only"]) == (201, True)
    assert error_code(broker.api.get("/topics/draft"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_invalid_topics_are_rejected(broker: HttpBroker) -> None:
    api = broker.api
    for body, field in (
        ({"name": "a b"}, "body.name"),
        ({"name": "x" * 250}, "body.name"),
        ({"name": "x", "partitions": 0}, "body.partitions"),
        ({"name": "x", "partitions": 10**9}, "body.partitions"),
        ({"name": "x", "partitions": "3"}, "body.partitions"),
        ({"name": "x", "unknown": 1}, "body.unknown"),
        ({}, "body.name"),
    ):
        response = api.post("/topics", json=body)
        assert error_code(response, 422) == "INVALID_FIELD"
        assert [each["field"] for each in response.json()["error"]["fields"]] == [field]
    for name in ("..", "__consumer_offsets", "__transaction_state"):
        assert error_code(api.post("/topics", json={"name": name}), 400) == "INVALID_TOPIC_EXCEPTION"
    response = api.post("/topics", json={"name": "x", "replication_factor": 9})
    assert error_code(response, 400) == "INVALID_REPLICATION_FACTOR"
    assert error_code(api.post("/topics", json={"name": "x", "configs": {"no.such": "1"}}), 400) == "INVALID_CONFIG"


def test_configs_of_topics_and_brokers_change(broker: HttpBroker) -> None:
    api = broker.api
    api.post("/topics", json={"name": "configured"})

    def value(name: str) -> tuple[str, bool]:
        configs = {each["name"]: each for each in api.get("/topics/configured/configs").json()["configs"]}
        return configs[name]["value"], configs[name]["is_default"]

    default = value("retention.ms")
    assert default[1]
    url = "/topics/configured/configs"
    assert api.patch(url, json={"configs": {"retention.ms": "1"}, "validate_only": True}).status_code == 204
    assert value("retention.ms") == default
    assert api.patch(url, json={"configs": {"retention.ms": "60000"}}).status_code == 204
    assert value("retention.ms") == ("60000", False)
    changed = [each["name"] for each in api.get(url, params={"only_changed": True}).json()["configs"]]
    assert "retention.ms" in changed
    assert "segment.bytes" not in changed
    assert api.patch(url, json={"configs": {"retention.ms": None}}).status_code == 204
    assert value("retention.ms") == default
    assert error_code(api.patch(url, json={"configs": {"retention.ms": "soon"}}), 400) == "INVALID_CONFIG"
    assert error_code(api.patch(url, json={"configs": {}}), 422) == "INVALID_FIELD"
    missing = api.patch("/topics/missing/configs", json={"configs": {"retention.ms": "1"}})
    assert error_code(missing, 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_code(api.get("/topics/missing/configs"), 404) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert api.get("/brokers/1/configs").status_code == 200
    assert api.patch("/brokers/1/configs", json={"configs": {"log.retention.ms": "7200000"}}).status_code == 204
    assert error_code(api.get("/brokers/9/configs"), 404) == "BROKER_ID_NOT_REGISTERED"


def test_passwords_are_not_returned() -> None:
    with http_broker(settings={"cluster.secret": "do not tell"}) as broker:
        response = broker.api.get("/brokers/1/configs")
        [secret] = [each for each in response.json()["configs"] if each["name"] == "cluster.secret"]
        assert (secret["is_sensitive"], secret["value"]) == (True, None)
        assert "do not tell" not in response.text


def test_the_document_describes_every_operation_and_loads_nothing_from_elsewhere(broker: HttpBroker) -> None:
    document = broker.api.get("/openapi.json").json()
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert all((each.get("summary") and "200" in each["responses"]) or each["responses"] for each in operations)
    for name in ("CreateTopicBody", "ProduceRecordsBody", "RecordView", "ErrorBody"):
        assert name in document["components"]["schemas"]
    for path in ("/docs", "/redoc"):
        assert broker.api.get(path).status_code == 404
