"""`moldau topic`, `group`, `produce` and `consume` against a broker, as somebody types them."""

import json
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

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


def test_a_topic_is_created_listed_described_altered_and_deleted(moldau: Moldau) -> None:
    assert (
        "orders: created" in moldau("topic", "create", "orders", "-p", "2", "-c", "retention.ms=60000").stdout
    )
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


def test_lines_go_in_and_come_out(moldau: Moldau, topic: str) -> None:
    told = moldau("produce", topic, typed="".join(f"{number}\n" for number in range(2000)))
    assert "2000 records are acknowledged" in told.stderr
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
    assert "lag in all: 0" in moldau("group", "describe", group).stdout
    planned = moldau("group", "reset", group, "--topic", topic, "--to-earliest").stdout
    assert "Nothing is changed yet" in planned
    assert "lag in all: 0" in moldau("group", "describe", group).stdout
    moldau("group", "reset", group, "--topic", topic, "--to-earliest", "--yes")
    assert "lag in all: 10" in moldau("group", "describe", group).stdout
    moldau("group", "reset", group, "--topic", topic, "--to-time", "2999-01-01T00:00", "--yes")
    assert "lag in all: 0" in moldau("group", "describe", group).stdout
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
        (["topic", "alter", "x"], "say what to change"),
        (["group", "describe", "nobody"], "moldau group list"),
        (["group", "delete", "nobody", "--yes"], "GROUP_ID_NOT_FOUND"),
        (["group", "reset", "g", "--topic", "x"], "in one way"),
        (["group", "reset", "g", "--topic", "x", "--to-time", "soon"], "2026-01-31T12:00"),
        (["produce", "x", "--compression", "rar"], "gzip"),
    ],
)
def test_what_cannot_be_done_is_told_with_what_to_do_next(
    moldau: Moldau, arguments: list[str], told: str
) -> None:
    assert told in moldau(*arguments, fails=True).output.replace("\n", " ")


def test_no_broker_is_told_with_how_to_start_one(moldau: Moldau) -> None:
    assert "moldau serve" in moldau("topic", "list", "--bootstrap", "127.0.0.1:1", fails=True).output
