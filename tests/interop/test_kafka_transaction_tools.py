"""Transactions in Kafka's tools: the dump tool and the formatter read `__transaction_state`, and the transactions tool
lists, describes, finds and ends transactions."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from broker_under_test import Broker, broker
from command_line import CONSUMER, DUMP, TRANSACTIONS, Tools
from java_clients import JavaClients

from moldau.client import Cluster
from moldau.client.producer.transaction_group import TransactionGroup
from support.broker_process import BrokerProcess
from support.topics import Topics, unique
from support.transaction_wire import (
    Coordinator,
    committed_values,
    last_stable_offset,
    produce_codes,
    transactional_batch,
)
from support.wire import WireClient, end_offset

FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
ONE_PARTITION = {"transaction.state.log.num.partitions": "1"}
LAST_TIMEOUT_MS = 120_000
"""The timeout of the transaction that stays open, other than that of the first ones. The tools take several seconds."""
TIMES = ("transactionLastUpdateTimestampMs", "transactionStartTimestampMs")


@pytest.fixture
def own_broker(jvm: JavaClients, tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path / "data", settings=ONE_PARTITION) as started:
        yield started


def run_transactions(node: Broker) -> tuple[Coordinator, str, int]:
    """A commit with TV2, an abort with TV1, a fenced transaction, and an open one."""
    topic = Topics(node.bootstrap).create(partitions=3)
    client = WireClient(node.bootstrap)
    coordinator = Coordinator(client)
    producer = coordinator.init()
    coordinator.add(producer, (topic, 2), (topic, 0), version=5)
    following = coordinator.end(producer, commit=True)
    coordinator.wait_for("CompleteCommit")
    coordinator.add(following, (topic, 1), version=3)
    assert coordinator.end_code(following, commit=False, version=4) == 0
    coordinator.wait_for("CompleteAbort")
    coordinator.add(following, (topic, 0), version=3)
    fenced = coordinator.init(timeout_ms=LAST_TIMEOUT_MS)
    assert fenced == (producer[0], 3)
    coordinator.add(fenced, (topic, 0), version=5)
    return coordinator, topic, producer[0]


def expected_values(topic: str, producer_id: int) -> list[dict[str, Any]]:
    def value(epoch: int, status: int, partitions: list[int] | None, version: int, timeout_ms: int = 60_000) -> Any:
        topics = [{"topic": topic, "partitionIds": partitions}] if partitions else [] if partitions == [] else None
        return {
            "producerId": producer_id,
            "producerEpoch": epoch,
            "transactionTimeoutMs": timeout_ms,
            "transactionStatus": status,
            "transactionPartitions": topics,
            "previousProducerId": producer_id,
            **({"clientTransactionVersion": version} if version else {}),
        }

    return [
        value(0, 0, None, 0),
        value(0, 1, [0, 2], 2),
        value(1, 2, [0, 2], 2),
        value(1, 4, [], 2),
        value(1, 1, [1], 0),
        value(1, 3, [1], 0),
        value(1, 5, [], 0),
        value(1, 1, [0], 0),
        value(2, 3, [0], 2),
        value(2, 5, [], 2),
        value(3, 0, None, 2, LAST_TIMEOUT_MS),
        value(3, 1, [0], 2, LAST_TIMEOUT_MS),
    ]


def comparable(value: dict[str, Any]) -> dict[str, Any]:
    """Drops times, which must be there, and sorts partitions."""
    for name in TIMES:
        assert value.pop(name) >= -1
    for each in value["transactionPartitions"] or ():
        each["partitionIds"].sort()
    return value


def changes(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Removes repetitions: Moldau confirms some responses by writing the unchanged state again."""
    return [value for value, _ in groupby(values)]


def test_the_dump_tool_decodes_the_transaction_topic(tools: Tools, own_broker: Broker) -> None:
    coordinator, topic, producer_id = run_transactions(own_broker)
    own_broker.stop()
    logs = own_broker.data_dir if isinstance(own_broker, BrokerProcess) else own_broker.log_dir
    segment = logs / "__transaction_state-0" / "00000000000000000000.log"
    printed = tools.run(DUMP, "--files", str(segment), "--transaction-log-decoder")
    assert "isvalid: false" not in printed
    entries = re.findall(r"key: (\{.*?\}\}) payload: (\{.*\}|<DELETE>)", printed)
    assert {json.loads(key)["data"]["transactionalId"] for key, _ in entries} == {coordinator.id}
    payloads = [json.loads(payload) for _, payload in entries]
    assert {payload["version"] for payload in payloads} == {"1"}
    assert changes(comparable(payload["data"]) for payload in payloads) == expected_values(topic, producer_id)


def test_the_tools_of_kafka_read_a_transaction_topic_with_transaction_groups(
    tools: Tools, own_broker: Broker, only_moldau: None
) -> None:
    """They skip the records of groups, which only Moldau has, and show members as transactions."""
    topic, group_id = Topics(own_broker.bootstrap).create(), unique("q")

    async def write() -> None:
        async with Cluster(own_broker.bootstrap) as cluster:
            group = TransactionGroup(cluster, group_id, "run", transaction_timeout_ms=60_000)
            member = await group.start_member(0, "0/0")
            assert member is not None
            await member.producer.send(topic, b"row")
            await group.commit(0, [await member.finish()])

    asyncio.run(write())
    assert f"__moldau.group/{group_id}/0/0" in tools.run(
        TRANSACTIONS, "--bootstrap-server", own_broker.bootstrap, "list"
    )
    assert isinstance(own_broker, BrokerProcess)
    own_broker.stop()
    segment = own_broker.data_dir / "__transaction_state-0" / "00000000000000000000.log"
    printed = tools.run(DUMP, "--files", str(segment), "--transaction-log-decoder")
    assert "isvalid: false" not in printed
    entries = re.findall(r"key: (\{.*?\}\}) payload: (\{.*\}|<DELETE>)", printed)
    assert {json.loads(key)["data"]["transactionalId"] for key, _ in entries} == {f"__moldau.group/{group_id}/0/0"}


