"""`moldau transaction`: who holds back consumers, and how to end it. `make interop` runs it on Apache Kafka, too."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from moldau.cli import transaction as transaction_commands
from moldau.cli.commands import app
from moldau.client import Admin, Consumer, Producer, ProducerFencedError, TopicPartition
from moldau.testing import Broker
from support.topics import unique

Moldau = Callable[..., Result]
CLIENT_ID = "billing-client"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def has_clients() -> bool:
    """Whether the broker returns the client of a producer."""
    return True


@pytest.fixture
def command(bootstrap: str) -> Moldau:
    """Runs any command."""

    def run(*arguments: str, fails: bool = False) -> Result:
        result = CliRunner().invoke(app, list(arguments), env={"MOLDAU_BOOTSTRAP": bootstrap})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert (result.exit_code != 0) == fails, result.output
        return result

    return run


@pytest.fixture
def moldau(command: Moldau) -> Moldau:
    """Runs a command of `moldau transaction`."""
    return partial(command, "transaction")


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("orders")

    async def create() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(name, partitions=2)

    asyncio.run(create())
    return name


@asynccontextmanager
async def open_transaction(
    bootstrap: str, topic: str, transactional_id: str, *, partition: int = 0
) -> AsyncIterator[Producer]:
    """Writes three records in a transaction that stays open in the block, and is aborted at its end."""
    async with Producer(bootstrap, transactional_id=transactional_id, client_id=CLIENT_ID) as producer:
        transaction = producer.transaction()
        await transaction.begin()
        for number in range(3):
            await (await producer.send(topic, b"%d" % number, partition=partition))
        yield producer
        await transaction.abort()


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def wait_until_ended(moldau: Moldau, topic: str) -> None:
    """Waits for the markers, which are written after the response to the producer."""
    deadline = time.monotonic() + 30
    while "No transaction is open" not in moldau("hanging", "--topic", topic).stderr:
        assert time.monotonic() < deadline


def test_an_open_transaction_is_listed_described_and_found(
    moldau: Moldau, bootstrap: str, topic: str, has_clients: bool
) -> None:
    transactional_id = unique("billing")

    async def scenario() -> None:
        async with Producer(bootstrap) as plain:
            await (await plain.send(topic, b"before", partition=1))
        async with open_transaction(bootstrap, topic, transactional_id, partition=1), Producer(bootstrap) as plain:
            await (await plain.send(topic, b"after", partition=1))
            await asyncio.to_thread(look)

    def look() -> None:
        pattern = ("--pattern", f"{transactional_id}.*")
        (listed,) = objects(moldau("list", "--json", "--state", "ongoing", *pattern))
        assert (listed["transactional_id"], listed["state"]) == (transactional_id, "Ongoing")
        for matching in (["--longer-than", "0ms"], ["--producer-id", str(listed["producer_id"])]):
            assert transactional_id in moldau("list", *pattern, *matching).stdout
        for other in (["--longer-than", "1h"], ["--producer-id", "987654"], ["--state", "Empty"]):
            assert "No transactional ids match" in moldau("list", *pattern, *other).stderr
        (described,) = objects(moldau("describe", transactional_id, "--json"))
        assert (described["timeout_ms"], described["partitions"]) == (60_000, [[topic, 1]])
        client = (CLIENT_ID, "/127.0.0.1") if has_clients else ("", "")
        assert (described["client_id"], described["client_host"]) == client
        shown = moldau("describe", transactional_id).stdout
        assert f"{topic}-1" in shown
        assert ("127.0.0.1" in shown) == has_clients
        (found,) = objects(moldau("hanging", "--json", "--topic", topic))
        assert (found["partition"], found["start_offset"], found["waiting_records"]) == (1, 1, 4)
        assert (found["status"], found["transactional_id"]) == ("ongoing", transactional_id)
        assert (found["client_id"], found["client_host"]) == client
        assert 0 <= found["age_ms"] < 60_000
        assert 0 < found["remaining_ms"] <= 60_000
        assert found in [{**each, **ages_of(found)} for each in objects(moldau("hanging", "--json"))]
        table = moldau("hanging", "--topic", topic)
        assert f"{topic}-1" in table.stdout
        assert f"moldau transaction abort {transactional_id}" in table.stderr
        assert "No transaction is open" in moldau("hanging", "--topic", topic, "--older-than", "1h").stderr
        at_offset = ("--topic", topic, "--partition", "1", "--start-offset")
        refused = moldau("abort", *at_offset, "1", "--yes", fails=True)
        assert f"moldau transaction abort {transactional_id}" in refused.stderr
        assert "open at 1" in moldau("abort", *at_offset, "0", "--yes", fails=True).stderr

    asyncio.run(scenario())
    wait_until_ended(moldau, topic)
    refused = moldau("abort", transactional_id, "--yes", fails=True)
    assert "no open transaction" in refused.stderr


def ages_of(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("age_ms", "remaining_ms")}


def test_only_the_first_open_transaction_of_a_partition_holds_it_back(
    moldau: Moldau, bootstrap: str, topic: str
) -> None:
    first, second = unique("first"), unique("second")

    async def scenario() -> None:
        async with open_transaction(bootstrap, topic, first), open_transaction(bootstrap, topic, second):
            await asyncio.to_thread(look)

    def look() -> None:
        holders = moldau("hanging", "--topic", topic)
        assert first in holders.stdout
        assert second not in holders.stdout
        assert "1 open transaction behind these" in holders.stderr
        both = objects(moldau("hanging", "--topic", topic, "--all", "--json"))
        assert [(each["transactional_id"], each["holds_last_stable_offset"]) for each in both] == [
            (first, True),
            (second, False),
        ]

    asyncio.run(scenario())


def test_an_aborted_transaction_fences_its_producer_and_frees_consumers(
    moldau: Moldau, bootstrap: str, topic: str
) -> None:
    transactional_id = unique("billing")

    async def scenario() -> None:
        async with Producer(bootstrap, transactional_id=transactional_id) as producer:
            transaction = producer.transaction()
            await transaction.begin()
            await (await producer.send(topic, b"aborted", partition=0))
            aborted = await asyncio.to_thread(moldau, "abort", transactional_id, "--yes")
            assert f"{transactional_id}: transaction ended" in aborted.stdout
            with pytest.raises(ProducerFencedError):
                await transaction.commit()
        async with Producer(bootstrap) as plain:
            await (await plain.send(topic, b"plain", partition=0))
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            async with asyncio.timeout(30):
                assert (await anext(consumer)).value == b"plain"

    asyncio.run(scenario())


def test_a_hanging_transaction_is_told_apart_and_aborted(
    moldau: Moldau, bootstrap: str, topic: str, has_clients: bool
) -> None:
    """A coordinator that has lost its log does not know the open transaction any more."""
    transactional_id = unique("billing")
    at_offset = ("--topic", topic, "--partition", "0", "--start-offset", "0")

    async def scenario() -> None:
        named = {"transactional_id": transactional_id, "client_id": CLIENT_ID}
        async with Producer(bootstrap, **named) as producer, Admin(bootstrap) as admin:
            await producer.transaction().begin()
            await (await producer.send(topic, b"hanging", partition=0))
            await admin.delete_topic("__transaction_state")
            await asyncio.to_thread(end_it)

    def end_it() -> None:
        (found,) = objects(moldau("hanging", "--json", "--topic", topic))
        assert (found["status"], found["start_offset"], found["remaining_ms"]) == ("hanging", 0, None)
        owner = (transactional_id, CLIENT_ID, "/127.0.0.1") if has_clients else ("", "", "")
        assert (found["transactional_id"], found["client_id"], found["client_host"]) == owner
        shown = moldau("hanging", "--topic", topic)
        assert "hanging" in shown.stdout
        assert f"moldau transaction abort {' '.join(at_offset)}" in shown.stderr
        assert "transactional ids" in moldau("abort", transactional_id, "--yes", fails=True).stderr
        assert "was aborted" in moldau("abort", *at_offset, "--yes").stdout
        assert "No transaction is open" in moldau("hanging", "--topic", topic).stderr
        assert "no transaction is open" in moldau("abort", *at_offset, "--yes", fails=True).stderr

    asyncio.run(scenario())


def test_lag_and_offsets_at_both_isolation_levels(command: Moldau, bootstrap: str, topic: str) -> None:
    group = unique("readers")
    committed = ("--isolation-level", "read_committed")

    def lag(*arguments: str) -> tuple[list[str], Result]:
        described = command("group", "describe", group, *arguments)
        (row,) = [line.split() for line in described.stdout.splitlines() if line.startswith(topic)]
        return row[1:5], described

    def consumed(*arguments: str) -> list[str]:
        # Its signal handlers need a main thread.
        consume = [sys.executable, "-m", "moldau", "consume", topic, "--exit", "--bootstrap", bootstrap, *arguments]
        return subprocess.run(consume, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()

    async def scenario() -> None:
        async with Producer(bootstrap) as plain, Admin(bootstrap) as admin:
            for _ in range(2):
                await (await plain.send(topic, b"plain", partition=0))
            assert set((await admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})).values()) == {None}
            await asyncio.to_thread(without_transaction)
            async with open_transaction(bootstrap, topic, unique("billing")):
                await (await plain.send(topic, b"plain", partition=0))
                await asyncio.to_thread(with_transaction)

    def without_transaction() -> None:
        for level in ((), committed):
            row, described = lag(*level)
            assert (row, described.stderr) == (["0", "1", "2", "1"], "")
        assert "last stable" not in command("topic", "describe", topic).stdout

    def with_transaction() -> None:
        for level, row in (((), ["0", "1", "6", "5"]), (committed, ["0", "1", "2", "1"])):
            shown, described = lag(*level)
            assert shown == row
            assert f"{topic}: 4 records in 1 partition behind open transactions" in described.stderr
            assert f"moldau transaction hanging --topic {topic}" in described.stderr
        topic_rows = [line.split() for line in command("topic", "describe", topic).stdout.splitlines()]
        assert [row[-3:] for row in topic_rows[1:3]] == [["0", "2", "6"], ["0", "0", "0"]]
        assert len(consumed()) == 6
        assert consumed(*committed) == ["plain", "plain"]

    asyncio.run(scenario())
    wait_until_ended(partial(command, "transaction"), topic)
    row, described = lag(*committed)
    assert (row, described.stderr) == (["0", "1", "7", "6"], ""), "the marker has an offset, too"
    assert consumed(*committed) == ["plain"] * 3
    assert "read_committed" in command("consume", topic, "--isolation-level", "serializable", fails=True).output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "--state", "Open"], "Ongoing"),
        (["list", "--longer-than", "soon"], "10 seconds"),
        (["list", "--pattern", "a("], "regular expression"),
        (["describe", "nobody"], "moldau transaction list"),
        (["hanging", "--topic", "nowhere"], "moldau topic list"),
        (["abort"], "moldau transaction hanging"),
        (["abort", "--topic", "x"], "--start-offset"),
        (["abort", "an-id", "--topic", "x"], "either"),
        (["abort", "nobody", "--yes"], "moldau transaction list"),
        (["abort", "--topic", "nowhere", "--partition", "0", "--start-offset", "0", "--yes"], "moldau topic list"),
    ],
)
def test_failures_are_reported_with_what_to_do(moldau: Moldau, arguments: list[str], told: str) -> None:
    shown = moldau(*arguments, fails=True).output
    assert told in " ".join(line.strip("│ ") for line in shown.splitlines())


@pytest.mark.parametrize("name", transaction_commands.COMMANDS)
def test_help_has_an_example(moldau: Moldau, name: str) -> None:
    assert f"moldau transaction {name} " in moldau(name, "--help").stdout
