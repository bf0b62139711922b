"""`moldau topic`, `group`, `produce` and `consume` against a broker."""

import json
import os
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from moldau.cli import admin as admin_commands
from moldau.cli.commands import app
from moldau.testing import Broker

Moldau = Callable[..., Result]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    def run(*arguments: str, typed: str | bytes = b"", fails: bool = False) -> Result:
        environment = {"MOLDAU_BOOTSTRAP": broker.bootstrap}
        result = CliRunner().invoke(app, list(arguments), input=typed, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert (result.exit_code != 0) == fails, result.output
        return result

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest, moldau: Moldau) -> str:
    name = request.node.name.replace("_", "-")
    moldau("topic", "create", name, "--partitions", "3")
    return str(name)


def values(result: Result) -> list[str]:
    return result.stdout.splitlines()


@pytest.mark.parametrize("flag", ["--replicas", "--replication-factor", "-r"])
def test_the_replication_factor_has_the_flags_of_moldau_and_of_kafka(moldau: Moldau, flag: str) -> None:
    name = f"replicated{flag}"
    assert f"{name}: created" in moldau("topic", "create", name, flag, "1").stdout
    assert "INVALID_REPLICATION_FACTOR" in moldau("topic", "create", f"{name}-2", flag, "2", fails=True).output


def test_a_topic_is_created_listed_described_altered_and_deleted(moldau: Moldau) -> None:
    assert "orders: created" in moldau("topic", "create", "orders", "-p", "2", "-c", "retention.ms=60000").stdout
    assert ["orders", "2", "1"] in [line.split() for line in moldau("topic", "list").stdout.splitlines()]
    described = moldau("topic", "describe", "orders").stdout
    assert ["retention.ms", "60000"] in [line.split() for line in described.splitlines()]
    moldau("topic", "alter", "orders", "--partitions", "4", "--unset", "retention.ms")
    described = moldau("topic", "describe", "orders").stdout
    assert ["3", "1", "1", "1", "0", "0"] in [line.split() for line in described.splitlines()]
    assert "retention.ms" not in described
    assert "retention.ms" in moldau("topic", "describe", "orders", "--all-settings").stdout
    moldau("topic", "delete", "orders", typed="n\n", fails=True)
    moldau("topic", "delete", "orders", "--yes")
    assert "orders" not in moldau("topic", "list").stdout


def test_lines_are_produced_and_consumed(moldau: Moldau, topic: str) -> None:
    told = moldau("produce", topic, typed="".join(f"{number}\n" for number in range(2000)))
    assert "2000 records acknowledged" in told.stderr
    assert sorted(map(int, values(moldau("consume", topic, "--exit")))) == list(range(2000))
    assert len(values(moldau("consume", topic, "--from-beginning", "--count", "7"))) == 7


def test_keys_decide_the_partition_and_json_shows_where_a_record_is(moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "--key-separator", ":", typed=b"a:1\na:2\nno key\nb:\xff\n")
    shown = [json.loads(line) for line in values(moldau("consume", topic, "--exit", "--json"))]
    by_value = {str(record["value"]): record for record in shown}
    assert by_value["1"]["key"] == by_value["2"]["key"] == "a"
    assert by_value["1"]["partition"] == by_value["2"]["partition"]
    assert by_value["no key"]["key"] is None
    assert by_value["{'base64': '/w=='}"]["key"] == "b"
    assert {"topic", "partition", "offset", "timestamp", "headers"} <= set(shown[0])


def test_a_group_goes_on_where_it_was_and_is_reset_and_deleted(moldau: Moldau, topic: str) -> None:
    group = f"{topic}-group"
    moldau("produce", topic, typed="".join(f"{number}\n" for number in range(10)))
    first = values(moldau("consume", topic, "--group", group, "--from-beginning", "--count", "4"))
    rest = values(moldau("consume", topic, "--group", group, "--exit"))
    assert sorted(map(int, first + rest)) == list(range(10))
    assert ["Empty", "classic", "consumer"] in [
        line.split()[1:] for line in moldau("group", "list", "--state", "empty").stdout.splitlines()
    ]
    assert "total lag: 0" in moldau("group", "describe", group).stdout
    planned = moldau("group", "reset", group, "--topic", topic, "--to-earliest").stdout
    assert "Nothing was changed" in planned
    assert "total lag: 0" in moldau("group", "describe", group).stdout
    moldau("group", "reset", group, "--topic", topic, "--to-earliest", "--yes")
    assert "total lag: 10" in moldau("group", "describe", group).stdout
    moldau("group", "reset", group, "--topic", topic, "--to-time", "2999-01-01T00:00", "--yes")
    assert "total lag: 0" in moldau("group", "describe", group).stdout
    assert "offset deleted" in moldau("group", "delete", group, "--topic", topic, "--yes").stdout
    moldau("group", "delete", group, "--yes")
    assert group not in moldau("group", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topic", "describe", "nowhere"], "moldau topic list"),
        (["topic", "create", "a b"], "INVALID_TOPIC"),
        (["topic", "create", "x", "--config", "nonsense"], "NAME=VALUE"),
        (["topic", "create", "x", "--config", "no.such.setting=1"], "no.such.setting"),
        (["topic", "alter", "x"], "nothing to change"),
        (["group", "describe", "nobody"], "moldau group list"),
        (["group", "delete", "nobody", "--yes"], "Group nobody does not exist"),
        (["group", "reset", "g", "--topic", "x"], "use exactly one of"),
        (["group", "reset", "g", "--topic", "x", "--to-time", "soon"], "2026-01-31T12:00"),
        (["produce", "x", "--compression", "rar"], "gzip"),
    ],
)
def test_failures_are_reported_with_what_to_do(moldau: Moldau, arguments: list[str], told: str) -> None:
    assert told in moldau(*arguments, fails=True).output.replace("\n", " ")


