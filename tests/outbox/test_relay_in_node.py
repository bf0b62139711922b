"""A node on Postgres that relays an outbox in the same database: all of it in one process and one database."""

import time
from pathlib import Path

import psycopg
import pytest

from support.broker_process import BrokerProcess
from support.outbox import Writers, backlog, batch_state, check_events, install, read_ledger, read_topics, wait_until
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

pytestmark = pytest.mark.clients

KILLS = 3


def relaying_node(tmp_path: Path, url: str) -> BrokerProcess:
    store = ("--store", url, "--postgres-schema", "moldau_node", "--postgres-outbox-schema", "moldau")
    return BrokerProcess(tmp_path / "data", *store, "--num-partitions", "3")


def test_every_committed_event_is_sent_once_when_the_node_and_postgres_are_killed(
    tmp_path: Path, only_moldau: None
) -> None:
    servers = find_servers()
    if not servers:
        pytest.skip(HOW_TO_GET_ONE)
    with PostgresServer(servers[max(servers, key=int)]) as server:
        install(server.url)
        with relaying_node(tmp_path, server.url) as node, Writers(server.url, pause_s=0.1) as writers:
            begun = 0
            for number in range(KILLS):
                wait_until(lambda: batch_state(server.url)[0] >= begun + 5, node.output)  # noqa: B023
                for victim in (server, node) if number == 1 else (node,):
                    victim.kill()
                    time.sleep(0.1)
                    victim.start()
                begun, _ = batch_state(server.url)
            wait_until(lambda: batch_state(server.url)[0] >= begun + 5, node.output)
            writers.stop()
            wait_until(lambda: backlog(server.url) == 0, node.output)
            values = read_topics(node.bootstrap)
            stopped = time.monotonic()
            node.stop()
            assert time.monotonic() - stopped < 10
        check_events(values, read_ledger(server.url))


def test_a_node_relays_an_outbox_that_is_installed_later(postgres: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("create database later")
    url = postgres.database_url("later")
    with relaying_node(tmp_path, url) as node:
        wait_until(lambda: "run `moldau outbox install`" in node.output(), node.output)
        install(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select moldau.produce('orders', 'ada', '{\"event\": 1}')")
        wait_until(lambda: backlog(url) == 0, node.output)
        assert [each["event"] for each in read_topics(node.bootstrap, ("orders",))] == [1]


def test_a_node_relays_no_outbox_of_another_database(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="run `moldau outbox relay` instead"),
        BrokerProcess(tmp_path / "data", "--store", "files", "--postgres-outbox-schema", "moldau"),
    ):
        pass
