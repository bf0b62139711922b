"""`__consumer_offsets` read by Kafka's formatters and dump tool: offsets, groups and tombstones have Kafka's
formats."""

import json
import re
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_under_test import Broker, broker
from command_line import CONSUMER, DUMP, Tools
from java_clients import JavaClients, partitions_of, wait_until_shared

from moldau.records.batch import split
from moldau.records.record import iterate_records
from support.broker_process import BrokerProcess
from support.topics import Topics, unique
from support.transactional_offsets import TransactionalGroup
from support.wire import WireClient, end_offset, fetch

FORMATTERS = "org.apache.kafka.tools.consumer"
PARTITIONS = 50


@pytest.fixture
def own_broker(jvm: JavaClients, tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path / "data") as started:
        yield started
        jvm.close_consumers()


def partition_of(group: str) -> int:
    """Java's string hash without its sign, modulo the number of partitions."""
    number = 0
    for unit in group.encode():
        number = (31 * number + unit) & 0xFFFFFFFF
    return min(number, 2**32 - number) % PARTITIONS


def message_count(wire: WireClient, partition: int) -> int:
    """Returns the number of messages in a partition of the offsets topic. Transaction markers are none."""
    count, offset, end = 0, 0, end_offset(wire, "__consumer_offsets", partition)
    while offset < end:
        batches = list(split(fetch(wire, "__consumer_offsets", offset, partition=partition)["records"]))
        count += sum(len(list(iterate_records(batch))) for batch in batches if not batch.is_control)
        offset = batches[-1].next_offset
    return count


def formatted(tools: Tools, node: Broker, group: str, formatter: str) -> list[dict[str, Any]]:
    """Returns what a formatter prints about this group."""
    partition = partition_of(group)
    with WireClient(node.bootstrap) as wire:
        count = message_count(wire, partition)
    arguments = ["--bootstrap-server", node.bootstrap, "--topic", "__consumer_offsets"]
    arguments += ["--partition", str(partition), "--offset", "earliest", "--max-messages", str(count)]
    printed = tools.run(CONSUMER, *arguments, "--formatter", f"{FORMATTERS}.{formatter}")
    found, position = [], 0
    while position < len(printed.rstrip()):
        entry, position = json.JSONDecoder().raw_decode(printed, position)
        if entry["key"]["data"]["group"] == group:
            found.append(entry)
    return found


def test_kafkas_formatters_print_stored_offsets_and_groups(tools: Tools, node: Broker, java: JavaClients) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    began_ms = time.time() * 1000
    settings = {"group_id": group, "enable_auto_commit": False, "session_timeout_ms": 20_000}
    a, b = (java.consumer(node.bootstrap, name, topic, **settings, group_instance_id=f"i-{name}") for name in "ab")
    wait_until_shared([a, b], partitions_of(topic, 2))
    a.commit(dict.fromkeys(a.owned, (7, "seven")))
    topic_id = java.admin(node.bootstrap, "describeTopic", topic=topic)["id"]

    (offset,) = formatted(tools, node, group, "OffsetsMessageFormatter")
    (owned,) = a.owned
    assert offset["key"] == {
        "type": 1,
        "data": {"group": group, "topic": topic, "partition": int(owned.rsplit(":", 1)[1])},
    }
    assert offset["value"]["version"] == 4
    committed_ms = offset["value"]["data"].pop("commitTimestamp")
    assert began_ms - 1 <= committed_ms <= time.time() * 1000
    assert offset["value"]["data"] == {"offset": 7, "leaderEpoch": -1, "metadata": "seven", "topicId": topic_id}

    last = formatted(tools, node, group, "GroupMetadataMessageFormatter")[-1]
    assert last["key"] == {"type": 2, "data": {"group": group}}
    assert last["value"]["version"] == 3
    stored = last["value"]["data"]
    members = {member["clientId"]: member for member in stored.pop("members")}
    assert began_ms - 1 <= stored.pop("currentStateTimestamp") <= time.time() * 1000
    leader = stored.pop("leader")
    assert leader in {member["memberId"] for member in members.values()}
    assert stored == {"protocolType": "consumer", "generation": a.generation, "protocol": "range"}
    for each in (a, b):
        member = members[each.name]
        assert member["memberId"] == each.events_of("assigned")[-1]["member"]
        assert member["groupInstanceId"] == f"i-{each.name}"
        assert (member["clientHost"], member["sessionTimeout"]) == ("/127.0.0.1", 20_000)
        assert member["rebalanceTimeout"] == 300_000
        assert topic.encode() in b64decode(member["subscription"])
        assert topic.encode() in b64decode(member["assignment"])


