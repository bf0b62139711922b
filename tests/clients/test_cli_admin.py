"""The commands of operators: trim, configs, members, JSON, exit codes and suggestions. `make interop` runs them on
Apache Kafka, too."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from moldau.cli import admin as admin_commands
from moldau.cli.commands import app
from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.testing import Broker
from support.topics import unique

Moldau = Callable[..., Result]
CONFIGS = {"retention.ms": "-1", "max.message.bytes": "1000000"}
PARTITIONS = 2
WAIT_S = 20.0
RECORDS = 10
"""The number of records per partition."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def moldau(bootstrap: str) -> Moldau:
    def run(*arguments: str, typed: str = "", code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=typed, env={"MOLDAU_BOOTSTRAP": bootstrap})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic with records that are one second apart, the first at 1,000 ms."""
    name = unique("orders")

    async def create() -> None:
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            await admin.create_topic(name, partitions=PARTITIONS, configs=CONFIGS)
            for partition in range(PARTITIONS):
                for number in range(RECORDS):
                    timestamp = (number + 1) * 1000
                    await (await producer.send(name, b"x", partition=partition, timestamp_ms=timestamp))

    asyncio.run(create())
    return name


@pytest.fixture
def group(bootstrap: str, topic: str) -> str:
    """A group without members that has committed offset 4 in partition 0."""
    name = unique("billing")

    async def commit() -> None:
        async with Admin(bootstrap) as admin:
            await admin.alter_group_offsets(name, {TopicPartition(topic, 0): 4})

    asyncio.run(commit())
    return name


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def log_starts(moldau: Moldau, topic: str) -> list[int]:
    (described,) = json_lines(moldau("topic", "describe", topic, "--json"))
    return [each["log_start_offset"] for each in described["partitions"]]


def wait_for(read: Callable[[], object], expected: object) -> None:
    """Waits for a change, which Apache Kafka applies after the response."""
    deadline = time.monotonic() + WAIT_S
    while (found := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == expected


# Trim


def test_a_trim_shows_its_plan_and_deletes_after_confirmation(moldau: Moldau, topic: str) -> None:
    shown = moldau("topic", "trim", topic, "--before", "4", "--dry-run")
    assert [topic, "1", "0", "4", "10", "4"] in [line.split() for line in shown.stdout.splitlines()]
    assert "Nothing was changed" in shown.stderr
    refused = moldau("topic", "trim", topic, "--before", "4", typed="n\n", code=1)
    assert f"Delete 8 records of {topic}?" in refused.stderr
    assert log_starts(moldau, topic) == [0, 0]
    assert f"{topic}: 8 records deleted" in moldau("topic", "trim", topic, "--before", "4", typed="y\n").stdout
    assert log_starts(moldau, topic) == [4, 4]


@pytest.mark.parametrize(
    ("position", "start"), [("1970-01-01T00:00:03.500Z", 3), ("-2", 8), ("end", 10), ("999", 10), ("1 minute ago", 10)]
)
def test_a_trim_ends_at_a_time_or_a_position(moldau: Moldau, topic: str, position: str, start: int) -> None:
    (line,) = json_lines(moldau("topic", "trim", topic, "--before", position, "--partition", "1", "--yes", "--json"))
    assert line == {
        "topic": topic,
        "partition": 1,
        "log_start_offset": 0,
        "new_log_start_offset": start,
        "end_offset": RECORDS,
        "records": start,
    }
    assert log_starts(moldau, topic) == [0, start]


def test_a_trim_without_records_to_delete_does_not_ask(moldau: Moldau, topic: str) -> None:
    moldau("topic", "trim", topic, "--before", "3", "--yes")
    assert "There are no records to delete" in moldau("topic", "trim", topic, "--before", "2").stderr
    assert log_starts(moldau, topic) == [3, 3]


def test_a_compacted_topic_is_not_trimmed(moldau: Moldau, topic: str) -> None:
    moldau("topic", "alter", topic, "--config", "cleanup.policy=compact")
    wait_for(lambda: json_lines(moldau("topic", "configs", topic, "cleanup.policy", "--json"))[0]["value"], "compact")
    refused = moldau("topic", "trim", topic, "--before", "end", "--yes", code=1)
    assert "only compaction deletes its records" in refused.stderr
    assert log_starts(moldau, topic) == [0, 0]


# Configs


def test_configs_of_a_topic_have_value_default_source_and_help(moldau: Moldau, topic: str) -> None:
    size, segment = json_lines(moldau("topic", "configs", topic, "max.message.bytes", "segment.bytes", "--json"))
    assert size["documentation"]
    size.pop("documentation")
    assert size == {
        "name": "max.message.bytes",
        "value": "1000000",
        "default": "1048588",
        "source": "DYNAMIC_TOPIC",
        "is_default": False,
        "is_read_only": False,
        "is_sensitive": False,
    }
    assert (segment["value"], segment["default"], segment["source"]) == ("1073741824", "1073741824", "DEFAULT")
    rows = moldau("topic", "configs", topic).stdout.splitlines()
    assert re.match(r"config +value +default +source +help", rows[0])
    (row,) = [line for line in rows if line.startswith("max.message.bytes ")]
    assert re.match(r"max\.message\.bytes +1000000 +1048588 +DYNAMIC_TOPIC +\w+", row)
    changed = {each["name"] for each in json_lines(moldau("topic", "configs", topic, "--changed", "--json"))}
    assert changed >= set(CONFIGS)
    assert "segment.bytes" not in changed


def test_configs_of_a_node_and_of_the_cluster_are_set_and_unset(moldau: Moldau) -> None:
    (node,) = [str(each["node"]) for each in json_lines(moldau("cluster", "status", "--json"))[0]["nodes"]]

    def config() -> tuple[str, str, str]:
        (entry,) = json_lines(moldau("broker", "config", node, "--name", "log.retention.ms", "--json"))
        return entry["value"], entry["default"], entry["source"]

    moldau("broker", "config", "--set", "log.retention.ms=86400000")
    wait_for(config, ("86400000", "604800000", "DYNAMIC_DEFAULT_BROKER"))
    assert "log.retention.ms" in moldau("broker", "config").stdout
    assert f"Node {node}: changed" in moldau("broker", "config", node, "--set", "log.retention.ms=3600000").stdout
    wait_for(config, ("3600000", "86400000", "DYNAMIC_BROKER"))
    moldau("broker", "config", node, "--unset", "log.retention.ms")
    wait_for(config, ("86400000", "604800000", "DYNAMIC_DEFAULT_BROKER"))
    moldau("broker", "config", "--unset", "log.retention.ms")
    wait_for(lambda: "log.retention.ms" in moldau("broker", "config").stdout, False)


def test_a_topic_config_that_does_not_exist_is_reported_with_a_suggestion(moldau: Moldau, topic: str) -> None:
    for command in (("create", unique("new")), ("alter", topic)):
        refused = moldau("topic", *command, "--config", "retention.mss=1", code=3)
        assert "Topics have no config retention.mss. Did you mean retention.ms?" in refused.stderr
    moldau("topic", "create", unique("new"), "--config", "retention.ms=soon", code=1)


def test_the_confirmation_of_a_deletion_names_what_is_deleted(moldau: Moldau) -> None:
    assert "Delete src and all its records?" in moldau("topic", "delete", "src", code=1).output
    assert "Delete a, b and all their records?" in moldau("topic", "delete", "a", "b", code=1).output


def test_invalid_changes_of_a_node_are_rejected(moldau: Moldau) -> None:
    (node,) = [str(each["node"]) for each in json_lines(moldau("cluster", "status", "--json"))[0]["nodes"]]
    moldau("broker", "config", node, "--set", "log.retention.ms=soon", code=1)
    for owner, name in (([node], "log.segment.byte"), ([], "log.segment.bites")):
        refused = moldau("broker", "config", *owner, "--set", f"{name}=1", "--set", "log.retention.ms=1", code=3).stderr
        assert f"Nodes have no config {name}. Did you mean log.segment.bytes?" in refused
        shown = [each["name"] for each in json_lines(moldau("broker", "config", *owner, "--changed", "--json"))]
        assert not {name, "log.retention.ms"} & set(shown), "nothing was changed"
        moldau("broker", "config", *owner, "--set", f"{name}=1", "--force")
        moldau("broker", "config", *owner, "--unset", name)
    assert "--set and --unset change" in moldau("broker", "config", "--set", "a=1", "--json", code=2).output
    assert "Node 77 does not exist" in moldau("broker", "config", "77", code=3).stderr
    misspelt = moldau("broker", "config", node, "--name", "log.retention.mss", code=3).stderr
    assert "Did you mean log.retention.ms?" in misspelt


# Members


def test_members_are_shown_with_client_static_id_and_partitions(moldau: Moldau, bootstrap: str, topic: str) -> None:
    name = unique("readers")

    async def scenario() -> tuple[Result, list[dict[str, Any]]]:
        consumer = Consumer(
            bootstrap, group_id=name, group_instance_id="reader-1", client_id="laptop", auto_offset_reset="earliest"
        )
        async with consumer:
            consumer.subscribe([topic])
            async with asyncio.timeout(60):
                await anext(consumer)
            shown = await asyncio.to_thread(moldau, "group", "members", name)
            lines = json_lines(await asyncio.to_thread(moldau, "group", "members", name, "--json"))
        return shown, lines

    shown, (member,) = asyncio.run(scenario())
    assert shown.stdout.startswith(f"{name}: Stable, 1 member, assignor ")
    row = shown.stdout.splitlines()[2].split()
    assert row[1:] == ["reader-1", "laptop", "127.0.0.1", topic, "0-1"]
    assert row[0] == member["member_id"]
    assert (member["instance_id"], member["client_id"], member["group_state"]) == ("reader-1", "laptop", "Stable")
    assert member["partitions"] == [{"topic": topic, "partition": each} for each in range(PARTITIONS)]


def test_a_group_without_members_says_so(moldau: Moldau, group: str) -> None:
    assert "The group has no members" in moldau("group", "members", group).stderr
    assert moldau("group", "members", group, "--json").stdout == ""


# JSON


def test_tables_are_printed_as_json_with_stable_names(moldau: Moldau, topic: str, group: str) -> None:
    (listed,) = [each for each in json_lines(moldau("topic", "list", "--json")) if each["topic"] == topic]
    assert listed == {
        "topic": topic,
        "topic_id": listed["topic_id"],
        "partitions": PARTITIONS,
        "replication_factor": 1,
        "is_internal": False,
    }
    (described,) = json_lines(moldau("topic", "describe", topic, "--json"))
    assert described["configs"]["retention.ms"] == "-1"
    leader = described["partitions"][1]["leader"]
    assert described["partitions"][1] == {
        "partition": 1,
        "leader": leader,
        "leader_epoch": described["partitions"][1]["leader_epoch"],
        "replicas": [leader],
        "isr": [leader],
        "offline_replicas": [],
        "log_start_offset": 0,
        "last_stable_offset": RECORDS,
        "high_watermark": RECORDS,
    }
    (found,) = [each for each in json_lines(moldau("group", "list", "--json")) if each["group"] == group]
    assert set(found) == {"group", "state", "type", "protocol_type"}
    (lag,) = json_lines(moldau("group", "describe", group, "--json"))
    assert (lag["group"], lag["state"], lag["total_lag"], lag["members"]) == (group, "Empty", 6, [])
    assert lag["partitions"] == [
        {"topic": topic, "partition": 0, "committed_offset": 4, "end_offset": 10, "lag": 6, "member_id": None}
    ]
    (status,) = json_lines(moldau("cluster", "status", "--json"))
    assert [each["state"] for each in status["nodes"]] == ["up"]
    assert status["partitions_under_replicated"] == status["partitions_without_leader"] == []
    assert status["controller_id"] == status["voters"][0]


def test_a_reset_is_planned_and_applied_as_json(moldau: Moldau, topic: str, group: str) -> None:
    reset = ["group", "reset", group, "--topic", topic, "--to-offset", "7", "--json"]
    expected = [
        {"topic": topic, "partition": 0, "current_offset": 4, "new_offset": 7},
        {"topic": topic, "partition": 1, "current_offset": None, "new_offset": 7},
    ]
    assert json_lines(moldau(*reset)) == expected
    (lag,) = json_lines(moldau("group", "describe", group, "--json"))
    assert lag["total_lag"] == 6
    assert json_lines(moldau(*reset, "--yes")) == expected
    (lag,) = json_lines(moldau("group", "describe", group, "--json"))
    assert lag["total_lag"] == 6 - 3 + 3


# Exit codes and suggestions


@pytest.mark.parametrize(
    "command",
    [
        "topic describe {}",
        "topic configs {}",
        "topic alter {} --partitions 9",
        "topic move {} --replicas 1",
        "topic move {} --cancel",
        "topic trim {} --before 1",
        "topic delete {} --yes",
        "group reset billing --topic {} --to-latest",
        "cluster elect-leaders {}",
        "transaction hanging --topic {}",
        "consume {} --exit",
    ],
)
def test_a_misspelt_topic_has_a_suggestion(moldau: Moldau, topic: str, command: str) -> None:
    misspelt = topic.replace("orders", "ordres")
    failed = moldau(*command.format(misspelt).split(), code=3)
    assert f"Topic {misspelt} does not exist. Did you mean {topic}?" in failed.stderr


@pytest.mark.parametrize(
    "command",
    [
        "group describe {}",
        "group members {}",
        "group lag {}",
        "group delete {} --yes",
        "group delete {} --topic orders --yes",
    ],
)
def test_a_misspelt_group_has_a_suggestion(moldau: Moldau, group: str, command: str) -> None:
    misspelt = group.replace("billing", "biling")
    failed = moldau(*command.format(misspelt).split(), code=3)
    assert f"Group {misspelt} does not exist. Did you mean {group}?" in failed.stderr


def test_a_reset_of_a_misspelt_group_is_a_notice(moldau: Moldau, topic: str, group: str) -> None:
    misspelt = group.replace("billing", "biling")
    shown = moldau("group", "reset", misspelt, "--topic", topic, "--to-latest")
    assert f"a reset creates its offsets. Did you mean {group}?" in shown.stderr


def test_each_missing_topic_of_a_deletion_is_named(moldau: Moldau, topic: str) -> None:
    misspelt = topic.replace("orders", "ordres")
    failed = moldau("topic", "delete", topic, misspelt, "--yes", code=3)
    assert f"{topic}: deleted" in failed.stdout
    assert failed.stderr.startswith(f"Topic {misspelt} does not exist.")


def test_an_unreachable_cluster_has_its_own_exit_code(moldau: Moldau, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_commands, "CONNECT_TIMEOUT_MS", 300)
    for command in (["topic", "list"], ["produce", "x"], ["consume", "x"], ["topic", "move", "x", "--replicas", "1"]):
        moldau(*command, "--bootstrap", "127.0.0.1:1", code=4)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("topic move x", "use exactly one of"),
        ("topic move x --replicas 1 --cancel", "use exactly one of"),
        ("topic move x --replicas 1,b", "not a list of node ids"),
        ("topic move x --replicas 1,1", "has a node twice"),
        ("topic trim x --before soon", "is not a position"),
        ("topic trim x", "--before"),
        ("cluster reassign no-such-file.json", "does not exist"),
        ("broker config 1 --set nonsense", "NAME=VALUE"),
        ("settings --json --write x", "cannot be combined"),
    ],
)
def test_invalid_arguments_exit_with_2(moldau: Moldau, command: str, problem: str) -> None:
    assert problem in " ".join(moldau(*command.split(), code=2).output.split())
