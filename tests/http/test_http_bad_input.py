"""Bad input to the simple HTTP API: every request gets a status below 500 and a body that names the problem."""

import json
from typing import Any

import httpx
import pytest

from support.http_node import HttpNode

CREATE, PRODUCE, CONSUME = "/admin/v1/topics", "/data/v1/produce", "/data/v1/consume"
VOTE, BEGIN, FETCH = "/kraft/v1/voteRequest", "/kraft/v1/beginQuorumEpoch", "/kraft/v1/fetchMetadata"
VALID: dict[str, dict[str, Any]] = {
    CREATE: {"topic_name": "valid", "partition_count": 1},
    PRODUCE: {"topic_partition": "bad-1", "key": "k", "payload": "v", "acks": "all"},
    CONSUME: {"topic_partition": "bad-1", "last_offset": -1, "max_batch_size": 10},
    VOTE: {"candidate_epoch": 1, "last_offset": 0, "last_offset_epoch": -1, "candidate_id": "3"},
    BEGIN: {"leader_epoch": 1, "leader_id": "3"},
    FETCH: {"last_offset": -1, "last_offset_epoch": -1, "max_batch_size": 10},
}
SECRET = {"X-Cluster-Secret": "s3cret"}
HUGE = 10**30


@pytest.fixture(scope="module", autouse=True)
def _topic(node: HttpNode) -> None:
    node.create_topic("bad", 2)


def post(node: HttpNode, path: str, **changes: Any) -> httpx.Response:
    return node.client.post(path, json={**VALID[path], **changes}, headers=SECRET)


@pytest.mark.parametrize("path", VALID)
def test_an_unknown_field_is_named(node: HttpNode, path: str) -> None:
    response = post(node, path, colour="blue")
    assert response.status_code == 422
    assert [each["loc"] for each in response.json()["detail"]] == [["body", "colour"]]


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, body in VALID.items() for field in body])
def test_a_missing_field_is_named(node: HttpNode, path: str, field: str) -> None:
    body = {name: value for name, value in VALID[path].items() if name != field}
    response = node.client.post(path, json=body, headers=SECRET)
    if (path, field) in ((PRODUCE, "key"), (PRODUCE, "acks")):
        assert response.status_code == 204
    else:
        assert response.status_code == 422
        assert [each["loc"] for each in response.json()["detail"]] == [["body", field]]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CREATE, "topic_name", 5),
        (CREATE, "topic_name", None),
        (CREATE, "partition_count", 0),
        (CREATE, "partition_count", -3),
        (CREATE, "partition_count", HUGE),
        (CREATE, "partition_count", 1.5),
        (CREATE, "partition_count", True),
        (CREATE, "partition_count", "three"),
        (CREATE, "partition_count", ""),
        (CREATE, "partition_count", [1]),
        (CREATE, "replication_factor", 0),
        (PRODUCE, "topic_partition", ["bad-1"]),
        (PRODUCE, "payload", 5),
        (PRODUCE, "payload", None),
        (PRODUCE, "payload", {"a": 1}),
        (PRODUCE, "key", 5),
        (PRODUCE, "acks", "2"),
        (PRODUCE, "acks", -1),
        (PRODUCE, "acks", True),
        (PRODUCE, "acks", None),
        (CONSUME, "last_offset", -2),
        (CONSUME, "last_offset", HUGE),
        (CONSUME, "last_offset", str(HUGE)),
        (CONSUME, "last_offset", None),
        (CONSUME, "max_batch_size", 0),
        (CONSUME, "max_batch_size", -1),
        (CONSUME, "max_batch_size", HUGE),
        (CONSUME, "follower_broker_id", "someone"),
        (VOTE, "candidate_epoch", -2),
        (VOTE, "candidate_epoch", HUGE),
        (VOTE, "candidate_id", "-1"),
        (VOTE, "candidate_id", "me"),
        (BEGIN, "leader_epoch", HUGE),
        (BEGIN, "leader_id", -1),
        (FETCH, "last_offset_epoch", HUGE),
        (FETCH, "max_batch_size", 0),
    ],
)
def test_a_wrong_value_is_named(node: HttpNode, path: str, field: str, value: Any) -> None:
    response = post(node, path, **{field: value})
    assert response.status_code == 422
    assert {tuple(each["loc"])[:2] for each in response.json()["detail"]} == {("body", field)}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"topic_name": NaN}',
        b"[" * 100_000,
        b'{"partition_count": ' + b"1" * 10_000 + b"}",
        b"not json",
    ],
)
@pytest.mark.parametrize("path", [CREATE, PRODUCE])
def test_a_body_that_is_not_json_gets_400(node: HttpNode, path: str, body: bytes) -> None:
    response = node.client.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["detail"].startswith("the body is not JSON")


@pytest.mark.parametrize("body", ["[]", "5", "null", '"text"'])
def test_a_body_that_is_not_an_object_gets_422(node: HttpNode, body: str) -> None:
    assert node.client.post(PRODUCE, content=body).status_code == 422


def test_a_lone_surrogate_is_rejected(node: HttpNode) -> None:
    for field in ("key", "payload", "topic_partition"):
        body = json.dumps({"topic_partition": "bad-1", "payload": "v", field: "\ud800"})
        response = node.client.post(PRODUCE, content=body)
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"] == ["body", field]


