"""The position in Kafka when the database was copied, and `--reset-position`."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.outbox import RelayProcess, moldau, read_topics, wait_until, wait_until_sent
from support.postgres import PostgresServer
from support.topics import unique

pytestmark = pytest.mark.clients


@pytest.fixture
def topic() -> str:
    return unique()


def produce(url: str, topic: str, event: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT moldau.produce(%s, 'k', %s)", (topic, f'{{"event": "{event}"}}'))


def end_sessions(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'moldau outbox relay' AND datname = current_database()"
        )


def events(bootstrap: str, topic: str) -> list[str]:
    return [each["event"] for each in read_topics(bootstrap, (topic,))]


@pytest.fixture
def copy(outbox: str, relay: RelayProcess, postgres: PostgresServer, topic: str) -> Iterator[str]:
    """The URL of a copy of the database, made after one event was sent."""
    produce(outbox, topic, "before the copy")
    relay.start()
    wait_until_sent(outbox, relay)
    assert relay.stop() == 0
    source, name = outbox.rpartition("/")[2], unique("copy").replace("-", "_")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"'.encode())
        yield postgres.database_url(name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def test_relays_of_a_copied_database_lose_no_event(
    outbox: str, copy: str, relay: RelayProcess, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Both have recorded a batch with the same number, but Kafka has only one of them."""
    relay.start()
    relay.wait_for_output("The relay is running", 2)
    with RelayProcess(copy, bootstrap, tmp_path / "copy.out") as other:
        other.wait_for_output("The relay is running")
        produce(copy, topic, "of the copy")
        wait_until_sent(copy, other)
        produce(outbox, topic, "of the original")
        assert relay.process is not None
        assert relay.process.wait(60) == 1
        assert "from another copy of the database" in relay.output()
        assert "run the relay once with --reset-position" in relay.output()
    assert events(bootstrap, topic) == ["before the copy", "of the copy"]
    with RelayProcess(outbox, bootstrap, relay.log_path, "--reset-position") as again:
        wait_until_sent(outbox, again)
    assert events(bootstrap, topic) == ["before the copy", "of the copy", "of the original"]


def test_a_copy_with_an_identity_of_its_own_relays_beside_the_original(
    outbox: str, copy: str, relay: RelayProcess, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    with psycopg.connect(copy, autocommit=True) as connection:
        # As docs/outbox.md says.
        connection.execute("UPDATE moldau.outbox_state SET outbox_id = gen_random_uuid(), batch = 0, ids = '{}'")
    relay.start()
    with RelayProcess(copy, bootstrap, tmp_path / "copy.out") as other:
        for number in range(3):
            for url, process in ((outbox, relay), (copy, other)):
                produce(url, topic, f"{number}")
                wait_until_sent(url, process)
    assert events(bootstrap, topic) == ["before the copy", "0", "0", "1", "1", "2", "2"]


def test_a_copy_that_falls_behind_is_noticed(
    outbox: str, copy: str, relay: RelayProcess, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The copy's position is lower than the original's next batch, as that of a batch that was not sent."""
    with RelayProcess(copy, bootstrap, tmp_path / "copy.out") as other:
        produce(copy, topic, "of the copy")
        wait_until_sent(copy, other)
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("UPDATE moldau.outbox_state SET batch = batch + 5, token = gen_random_uuid()")
    refused = moldau("outbox", "relay", outbox, "-b", bootstrap)
    assert refused.returncode == 1
    assert "from another copy of the database" in refused.stderr


@pytest.mark.parametrize("is_new", [True, False], ids=["new outbox", "used outbox"])
def test_a_relay_resets_the_position_only_once(
    outbox: str, relay: RelayProcess, bootstrap: str, topic: str, tmp_path: Path, is_new: bool
) -> None:
    if not is_new:
        produce(outbox, topic, "first")
        relay.start()
        wait_until_sent(outbox, relay)
        assert relay.stop() == 0
    with RelayProcess(outbox, bootstrap, tmp_path / "reset.out", "--reset-position") as reset:
        reset.wait_for_output("The relay is running")
        produce(outbox, topic, "second")
        wait_until_sent(outbox, reset)
        with psycopg.connect(outbox, autocommit=True) as connection:
            connection.execute("UPDATE moldau.outbox_state SET batch = 0, ids = '{}'")
        end_sessions(outbox)
        process = reset.process
        assert process is not None
        wait_until(lambda: process.poll() is not None, reset.output)
        assert process.poll() == 1
        assert "run the relay once with --reset-position" in reset.output()
