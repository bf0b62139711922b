"""Reassignment files of Kafka."""

import json
from typing import Any

import pytest

from moldau.cli.cluster.reassign import parse_reassignments
from moldau.cli.reassignment import Move, plan_to_kafka_json
from moldau.client.record import TopicPartition

ENTRY = {"topic": "orders", "partition": 0, "replicas": [1, 2]}


def test_a_file_is_parsed() -> None:
    entries = [ENTRY | {"log_dirs": ["any", "any"]}, ENTRY | {"partition": 1, "replicas": [3]}]
    assert parse_reassignments(json.dumps({"version": 1, "partitions": entries}).encode()) == {
        TopicPartition("orders", 0): (1, 2),
        TopicPartition("orders", 1): (3,),
    }


def test_the_file_that_undoes_a_plan_is_parsed() -> None:
    orders = TopicPartition("orders", 3)
    assert parse_reassignments(plan_to_kafka_json({orders: Move((1, 2), (3, 4), 0, False)}).encode()) == {
        orders: (1, 2)
    }


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "not a reassignment"),
        ({"version": 2, "partitions": [ENTRY]}, "not a reassignment"),
        ({"version": 1}, "not a list"),
        ({"partitions": []}, "not a list"),
        ({"partitions": [3]}, "entry 1 of `partitions` is not an object"),
        ({"partitions": [ENTRY, ENTRY]}, "orders-0 is listed twice"),
        ({"partitions": [ENTRY | {"topic": ""}]}, "no `topic`"),
        ({"partitions": [ENTRY | {"partition": "0"}]}, "no `partition` number"),
        ({"partitions": [ENTRY | {"partition": True}]}, "no `partition` number"),
        ({"partitions": [ENTRY | {"replicas": []}]}, "no list of node ids"),
        ({"partitions": [ENTRY | {"replicas": [1, -2]}]}, "no list of node ids"),
        ({"partitions": [ENTRY | {"replicas": [1, 1]}]}, "a node twice"),
        ({"partitions": [ENTRY | {"log_dirs": ["/a", "any"]}]}, "`log_dirs`"),
        ({"partitions": [ENTRY | {"log_dirs": 3}]}, "`log_dirs`"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_place(document: Any, problem: str) -> None:
    data = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ValueError, match=problem):
        parse_reassignments(data.encode())


def test_a_file_that_is_not_text_is_rejected() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_reassignments(b"\xff\xfe\x00")