@pytest.mark.parametrize(
    "partition", ["bad-0", "bad-3", "bad-99999999999999999999", "bad--1", "bad-", "bad", "", "-1", "missing-1", "bad-²"]
)
@pytest.mark.parametrize("path", [PRODUCE, CONSUME])
def test_a_missing_partition_gets_404(node: HttpNode, path: str, partition: str) -> None:
    response = post(node, path, topic_partition=partition)
    assert response.status_code == 404
    assert "there is no partition" in response.json()["detail"]


@pytest.mark.parametrize("name", ["with-dash", "", ".", "..", "a/b", "ä", "x" * 250, "a b", "\x00"])
def test_an_invalid_topic_name_gets_400(node: HttpNode, name: str) -> None:
    response = post(node, CREATE, topic_name=name)
    assert response.status_code == 400
    assert isinstance(response.json()["detail"], str)


def test_too_many_partitions_get_400(node: HttpNode) -> None:
    response = post(node, CREATE, topic_name="many", partition_count=2**31 - 1)
    assert response.status_code == 400


def test_a_topic_that_exists_gets_409(node: HttpNode) -> None:
    response = post(node, CREATE, topic_name="bad")
    assert (response.status_code, response.json()) == (409, {"detail": "topic bad already exists"})


@pytest.mark.parametrize("name", ["missing", "__consumer_offsets", "a-b", "%2e%2e", "%ff"])
def test_deleting_a_missing_topic_gets_404(node: HttpNode, name: str) -> None:
    response = node.client.delete(f"{CREATE}/{name}")
    assert response.status_code == 404
    assert "does not exist" in response.json()["detail"]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_created(node: HttpNode, name: str) -> None:
    response = post(node, CREATE, topic_name=name, partition_count=3)
    assert response.status_code == 400
    assert response.json()["detail"] == f"topic {name} is internal: the cluster creates it when it is needed"


def test_internal_topics_are_not_written(node: HttpNode) -> None:
    response = post(node, PRODUCE, topic_partition="__cluster_metadata-1")
    assert response.status_code == 404


def test_a_body_over_the_limit_gets_413(node: HttpNode) -> None:
    assert post(node, PRODUCE, payload="x" * 2_000_000).status_code == 413


def test_a_record_over_the_topics_limit_gets_413(node: HttpNode) -> None:
    response = post(node, PRODUCE, payload="x" * 1_100_000)
    assert response.status_code == 413
    assert response.json()["detail"]


def test_a_body_with_too_many_values_gets_413(node: HttpNode) -> None:
    response = node.client.post(PRODUCE, content=b"[" + b"[]," * 500_001 + b"[]]")
    assert response.status_code == 413
    assert "JSON values" in response.json()["detail"]


def test_separators_in_strings_are_not_values(node: HttpNode) -> None:
    assert post(node, PRODUCE, payload='",[{\\' * 120_000).status_code == 204


def test_many_unknown_fields_are_not_all_named(node: HttpNode) -> None:
    response = post(node, PRODUCE, **{f"field{number}": 1 for number in range(50_000)})
    assert response.status_code == 422
    assert [each["loc"][1] for each in response.json()["detail"]] == [f"field{number}" for number in range(20)]


@pytest.mark.parametrize("name", ["x" * 100_000, "-" * 100_000])
def test_a_long_name_is_not_repeated(node: HttpNode, name: str) -> None:
    response = post(node, CREATE, topic_name=name)
    assert (response.status_code, len(response.content) < 2_000) == (400, True)
    response = post(node, PRODUCE, topic_partition=f"{name}-1")
    assert (response.status_code, len(response.content) < 2_000) == (404, True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_body_that_is_not_utf_8_gets_400(node: HttpNode, encoding: str) -> None:
    content = '{"topic_partition": "bad-1", "payload": "\u00e9"}'.encode(encoding)
    assert node.client.post(PRODUCE, content=content).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/data/v1/produce", "POST"),
        ("PUT", CREATE, "GET, POST"),
        ("POST", "/admin/v1/topics/x", "DELETE"),
        ("PUT", "/v1/topics", "GET, POST"),
        ("PUT", "/v1/topics/orders/configs", "GET, PATCH"),
        ("POST", "/v1/topics/orders", "GET, DELETE"),
        ("OPTIONS", "/v1/groups/g/consumers/c", "GET, DELETE"),
    ],
)
def test_status_405_names_all_methods_of_the_path(node: HttpNode, method: str, path: str, allowed: str) -> None:
    response = node.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert ("error" if path.startswith("/v1") else "detail") in response.json()


def test_an_unknown_path_gets_404(node: HttpNode) -> None:
    response = node.client.get("/")
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


def test_numbers_are_accepted_as_strings(node: HttpNode) -> None:
    assert post(node, CREATE, topic_name="strings", partition_count="2", replication_factor="1").status_code == 201
    consumed = post(node, CONSUME, topic_partition="strings-2", last_offset="-1", max_batch_size="10")
    assert consumed.json() == {"last_offset": -1, "records": []}
    for acks in ("all", "1", "0", 1, 0):
        assert post(node, PRODUCE, topic_partition="strings-2", acks=acks).status_code == 204
    for follower in (2, "2", "broker-2", None):
        assert post(node, CONSUME, follower_broker_id=follower).status_code == 200


@pytest.mark.parametrize("content_type", ["application-json", "application/json", "text/plain", "", None])
def test_a_body_is_json_whatever_its_content_type_says(node: HttpNode, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    body = '{"topic_partition": "bad-2", "payload": "v"}'
    assert node.client.post(PRODUCE, content=body, headers=headers).status_code == 204
