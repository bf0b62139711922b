"""Kafka's bulk tools: both performance tools, and the verifiable producer and consumer of Kafka's system tests."""

import json
from typing import Any

from broker_under_test import Broker
from command_line import CONSUMER_PERFORMANCE, PRODUCER_PERFORMANCE, VERIFIABLE_CONSUMER, VERIFIABLE_PRODUCER, Tools
from java_clients import JavaClients

from support.topics import Topics, unique
from support.wire import WireClient, end_offset


def printed_events(printed: str, name: str) -> list[dict[str, Any]]:
    """Returns the events of one name in the output of a verifiable tool."""
    events = [json.loads(line) for line in printed.splitlines()]
    return [event for event in events if event["name"] == name]


def test_producer_perf_and_consumer_perf_complete(tools: Tools, node: Broker, java: JavaClients) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=4), unique()
    at = ("--bootstrap-server", node.bootstrap, "--topic", topic)
    size = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    assert "20000 records sent" in tools.run(PRODUCER_PERFORMANCE, *at, *size)
    with WireClient(node.bootstrap) as wire:
        assert sum(end_offset(wire, topic, partition) for partition in range(4)) == 20_000
    printed = tools.run(CONSUMER_PERFORMANCE, *at, "--num-records", "20000", "--group", group)
    names, values = (line.split(", ") for line in printed.strip().splitlines())
    assert int(dict(zip(names, values, strict=True))["data.consumed.in.nMsg"]) >= 20_000
    offsets = java.admin(node.bootstrap, "listGroupOffsets", group=group)
    assert sum(offset for offset, _ in offsets.values()) == 20_000


def test_the_verifiable_producer_and_consumer_agree(tools: Tools, node: Broker, java: JavaClients) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=3), unique()
    at = ("--bootstrap-server", node.bootstrap, "--topic", topic)
    printed = tools.run_alone(VERIFIABLE_PRODUCER, *at, "--max-messages", "500", "--repeating-keys", "10")
    assert printed_events(printed, "producer_send_error") == []
    (summary,) = printed_events(printed, "tool_data")
    assert (summary["sent"], summary["acked"]) == (500, 500)
    sent = {
        (each["partition"], each["offset"], each["value"]) for each in printed_events(printed, "producer_send_success")
    }
    assert len(sent) == 500

    of_group = ("--group-id", group, "--reset-policy", "earliest", "--max-messages", "500", "--verbose")
    printed = tools.run_alone(VERIFIABLE_CONSUMER, *at, *of_group)
    read = {(each["partition"], each["offset"], each["value"]) for each in printed_events(printed, "record_data")}
    assert read == sent
    assert all(each["success"] for each in printed_events(printed, "offsets_committed"))
    order = [json.loads(line)["name"] for line in printed.splitlines()]
    assert order[0] == "startup_complete"
    assert set(order[-2:]) == {"shutdown_requested", "shutdown_complete"}
    assert order.index("partitions_assigned") < order.index("record_data") < order.index("offsets_committed")
    offsets = java.admin(node.bootstrap, "listGroupOffsets", group=group)
    assert sum(offset for offset, _ in offsets.values()) == 500