def test_the_formatter_prints_the_transaction_topic(tools: Tools, own_broker: Broker) -> None:
    coordinator, topic, producer_id = run_transactions(own_broker)
    with WireClient(own_broker.bootstrap) as wire:
        count = end_offset(wire, "__transaction_state", 0)
    arguments = ["--bootstrap-server", own_broker.bootstrap, "--topic", "__transaction_state", "--partition", "0"]
    arguments += ["--offset", "earliest", "--max-messages", str(count), "--formatter", FORMATTER]
    printed, position, values = tools.run(CONSUMER, *arguments).rstrip(), 0, []
    while position < len(printed):
        entry, position = json.JSONDecoder().raw_decode(printed, position)
        assert entry["key"]["data"] == {"transactionalId": coordinator.id}
        values.append(comparable(entry["value"]["data"]))
    assert changes(values) == expected_values(topic, producer_id)


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()[1:] if line.strip()]


@pytest.fixture
def transactions(tools: Tools, own_broker: Broker) -> Callable[..., str]:
    return lambda *arguments: tools.run(TRANSACTIONS, "--bootstrap-server", own_broker.bootstrap, *arguments)


def test_the_transactions_tool_lists_describes_and_terminates(
    transactions: Callable[..., str], own_broker: Broker
) -> None:
    coordinator, topic, producer_id = run_transactions(own_broker)
    listed = rows(transactions("list"))
    assert [(row[0], row[2], row[3]) for row in listed] == [(coordinator.id, str(producer_id), "Ongoing")]
    assert rows(transactions("list", "--transactional-id-pattern", "tx-.*")) == listed
    assert rows(transactions("list", "--transactional-id-pattern", "other")) == []
    assert rows(transactions("list", "--duration-filter", "600000")) == []
    (described,) = rows(transactions("describe", "--transactional-id", coordinator.id))
    assert described[1:6] == [coordinator.id, str(producer_id), "3", "Ongoing", str(LAST_TIMEOUT_MS)]
    assert described[-1] == f"{topic}-0"
    transactions("forceTerminateTransaction", "--transactionalId", coordinator.id)
    state = coordinator.wait_for("Empty")
    assert (state["producer_id"], state["producer_epoch"]) == (producer_id, 5)


def forget_transactions(node: Broker) -> None:
    """Deletes the state of the coordinator, so that its open transactions hang."""
    name, topics = "__transaction_state", Topics(node.bootstrap)
    topics.admin.delete_topics([name])[name].result(20)


def test_the_transactions_tool_finds_and_aborts_what_hangs(
    transactions: Callable[..., str], own_broker: Broker
) -> None:
    topic = Topics(own_broker.bootstrap).create(partitions=2)
    client = WireClient(own_broker.bootstrap)
    coordinator = Coordinator(client)
    producer = coordinator.init()
    batches = {(topic, 1): transactional_batch(producer, b"a", b"b")}
    assert produce_codes(client, coordinator.id, batches, version=12) == [0]
    at_partition = ("--topic", topic, "--partition", "1")
    any_age = ("--max-transaction-timeout", "0")

    def hanging(*where: str) -> list[list[str]]:
        return rows(transactions("find-hanging", *where, *any_age))

    def described() -> list[str]:
        (row,) = rows(transactions("describe-producers", *at_partition))
        return [*row[:4], row[-1]]

    # Producer id, epoch, coordinator epoch, last sequence, and first offset of the transaction.
    assert described() == [str(producer[0]), "0", "-1", "1", "0"]
    assert rows(transactions("describe-producers", "--topic", topic, "--partition", "0")) == []
    assert hanging("--topic", topic) == [], "its coordinator knows the transaction"
    forget_transactions(own_broker)
    (found,) = hanging("--topic", topic)
    assert found[:6] == [topic, "1", str(producer[0]), "0", "-1", "0"]
    assert hanging(*at_partition)[0][:6] == found[:6]
    assert hanging("--broker-id", "1")[0][:6] == found[:6]
    transactions("abort", *at_partition, "--start-offset", "0")
    assert described() == [str(producer[0]), "0", "0", "1", "None"]
    assert hanging("--topic", topic) == []
    assert last_stable_offset(client, topic, 1) == 3
    assert committed_values(client, topic, 1) == []


def test_the_transactions_tool_aborts_by_producer_and_epochs(
    transactions: Callable[..., str], own_broker: Broker
) -> None:
    """As it does with brokers before 3.0."""
    topic = Topics(own_broker.bootstrap).create()
    client = WireClient(own_broker.bootstrap)
    coordinator = Coordinator(client)
    producer = coordinator.init()
    batches = {(topic, 0): transactional_batch(producer, b"a")}
    assert produce_codes(client, coordinator.id, batches, version=12) == [0]
    identity = ("--producer-id", str(producer[0]), "--producer-epoch", str(producer[1]), "--coordinator-epoch", "-1")
    transactions("abort", "--topic", topic, "--partition", "0", *identity)
    assert last_stable_offset(client, topic) == 2