def test_kafkas_formatters_print_tombstones_of_deletions(tools: Tools, node: Broker, java: JavaClients) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    only = java.consumer(node.bootstrap, "only", topic, group_id=group, enable_auto_commit=False)
    wait_until_shared([only], partitions_of(topic, 2))
    only.commit({f"{topic}:0": (1, ""), f"{topic}:1": (2, "")})
    only.close()
    java.admin(node.bootstrap, "deleteGroupOffsets", group=group, partitions=[f"{topic}:0"])
    java.admin(node.bootstrap, "deleteGroup", group=group)
    offsets = formatted(tools, node, group, "OffsetsMessageFormatter")
    assert [(each["key"]["data"]["partition"], each["value"] is None) for each in offsets[-2:]] == [
        (0, True),
        (1, True),
    ]
    groups = formatted(tools, node, group, "GroupMetadataMessageFormatter")
    assert groups[-1]["value"] is None
    assert groups[-2]["value"]["data"]["members"] == []
    assert groups[-2]["value"]["data"]["protocol"] is None


def test_the_dump_tool_decodes_the_offsets_topic(tools: Tools, own_broker: Broker, java: JavaClients) -> None:
    topic, group = Topics(own_broker.bootstrap).create(partitions=2), unique()
    java.produce(own_broker.bootstrap, topic, [{"value": "x", "partition": 0}])
    only = java.consumer(own_broker.bootstrap, "only", topic, group_id=group, enable_auto_commit=False)
    only.wait_for_records(1)
    only.commit()
    only.close()
    own_broker.stop()
    logs = own_broker.data_dir if isinstance(own_broker, BrokerProcess) else own_broker.log_dir
    segment = logs / f"__consumer_offsets-{partition_of(group)}" / "00000000000000000000.log"
    printed = tools.run(DUMP, "--files", str(segment), "--offsets-decoder")
    assert "isvalid: false" not in printed
    assert len(list(logs.glob("__consumer_offsets-*"))) == PARTITIONS
    entries = re.findall(r"key: (\{.*?\}) payload: (\{.*\}|<DELETE>)", printed)
    offsets = {}
    states = []
    for key, payload in ((json.loads(key), json.loads(payload)) for key, payload in entries):
        assert key["data"]["group"] == group
        if key["type"] == "1":
            offsets[key["data"]["partition"]] = (payload["version"], payload["data"]["offset"])
        else:
            states.append(payload["data"])
    assert offsets == {0: ("4", 1), 1: ("4", 0)}
    assert [(each["generation"], len(each["members"])) for each in states[-2:]] == [(1, 1), (2, 0)]
    (member,) = states[-2]["members"]
    assert member["subscription"]["topics"] == [topic]
    assert member["assignment"]["assignedPartitions"] == [{"topic": topic, "partitions": [0, 1]}]


def test_the_tools_read_offsets_of_transactions(tools: Tools, own_broker: Broker) -> None:
    topic = Topics(own_broker.bootstrap).create(partitions=2)
    with WireClient(own_broker.bootstrap) as wire:
        group = TransactionalGroup(wire, topic)
        producer = group.transaction.init()
        group.commit(producer, {0: 5})
        next_producer = group.end(producer, commit=True)
        group.commit(next_producer, {1: 6})
        last_producer = group.end(next_producer, commit=False)
        printed = formatted(tools, own_broker, group.id, "OffsetsMessageFormatter")
        assert {(each["key"]["data"]["partition"], each["value"]["data"]["offset"]) for each in printed} == {
            (0, 5),
            (1, 6),
        }
    own_broker.stop()
    logs = own_broker.data_dir if isinstance(own_broker, BrokerProcess) else own_broker.log_dir
    segment = logs / f"__consumer_offsets-{partition_of(group.id)}" / "00000000000000000000.log"
    dumped = tools.run(DUMP, "--files", str(segment), "--offsets-decoder")
    assert "isvalid: false" not in dumped
    batches = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*?isTransactional: (\w+) isControl: (\w+)", dumped)
    by_producer = [(int(producer_id), int(epoch)) for producer_id, epoch, *_ in batches]
    assert dict.fromkeys(by_producer) == dict.fromkeys([producer, next_producer, last_producer])
    assert {transactional for _, _, transactional, _ in batches} == {"true"}
    assert re.findall(r"endTxnMarker: (\w+)", dumped) == ["COMMIT", "ABORT"]
    payloads = [json.loads(each) for each in re.findall(r"payload: (\{.*\})", dumped)]
    assert {each["data"]["offset"] for each in payloads} == {5, 6}
