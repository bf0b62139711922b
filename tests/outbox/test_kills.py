"""16 writers with rollbacks, savepoints, long and prepared transactions, while the relay, Postgres or the node is
killed with SIGKILL: consumers with read_committed get every committed event exactly once and in the order of its key.
MOLDAU_OUTBOX_KILLS sets the number of kills of the relay (3)."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.outbox import (
    RelayProcess,
    Writers,
    batch_state,
    check_events,
    install,
    kill_relays,
    read_ledger,
    read_topics,
    wait_until,
    wait_until_sent,
)
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

pytestmark = pytest.mark.clients

KILLS = int(os.environ.get("MOLDAU_OUTBOX_KILLS", "3"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
SERVERS = find_servers()


@pytest.fixture
def node(tmp_path: Path, only_moldau: None) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--num-partitions", "3") as served:
        yield served


@pytest.fixture(params=sorted({min(SERVERS, key=int), max(SERVERS, key=int)}) if SERVERS else [None])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if request.param is None:
        pytest.skip(HOW_TO_GET_ONE)
    with PostgresServer(SERVERS[request.param]) as started:
        yield started


def test_every_committed_event_is_sent_once_when_the_relay_is_killed(
    node: BrokerProcess, server: PostgresServer, tmp_path: Path
) -> None:
    kill_relays(server.url, node.bootstrap, tmp_path / "relay.out", KILLS, SEED)


def test_every_committed_event_is_sent_once_when_postgres_and_the_node_are_killed(
    node: BrokerProcess, server: PostgresServer, tmp_path: Path
) -> None:
    install(server.url)
    relay = RelayProcess(server.url, node.bootstrap, tmp_path / "relay.out")
    with Writers(server.url, seed=SEED + 1, pause_s=0.1) as writers, relay:
        begun = 0
        for victims in ([server], [node], [server, node]):
            wait_until(lambda: batch_state(server.url)[0] >= begun + 5, relay.output)  # noqa: B023
            for victim in victims:
                victim.kill()
            time.sleep(0.3)
            for victim in victims:
                victim.start()
            begun, _ = batch_state(server.url)
        wait_until(lambda: batch_state(server.url)[0] >= begun + 5, relay.output)
        writers.stop()
        wait_until_sent(server.url, relay)
        assert relay.stop() == 0
    assert writers.reconnects
    assert writers.prepared
    check_events(read_topics(node.bootstrap), read_ledger(server.url))
