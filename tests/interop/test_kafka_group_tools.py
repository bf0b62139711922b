"""Kafka's group tools: kafka-consumer-groups, kafka-groups, and the console consumer in a group."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from broker_under_test import Broker
from command_line import CONSUMER, CONSUMER_GROUPS, GROUPS, PRODUCER, Tools, table
from java_clients import JavaClients, JavaConsumer, partitions_of, wait_until_shared

from support.topics import Topics, unique

FIRST_MS = 1_700_000_000_000


@dataclass
class Active:
    """A group with two members, one of which has committed."""

    name: str
    topic: str
    members: tuple[JavaConsumer, JavaConsumer]


def produce(java: JavaClients, node: Broker, topic: str) -> None:
    """Produces ten records to each of two partitions, a second apart."""
    records = [{"value": str(n), "partition": n % 2, "timestamp": FIRST_MS + 1000 * n} for n in range(20)]
    java.produce(node.bootstrap, topic, records)


@pytest.fixture
def active(java: JavaClients, node: Broker) -> Active:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    produce(java, node, topic)
    settings = {"group_id": group, "enable_auto_commit": False}
    a = java.consumer(node.bootstrap, "a", topic, **settings, group_instance_id="instance-a")
    b = java.consumer(node.bootstrap, "b", topic, **settings, group_instance_id="instance-b")
    wait_until_shared([a, b], partitions_of(topic, 2))
    a.commit(dict.fromkeys(a.owned, (3, "three")))
    return Active(group, topic, (a, b))


@pytest.fixture
def at_five(java: JavaClients, node: Broker) -> tuple[str, str]:
    """A topic, and an empty group that has committed offset 5 of its two partitions."""
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    produce(java, node, topic)
    offsets = {f"{topic}:0": (5, ""), f"{topic}:1": (5, "")}
    java.admin(node.bootstrap, "alterGroupOffsets", group=group, offsets=offsets)
    return topic, group


class ConsumerGroups:
    """kafka-consumer-groups against one node."""

    def __init__(self, tools: Tools, node: Broker) -> None:
        self._tools = tools
        self._node = node

    def __call__(self, *arguments: str) -> str:
        return self._tools.run(CONSUMER_GROUPS, "--bootstrap-server", self._node.bootstrap, *arguments)


@pytest.fixture
def groups(tools: Tools, node: Broker) -> ConsumerGroups:
    return ConsumerGroups(tools, node)


def described(groups: ConsumerGroups, group: str, *what: str) -> list[dict[str, str]]:
    return table(groups("--describe", "--group", group, *what), group)


def test_consumer_groups_lists_groups_with_state_and_type(groups: ConsumerGroups, active: Active) -> None:
    def rows(*filters: str) -> list[dict[str, str]]:
        return table(groups("--list", *filters), active.name)

    assert active.name in groups("--list").split()
    assert rows("--state") == [{"GROUP": active.name, "STATE": "Stable"}]
    assert rows("--state", "stable", "--type", "classic") == [
        {"GROUP": active.name, "TYPE": "Classic", "STATE": "Stable"}
    ]
    assert rows("--state", "Empty,PreparingRebalance") == []
    assert rows("--type", "consumer") == []


def test_consumer_groups_describes_offsets_and_lag(groups: ConsumerGroups, active: Active) -> None:
    rows = {row["CLIENT-ID"]: row for row in described(groups, active.name)}
    assert set(rows) == {"a", "b"}
    for member, offset, lag in zip(active.members, ("3", "-"), ("7", "-"), strict=True):
        row = rows[member.name]
        assert {f"{row['TOPIC']}:{row['PARTITION']}"} == member.owned
        assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == (offset, "10", lag)
        assert row["CONSUMER-ID"] == member.events_of("assigned")[-1]["member"]
        assert row["HOST"] == "/127.0.0.1"
    assert "LEADER-EPOCH" in groups("--describe", "--group", active.name, "--offsets", "--verbose")


def test_consumer_groups_describes_members_and_state(groups: ConsumerGroups, active: Active, node: Broker) -> None:
    members = described(groups, active.name, "--members", "--verbose")
    assert {row["CLIENT-ID"]: row["GROUP-INSTANCE-ID"] for row in members} == {"a": "instance-a", "b": "instance-b"}
    assert {row["CLIENT-ID"]: {row["CURRENT-ASSIGNMENT"]} for row in members} == {
        member.name: member.owned for member in active.members
    }
    assert {row["#PARTITIONS"] for row in members} == {"1"}
    (state,) = described(groups, active.name, "--state")
    assert state == {
        "GROUP": active.name,
        "COORDINATOR": f"{node.bootstrap}(1)",
        "ASSIGNMENT-STRATEGY": "range",
        "STATE": "Stable",
        "#MEMBERS": "2",
    }


def test_consumer_groups_does_not_change_a_group_with_members(groups: ConsumerGroups, active: Active) -> None:
    assert "GroupNotEmptyException" in groups("--delete", "--group", active.name)
    reset = groups("--reset-offsets", "--group", active.name, "--all-topics", "--to-earliest", "--execute")
    assert "can only be reset if the group" in reset
    deleted = groups("--delete-offsets", "--group", active.name, "--topic", active.topic)
    assert deleted.count("GroupSubscribedToTopicException") == 2
    (committed,) = [row for row in described(groups, active.name) if row["CLIENT-ID"] == "a"]
    assert committed["CURRENT-OFFSET"] == "3"


def test_consumer_groups_on_a_missing_group(groups: ConsumerGroups) -> None:
    group = unique()
    assert "GroupIdNotFoundException" in groups("--delete", "--group", group)
    assert "GroupIdNotFoundException" in groups("--describe", "--group", group)


def when(second: int) -> str:
    return datetime.fromtimestamp(FIRST_MS / 1000 + second, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def since(second: int) -> str:
    """Returns a duration back from now, rounded to fall between two records."""
    return f"PT{int(datetime.now(UTC).timestamp() - FIRST_MS / 1000) - second}S"


@pytest.mark.parametrize(
    ("scenario", "offsets"),
    [
        (["--to-earliest"], ["2", "0"]),
        (["--to-latest"], ["10", "10"]),
        (["--to-current"], ["5", "5"]),
        (["--to-offset", "4"], ["4", "4"]),
        (["--to-offset", "99"], ["10", "10"]),
        (["--shift-by", "2"], ["7", "7"]),
        (["--shift-by", "-4"], ["2", "1"]),
        (["--to-datetime", when(12)], ["6", "6"]),
        (["--to-datetime", when(13)], ["7", "6"]),
        (["--by-duration", "P1D"], ["10", "10"]),
    ],
    ids=lambda value: "".join(value).strip("-") if isinstance(value, list) and value[0][0] == "-" else "",
)
def test_consumer_groups_resets_offsets(
    groups: ConsumerGroups,
    java: JavaClients,
    node: Broker,
    at_five: tuple[str, str],
    scenario: list[str],
    offsets: list[str],
) -> None:
    """First as a dry run, then for real. Partition 0 starts at offset 2."""
    topic, group = at_five
    java.admin(node.bootstrap, "deleteRecords", partition=f"{topic}:0", before=2)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, *scenario)
    for planned in ("--dry-run", "--execute"):
        before = java.admin(node.bootstrap, "listGroupOffsets", group=group)
        rows = {row["PARTITION"]: row["NEW-OFFSET"] for row in table(groups(*reset, planned), group)}
        assert rows == {"0": offsets[0], "1": offsets[1]}
        if planned == "--dry-run":
            assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == before
    after = java.admin(node.bootstrap, "listGroupOffsets", group=group)
    assert [str(after[f"{topic}:{number}"][0]) for number in (0, 1)] == offsets


def test_consumer_groups_resets_by_duration_into_the_past(
    groups: ConsumerGroups, java: JavaClients, node: Broker, at_five: tuple[str, str]
) -> None:
    topic, group = at_five
    reset = groups("--reset-offsets", "--group", group, "--topic", topic, "--by-duration", since(-60), "--execute")
    assert {row["NEW-OFFSET"] for row in table(reset, group)} == {"0"}


def test_consumer_groups_resets_from_a_file_it_exported(
    groups: ConsumerGroups, java: JavaClients, node: Broker, at_five: tuple[str, str], tmp_path: Path
) -> None:
    topic, group = at_five
    exported = groups("--reset-offsets", "--group", group, "--topic", f"{topic}:1", "--to-offset", "8", "--export")
    assert exported.split() == [f"{topic},1,8"]
    plan = tmp_path / "offsets.csv"
    plan.write_text(exported.strip() + "\n")
    groups("--reset-offsets", "--group", group, "--from-file", str(plan), "--execute")
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:0": [5, ""], f"{topic}:1": [8, ""]}


def test_consumer_groups_deletes_offsets_and_groups(
    groups: ConsumerGroups, java: JavaClients, node: Broker, at_five: tuple[str, str]
) -> None:
    topic, group = at_five
    deleted = groups("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert "Request succeeded" in deleted
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:1": [5, ""]}
    (row,) = described(groups, group)
    assert (row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"], row["CONSUMER-ID"]) == ("1", "5", "5", "-")
    assert "was successful" in groups("--delete", "--group", group)
    assert group not in groups("--list").split()


def test_kafka_groups_lists_types_and_protocols(tools: Tools, node: Broker, active: Active) -> None:
    at = ("--bootstrap-server", node.bootstrap, "--list")
    for filters in ((), ("--consumer",), ("--group-type", "classic"), ("--protocol", "consumer")):
        (row,) = table(tools.run(GROUPS, *at, *filters), active.name)
        assert row == {"GROUP": active.name, "TYPE": "Classic", "PROTOCOL": "consumer"}
    assert active.name not in tools.run(GROUPS, *at, "--group-type", "share")


def test_the_console_consumer_in_a_group_continues_at_the_committed_offset(
    tools: Tools, node: Broker, java: JavaClients
) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    at = ("--bootstrap-server", node.bootstrap, "--topic", topic)

    def type_in(*lines: str) -> None:
        reader = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
        tools.run(PRODUCER, *at, *reader, stdin="".join(f"h:1\t{line}\n" for line in lines))

    def printed(count: int) -> list[str]:
        shown = ("print.key=true", "print.headers=true", "print.partition=true", "print.offset=true")
        properties = [part for each in shown for part in ("--formatter-property", each)]
        of_group = ("--group", group, "--from-beginning", "--max-messages", str(count))
        return tools.run(CONSUMER, *at, *of_group, *properties).splitlines()

    type_in("k0\tv0", "k1\tv1", "k2\tv2")
    assert printed(2) == ["Partition:0\tOffset:0\th:1\tk0\tv0", "Partition:0\tOffset:1\th:1\tk1\tv1"]
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:0": [2, ""]}
    type_in("k3\tv3")
    assert printed(2) == ["Partition:0\tOffset:2\th:1\tk2\tv2", "Partition:0\tOffset:3\th:1\tk3\tv3"]
    assert java.admin(node.bootstrap, "describeGroup", group=group)["state"] == "Empty"


def test_the_console_consumer_reads_topics_by_a_pattern(tools: Tools, node: Broker, java: JavaClients) -> None:
    prefix = unique()
    for name in ("one", "two", "other"):
        java.admin(node.bootstrap, "createTopic", topic=f"{prefix}-{name}", partitions=1)
        java.produce(node.bootstrap, f"{prefix}-{name}", [{"value": name}])
    wanted = ("--include", f"{prefix}-(one|two)", "--from-beginning", "--max-messages", "2")
    printed = tools.run(CONSUMER, "--bootstrap-server", node.bootstrap, *wanted)
    assert sorted(printed.split()) == ["one", "two"]