@pytest.mark.parametrize("command", [["topic", "list"], ["produce", "x"], ["consume", "x"]])
def test_a_missing_broker_is_reported_with_how_to_start_one(
    moldau: Moldau, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(admin_commands, "SLOW_NOTICE_DELAY_S", 0.01)
    monkeypatch.setattr(admin_commands, "CONNECT_TIMEOUT_MS", 300)
    told = moldau(*command, "--bootstrap", "127.0.0.1:1", fails=True).stderr.splitlines()
    assert told[0] == "waiting for 127.0.0.1:1 ..."
    assert "MOLDAU_BOOTSTRAP to use another one, or start one with `moldau serve`" in told[-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topic", "list", "-b", "nonsense:abc"], "host:port, not 'nonsense:abc'"),
        (["produce", "x", "-b", ","], "as host:port"),
        (["topic", "list", "-b", "\udcff:1"], "not UTF-8 text"),
        (["consume", "x", "--group", ""], "cannot be empty"),
        (["consume", ""], "cannot be empty"),
        (["produce", ""], "cannot be empty"),
        (["topic", "create", "x", ""], "cannot be empty"),
        (["topic", "delete", "", "--yes"], "cannot be empty"),
        (["group", "describe", ""], "cannot be empty"),
        (["group", "delete", "g", "--topic", "", "--yes"], "cannot be empty"),
        (["consume", "\udcff"], "not UTF-8 text"),
        (["produce", "\udcff"], "not UTF-8 text"),
        (["topic", "create", "\udcff"], "not UTF-8 text"),
        (["topic", "create", "x", "--config", "a=\udcff"], "not UTF-8 text"),
        (["topic", "alter", "x", "--unset", "\udcff"], "not UTF-8 text"),
        (["group", "list", "--state", "\udcff"], "not UTF-8 text"),
        (["group", "reset", "g", "--topic", "\udcff", "--to-latest"], "not UTF-8 text"),
        (["topic", "create", "x" * 40_000], "too long"),
        (["topic", "create", "x", "--partitions", str(2**31)], "too large"),
        (["topic", "create", "x", "--replicas", str(2**15)], "too large"),
        (["group", "reset", "g", "--topic", "x", "--to-time", "1969-12-31"], "before 1970"),
    ],
)
def test_invalid_arguments_are_reported_before_connecting(moldau: Moldau, arguments: list[str], told: str) -> None:
    result = moldau(*arguments, fails=True)
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


def test_a_key_separator_may_be_any_bytes(moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "--key-separator", os.fsdecode(b"\xff"), typed=b"key\xffvalue\n")
    (shown,) = values(moldau("consume", topic, "--exit", "--json"))
    assert (json.loads(shown)["key"], json.loads(shown)["value"]) == ("key", "value")


def test_a_topic_that_does_not_exist_is_not_waited_for_without_a_group(moldau: Moldau) -> None:
    for arguments in (["nosuch"], ["nosuch", "--exit", "--group", "g"]):
        assert (
            "Topic nosuch does not exist. Run `moldau topic list`" in moldau("consume", *arguments, fails=True).stderr
        )
    assert "'no such'" in moldau("consume", "no such", "--group", "g", fails=True).stderr


def test_deleting_several_groups_reports_each(moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "--partition", "0", typed="1\n")
    for group in ("here", "there"):
        moldau("consume", topic, "--group", group, "--exit")
    moldau("group", "delete", "there", "--topic", topic, "--yes")
    deleted = moldau("group", "delete", "here", "there", "nobody", "-t", topic, "-t", "nosuch", "--yes", fails=True)
    assert f"here, {topic}-0: offset deleted" in deleted.stdout
    assert "there" not in deleted.stdout
    told = deleted.stderr.splitlines()
    assert "here, nosuch: no committed offsets" in told
    assert f"there, {topic}: no committed offsets" in told
    assert any(line.startswith("Group nobody does not exist") for line in told)


def test_committed_offsets_are_shifted(moldau: Moldau, topic: str) -> None:
    shift = ["group", "reset", "shifted", "--topic", topic, "--shift-by", "-1", "--yes"]
    assert "has no committed offsets" in moldau(*shift, fails=True).stderr
    moldau("produce", topic, "--partition", "0", typed="1\n2\n")
    moldau("consume", topic, "--group", "shifted", "--exit")
    moldau("topic", "alter", topic, "--partitions", "4")
    shifted = moldau(*shift)
    assert f"{topic}-3: no committed offset" in shifted.stderr
    assert f"{topic}-0: reset" in shifted.stdout
    assert "total lag: 1" in moldau("group", "describe", "shifted").stdout
    moldau("group", "delete", "shifted", "--topic", topic, "--yes")
    assert "total lag: -" in moldau("group", "describe", "shifted").stdout


def test_tables_in_a_pipe_have_no_folded_lines_and_no_spaces_at_their_ends(moldau: Moldau, topic: str) -> None:
    moldau("consume", topic, "--group", "a-group-of-readers-with-quite-a-long-name" * 3, "--exit")
    shown = moldau("group", "list").stdout + moldau("topic", "describe", topic, "--all-settings").stdout
    assert "a-group-of-readers-with-quite-a-long-name" * 3 in shown
    assert not [line for line in shown.splitlines() if line != line.rstrip()]
